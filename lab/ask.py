"""What the lab's cluster says: every node's rank as its own Docker tells, and the endpoint's answer to one question."""

from __future__ import annotations

import json
import os
import urllib.request

from gb10.answer import MAX_TOKENS, QUESTION, completion_fault
from lab.dockerd import docker
from lab.nodes import Node
from lab.run import LabError

# As group_vars/all/cluster.yml has them.
API_PORT = 8000
MODEL = "deepseek-v4.1-flash"
ANSWER_SECONDS = 120


def ranks(nodes: list[Node]) -> list[str]:
    """One line a node: what runs there and the ``--node-rank`` it was started with."""
    lines = []
    for node in nodes:
        found = docker(
            "exec", node.name, "docker", "inspect", "--format", "[{{json .}}]", "gb10-rank", timeout=30, check=False
        )
        if not found.startswith("[{"):
            lines.append(f"{node.name}  no gb10-rank")
            continue
        container = json.loads(found)[0]
        argv = container["Config"]["Cmd"]
        rank = argv[argv.index("--node-rank") + 1] if "--node-rank" in argv else "0"
        profile = container["Config"]["Labels"].get("gb10.profile", "?")
        lines.append(f"{node.name}  gb10-rank {container['State']['Status']}  --node-rank {rank}  {profile}")
    return lines


def answer(head: Node) -> str:
    """The endpoint's answer to the report's question, asked with the key of the deploy (GB10_API_KEY) where it had one.

    Raises:
        LabError: it does not answer, or does not count.
    """
    payload = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": MAX_TOKENS}
    key = os.environ.get("GB10_API_KEY")
    request = urllib.request.Request(
        f"http://{head.address}:{API_PORT}/v1/chat/completions",
        data=json.dumps(payload | {"temperature": 0}).encode(),
        headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
            body = json.loads(reply.read())
            fault = completion_fault(reply.status, body)
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault:
        raise LabError(f"http://{head.address}:{API_PORT}: {fault}")
    return str(body["choices"][0]["message"]["content"])
