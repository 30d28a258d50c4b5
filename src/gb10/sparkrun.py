"""The same deployment as sparkrun takes it: a recipe, a cluster, command lines; and what it cannot express. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from gb10 import data
from gb10.deploy import LABEL_IMAGE, LABEL_PLAN, LABEL_PROFILE, LABEL_RUN
from gb10.findings import Finding, error
from gb10.plan import UNPINNED

Document = Mapping[str, Any]

HEADER = "# Written from the plan on every start by the sparkrun role: edit the profile instead.\n"
# sparkrun keeps the engine's output in a file inside the container; this way `docker logs` has it too, and with it the
# watched start, the kept logs and status.
LOGGED = "exec > >(tee -a /proc/1/fd/1) 2>&1"
# What its templates would replace (core/env_templates.py, utils/text.py of sparkrun).
TEMPLATE = re.compile(r"\{\{|\{[A-Za-z_][\w.]*\}")
# Per rank its address: the one environment value that may differ, because sparkrun knows it too.
HOST_KEY, HOST_TEMPLATE = "VLLM_HOST_IP", "{launch.node_host}"


def known() -> Document:
    """Version, managed options and documented differences (data/sparkrun.yml)."""
    return data.load("sparkrun")


def recipe_name(profile: str) -> str:
    """The recipe's name without ``.yaml``: the report's where it names one."""
    return str(known()["recipes"].get(profile) or f"deepseek-v41-flash-{profile}")


def job(deploy: Document) -> str:
    """The job's name: of the plan's hash, in the form that sparkrun takes for its own (rank_container.py)."""
    digest = deploy["plan_hash"]
    return f"sparkrun_{digest[:16]}_{digest[16:28]}"


def split(argv: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """A rank's argument list without the options sparkrun gives itself, and those with their values."""
    managed, words = known()["managed"], iter(argv)
    rest, taken = [], {}
    for word in words:
        if word in managed:
            taken[word] = next(words) if managed[word] else ""
        else:
            rest.append(word)
    return rest, taken


def command(deploy: Document) -> list[str]:
    """The one command that all ranks share: that of rank 0 without what sparkrun adds per rank."""
    return split(deploy["ranks"][0]["argv"])[0]


def recipe(deploy: Document, run_id: str) -> dict[str, Any]:
    """The recipe. ``refusals`` must have found nothing."""
    head, ranks = deploy["ranks"][0], deploy["ranks"]
    words = command(deploy)
    executor: dict[str, Any] = {
        "auto_remove": False,
        "privileged": False,
        "user": "0:0",
        "entrypoint": "",
        "network": "host",
        "ipc": "private",
        "shm_size": head["shm_size"],
        "cap_add": list(head["cap_add"]),
        "devices": list(head["devices"]),
        "ulimit": [f"{name}={limit}" for name, limit in sorted(head["ulimits"].items())],
        "volumes": [volume(mount) for mount in head["mounts"] if mount["target"] != weights(deploy)],
        "labels": [f"{name}={value}" for name, value in labels(deploy, run_id).items()],
    }
    executor |= {"gpus": "all", "gpu_access_mode": "gpus"} if head["gpus"] else {"accelerator_vendor": "cpu"}
    executor |= {"memory_limit": head["memory_limit"]} if head["memory_limit"] else {}
    images = [{"host": r["address"], "image": r["image_digest"]} for r in ranks if r["image_digest"] != UNPINNED]
    return {
        "recipe_version": "2",
        "description": f"Profile {deploy['profile']} of gb10-cluster.",
        "model": weights(deploy),
        "runtime": "vllm-distributed",
        "container": head["image"],
        **({"containers": images} if images else {}),
        "min_nodes": len(ranks),
        "max_nodes": len(ranks),
        "defaults": {
            "tensor_parallel": len(ranks),
            "port": int(option(words, "--port")),
            "served_model_name": option(words, "--served-model-name"),
        },
        "env": {**head["env"], HOST_KEY: HOST_TEMPLATE},
        "command": f"{LOGGED}\n{shlex.join(words)}\n",
        "executor": "docker",
        "executor_config": executor,
        "scheduler": "greedy",
        # Images are proven by digest and weights by sha256 before: sparkrun copies neither.
        "distribution_config": {"models": {"enabled": False}, "containers": {"enabled": False}},
    }


