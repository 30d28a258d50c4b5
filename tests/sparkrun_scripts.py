"""Run by sparkrun's own Python: its program in a dry run, with every script it would run on a node put on record.

``python sparkrun_scripts.py OUT RDMA run ...``: OUT gets ``[[host, script], ...]`` in order; RDMA, where it is not
empty, is what its look at RDMA devices shall have found (a dry run looks at none).
"""

import atexit
import json
import sys
from dataclasses import replace
from pathlib import Path

import sparkrun.orchestration.ssh as ssh
from sparkrun.cli import main

out, rdma = sys.argv[1:3]
kept = []
run = ssh.run_remote_script


def recorded(host, script, *args, **kwargs):
    kept.append([host, script])
    result = run(host, script, *args, **kwargs)
    return replace(result, stdout=rdma) if rdma and "IB_DETECTED" in script else result


def write():
    Path(out).write_text(json.dumps(kept))


ssh.run_remote_script = recorded
atexit.register(write)
sys.argv = ["sparkrun", *sys.argv[3:]]
sys.exit(main())
