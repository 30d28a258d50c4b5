"""The client's container on the head: made of what runs there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gb10 import benchmark_settings, deploy
from gb10.environment import DETECTED
from gb10.findings import Finding, error

SCRIPT = Path(__file__).with_name("benchmark_worker.py")


def refusals(plan: Mapping[str, Any], rank: Mapping[str, Any]) -> list[Finding]:
    """Why it cannot run: no rank of ours on the head, or one of another profile. ``rank``: as gb10_rank reads it."""
    node, wanted = str(plan["head"]), plan["profile"]
    if not rank.get("exists") or not rank.get("running"):
        remedy = "Start the ranks: playbooks/serve.yml."
        return [
            error("benchmark-not-serving", "No rank of ours runs on the head: nothing can be measured.", remedy, node)
        ]
    runs = (rank.get("labels") or {}).get(deploy.LABEL_PROFILE, "")
    if runs != wanted:
        message = f"Profile {runs or 'of something else'} runs, {wanted} was to be measured."
        return [error("benchmark-other-profile", message, f"-e profile={runs or 'NAME'}, or serve {wanted}.", node)]
    return []


def container(
    plan: Mapping[str, Any],
    rank: Mapping[str, Any],
    settings: benchmark_settings.Settings,
    url: str,
    model: str,
    run: str,
) -> dict[str, Any]:
    """Image, command, env and mounts. The image is the one the head's rank was made of; no GPU, no fabric."""
    head = plan["ranks"][0]
    argv = list(head["argv"])
    tokenizer = str(argv[argv.index("serve") + 1])
    given = json.dumps(benchmark_settings.spec(settings, url, model, tokenizer, run))
    worker = [*settings.python, "-c", SCRIPT.read_text(), given]
    return {
        "image": rank["image_id"],
        "command": ["timeout", "--kill-after=5", f"{settings.timeout:.0f}", *worker],
        # The client's connections are the head's own: a proxy of the site would be measured instead.
        "env": {k: v for k, v in head["env"].items() if v != DETECTED} | {"no_proxy": "*", "NO_PROXY": "*"},
        "mounts": [dict(mount) for mount in head["mounts"]],
    }