def weights(deploy: Document) -> str:
    """The weights' path, which sparkrun takes for a model on disk: nothing to download, and mounted by itself."""
    return str(deploy["ranks"][0]["argv"][2])


def option(words: list[str], name: str) -> str:
    """The value of an option that every plan gives."""
    return words[words.index(name) + 1]


def volume(mount: Mapping[str, Any]) -> str:
    """A bind mount as ``docker run -v`` takes it."""
    return f"{mount['source']}:{mount['target']}" + (":ro" if mount["read_only"] else "")


def labels(deploy: Document, run_id: str) -> dict[str, str]:
    """Our labels of all ranks; the rank is in sparkrun's own (rank_container.py)."""
    return {
        LABEL_PROFILE: str(deploy["profile"]),
        LABEL_PLAN: str(deploy["plan_hash"]),
        LABEL_IMAGE: str(deploy["ranks"][0]["image"]),
        LABEL_RUN: run_id,
    }


def text(document: Mapping[str, Any]) -> str:
    """A document as one of sparkrun's YAML files."""
    return HEADER + str(yaml.safe_dump(dict(document), sort_keys=False, width=4096, allow_unicode=True))


def refusals(deploy: Document) -> list[Finding]:
    """What of a deployment sparkrun cannot express."""
    ranks = deploy["ranks"]
    head, found = ranks[0], []
    docker = "Correct it, or take serve_launcher: docker."
    if len(ranks) < 2:
        found.append(_no("One rank alone: sparkrun starts it another way, under another name.", docker))
    wide = option(head["argv"], "--tensor-parallel-size")
    if wide != str(len(ranks)):
        found.append(
            _no(f"tensor_parallel is {wide} on {len(ranks)} ranks, and sparkrun counts one GPU a node.", docker)
        )
    if head["gpus"] not in ("", "all", "1"):
        found.append(_no(f"container_gpus is {head['gpus']}; sparkrun gives a rank one GPU.", docker))
    for rank in ranks:
        found += _rank_refusals(rank, head)
    for key, value in head["env"].items():
        if TEMPLATE.search(value):
            found.append(_no(f"{key} holds {TEMPLATE.search(value)[0]!r}, which sparkrun reads as a template.", docker))  # type: ignore[index]
    for word in command(deploy):
        template = TEMPLATE.search(word)
        if template:
            found.append(
                _no(f"An argument holds {template[0]!r}, which sparkrun reads as a template: {word[:60]}", docker)
            )
    held = [mount["source"] for mount in head["mounts"] if mount["target"] == weights(deploy)]
    if held != [weights(deploy)]:
        found.append(
            _no(f"The weights {weights(deploy)} are mounted from {held or 'nowhere'}, not from there.", docker)
        )
    for mount in head["mounts"]:
        if set(":,") & set(mount["source"] + mount["target"]):
            found.append(_no(f"The mount {mount['source']} has a colon or comma in its path.", docker))
    return found


def _rank_refusals(rank: Document, head: Document) -> list[Finding]:
    found = []
    differing = sorted(
        key for key in {*rank["env"], *head["env"]} - {HOST_KEY} if rank["env"].get(key) != head["env"].get(key)
    )
    if differing:
        here = ", ".join(
            f"{key}={rank['env'].get(key, 'unset')} (head: {head['env'].get(key, 'unset')})" for key in differing
        )
        remedy = "Pin them alike in host_vars where the hardware is (docs/sparkrun.md), or take serve_launcher: docker."
        found.append(_no(f"{here}: a recipe has one environment for all ranks.", remedy, rank["node"]))
    if rank["env"].get(HOST_KEY) != rank["address"]:
        message = f"{HOST_KEY} is {rank['env'].get(HOST_KEY)} but the rank's address {rank['address']}."
        found.append(_no(message, "Correct fabric_address.", rank["node"]))
    return found


def _no(message: str, remedy: str, node: str = "") -> Finding:
    return error("sparkrun-cannot", message, remedy, node)


def cluster_command(name: str, deploy: Document, user: str, cache: str, verb: str) -> list[str]:
    """``sparkrun cluster create|update``: hosts in rank order; it launches offline and asks for no other scheduler."""
    hosts = ",".join(rank["address"] for rank in deploy["ranks"])
    words = ["cluster", verb, name, "--hosts", hosts, "--description", "Made by gb10-cluster", "--cache-dir", cache]
    words += ["--executor", "docker", "--scheduler", "greedy", "--offline"]
    return words + (["--user", user] if user else [])


def run_command(name: str, path: str, deploy: Document) -> list[str]:
    """``sparkrun run``. Readiness is ours to judge, so it returns once the engine's processes are started."""
    _, managed = split(deploy["ranks"][0]["argv"])
    words = ["run", path, "--cluster", name, "--container-name", job(deploy), "--init-port", managed["--master-port"]]
    words += ["--offline", "--trust", "--no-rm", "--no-ready-wait", "--no-follow", "--no-auto-detect"]
    return [*words, "--no-sync-tuning", "--no-runtime-cache", "--no-timings", "--executor-args=--init"]


def cache_folder(deploy: Document) -> str:
    """Where a node keeps sparkrun's model cache, which stays empty: beside our own cache where there is one."""
    writable = [mount["source"] for mount in deploy["ranks"][0]["mounts"] if not mount["read_only"]]
    return str(PurePosixPath(writable[0] if writable else "/var/cache/gb10") / "sparkrun")


def ssh_config(deploy: Document, reach: Mapping[str, Mapping[str, Any]]) -> str:
    """An OpenSSH client configuration: per rank's address the host, port and key that Ansible uses."""
    lines = []
    for rank in deploy["ranks"]:
        host = reach.get(rank["node"], {})
        lines += [f"Host {rank['address']}", f"  HostName {host.get('host') or rank['address']}"]
        lines += [f"  Port {host['port']}"] if host.get("port") else []
        lines += [f"  IdentityFile {host['key']}"] if host.get("key") else []
    return HEADER + "\n".join(lines) + "\n"


def command_shown(said: str) -> list[str]:
    """The serve command that ``sparkrun run`` shows, as words; empty where it shows none."""
    lines = said.splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip() == "Serve command:"]
    if not starts:
        return []
    shown = []
    for line in lines[starts[-1] + 1 :]:
        if not line.strip():
            break
        shown.append(line.strip())
    try:
        return shlex.split("\n".join(line for line in shown if line != LOGGED))
    except ValueError:
        return []


def explained() -> set[tuple[str, str]]:
    """``(field, name)`` of every difference between plan and container that data/sparkrun.yml gives a reason for."""
    return {(one["field"], one["name"]) for one in known()["differences"]}


def as_planned(rank: Document, model: str) -> dict[str, Any]:
    """A running rank of sparkrun's without its documented differences; ``argv`` None: its container does not tell.

    ``model``: its label's path of the weights.
    """
    ours = explained()
    return {
        **rank,
        "argv": None,
        "env": {key: value for key, value in rank["env"].items() if ("env", key) not in ours},
        "mounts": [
            {**mount, "read_only": mount["read_only"] or mount["target"] == model}
            for mount in rank["mounts"]
            if ("mounts", mount["target"]) not in ours
        ],
        "gpus": "all" if rank["gpus"] == "0" else rank["gpus"],
    }
