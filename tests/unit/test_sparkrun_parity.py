"""Both launchers start the same: sparkrun's own scripts, run up to `docker run` and `vllm serve`, against the plan."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT, hosts

from gb10 import deploy, diff, plan, rank_container, sparkrun

Document = dict[str, Any]
FOLDER = ROOT / ".sparkrun"
IMAGE = "sha256:" + "ab" * 32
NODE = {
    "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
    "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
    "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
    "TP_SOCKET_IFNAME": "enp1s0f1np1",
}
# What sparkrun's look at a node's RDMA devices would print, other than the plan in every value.
RDMA = """IB_DETECTED=1
DETECTED_HCA_LIST=mlx5_7
DETECTED_NET_LIST=wlan0
DETECTED_SOCKET_IFNAME=wlan0
DETECTED_UCX_LIST=mlx5_7:1
DETECTED_GID_INDEX=9
DETECTED_MGMT_IP=10.9.9.9
"""


def deployed(profile: str) -> Document:
    shared = hosts(profile)
    planned = plan.build(profile, shared, {next(iter(shared.values()))["container_image"]: IMAGE})
    return deploy.resolve(planned, {rank["node"]: NODE for rank in planned["ranks"]})


def action(home: Path, deployment: Document, state: str, env: dict[str, str] | None = None, **given: Any) -> Document:
    """gb10_sparkrun as a role runs it; no node answers (port 1), which a rehearsal must bear."""
    inventory = home / "inventory.yml"
    nodes = {
        rank["node"]: {
            "ansible_host": "127.0.0.1",
            "ansible_port": 1,
            "ansible_user": "nvidia",
            "node_rank": rank["rank"],
        }
        for rank in deployment["ranks"]
    }
    inventory.write_text(yaml.safe_dump({"gb10": {"hosts": nodes}}))
    arguments = {"state": state, "folder": str(FOLDER), "timeout": 600, "deploy": deployment, "cluster": home.name}
    arguments |= {"requirements": str(ROOT / "roles/sparkrun/files/requirements.txt"), "run": "R"} | given
    command = [
        Path(sys.executable).parent / "ansible",
        deployment["head"],
        "-i",
        inventory,
        "-m",
        "gb10_sparkrun",
        "-o",
    ]
    command += ["-a", json.dumps(arguments)]
    whole = os.environ | (env or {})
    done = subprocess.run(command, cwd=ROOT, env=whole, capture_output=True, text=True, timeout=900, check=False)
    _host, _, result = done.stdout.partition("=> ")
    assert result, done.stdout + done.stderr
    found: Document = json.loads(result)
    return found


@pytest.fixture(name="home", scope="module")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster's home of its own beside sparkrun's environment, which is made once and kept."""
    name = f"test-{os.getpid()}"
    home = FOLDER / name
    home.mkdir(parents=True)
    yield home
    subprocess.run(["rm", "-rf", home], check=True)


def rehearsed(home: Path, deployment: Document, rdma: str) -> list[list[str]]:
    """sparkrun's scripts of a launch, in its own order."""
    recipe = home / "recipes" / f"{sparkrun.recipe_name(deployment['profile'])}.yaml"
    if not recipe.is_file():
        made = action(home, deployment, "ready")
        assert not made.get("failed"), made["msg"]
    words = [FOLDER / "venv/bin/python", ROOT / "tests/sparkrun_scripts.py", home / "scripts.json", rdma]
    words += [*sparkrun.run_command(home.name, str(recipe), deployment), "--dry-run"]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SPARKRUN_NO_TELEMETRY": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    scripts: list[list[str]] = json.loads((home / "scripts.json").read_text())
    return scripts


def caught(folder: Path, program: str, script: str, env: dict[str, str]) -> list[tuple[list[str], dict[str, str]]]:
    """Runs a script with ``program`` in place of the real one; the arguments and environment of each of its calls."""
    folder.mkdir(exist_ok=True)
    calls, catcher = folder / "calls", folder / program
    calls.unlink(missing_ok=True)
    note = f"import json, os, sys; open({str(calls)!r}, 'a').write(json.dumps([sys.argv, dict(os.environ)]) + chr(10))"
    catcher.write_text(f"#!{sys.executable} -I\n{note}\n")
    catcher.chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-s"], input=script, env=env | path, capture_output=True, text=True, check=False)
    assert calls.is_file(), done.stdout + done.stderr
    return [(call[0][1:], call[1]) for call in map(json.loads, calls.read_text().splitlines())]


def docker_run(words: list[str]) -> argparse.Namespace:
    """The options of a `docker run`."""
    parser = argparse.ArgumentParser()
    for name in ("-e", "-v", "--label", "--security-opt", "--cap-add", "--ulimit", "--device"):
        parser.add_argument(name, action="append", default=[])
    for name in (
        "--entrypoint",
        "--gpus",
        "--ipc",
        "--shm-size",
        "--network",
        "--user",
        "--memory",
        "--name",
        "--restart",
    ):
        parser.add_argument(name)
    for name in ("-d", "--init", "--rm", "--privileged"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def started(home: Path, scripts: list[list[str]], address: str) -> Document:
    """What sparkrun would start on a node, in the words of a plan's rank; ``odd``: what a plan has no word for."""
    mine = [script for host, script in scripts if host == address]
    [launch] = [script for script in mine if "docker run" in script]
    [serve] = [script for script in mine if "sparkrun_serve.sh" in script]
    launch = launch.replace("[ -e /dev/infiniband ]", "true")
    [words] = [call for call, _ in caught(home / "bin", "docker", launch, {}) if call[0] == "run"]
    run = docker_run(words[1:])
    env = dict(pair.split("=", 1) for pair in run.e)
    encoded = re.search(r"printf '%s' '([A-Za-z0-9+/=]+)' \| base64 -d -- > /tmp/sparkrun_serve.sh", serve)
    assert encoded
    engine = base64.b64decode(encoded[1]).decode()
    assert sparkrun.LOGGED in engine
    [(argv, seen)] = caught(home / "bin", "vllm", engine.replace(sparkrun.LOGGED, ""), env)
    ignored = {"PATH", "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE"}
    return {
        "argv": ["vllm", *argv],
        "env": {key: value for key, value in seen.items() if key not in ignored},
        "ulimits": dict(pair.split("=", 1) for pair in run.ulimit),
        "cap_add": run.cap_add,
        "devices": run.device,
        "gpus": run.gpus or "",
        "mounts": {mount.split(":")[1]: mount for mount in run.v},
        "memory_limit": run.memory or "",
        "shm_size": run.shm_size,
        "image": run.image,
        "name": run.name,
        "labels": dict(label.split("=", 1) for label in run.label),
        "odd": {("security", "seccomp" if option.startswith("seccomp=") else option) for option in run.security_opt}
        | ({("process", "init")} if run.init else set())
        | {("process", "exec")},
        "flags": (run.entrypoint, run.network, run.ipc, run.user, run.restart, run.rm, run.privileged),
    }


def differences(rank: Document, found: Document) -> set[tuple[str, str]]:
    """(field, name) of everything in which sparkrun's rank is another than the plan's."""
    differ = set(found["odd"])
    rest, managed = sparkrun.split(rank["argv"])
    there, given = sparkrun.split(found["argv"])
    differ |= {("argv", name) for name in {*managed, *given} if managed.get(name) != given.get(name)}
    for option in ("--host", "--port"):
        if option in there and option not in rest:
            place = there.index(option)
            del there[place : place + 2]
            differ.add(("argv", option))
    differ |= {("argv", f"{a} is {b}") for a, b in zip(rest, there, strict=False) if a != b}
    differ |= {("argv", "length")} if len(rest) != len(there) else set()
    differ |= {("argv", "order")} if rank["argv"] != found["argv"] else set()
    for key in {*rank["env"], *found["env"]}:
        differ |= {("env", key)} if rank["env"].get(key) != found["env"].get(key) else set()
    mounts = {mount["target"]: sparkrun.volume(mount) for mount in rank["mounts"]}
    for target in {*mounts, *found["mounts"]}:
        if mounts.get(target) != found["mounts"].get(target):
            writable = target == rank["argv"][2] and mounts[target] == f"{found['mounts'].get(target)}:ro"
            differ.add(("mounts", "weights" if writable else target))
    differ |= {("ulimits", n) for n, v in rank["ulimits"].items() if found["ulimits"].get(n) != v}
    differ |= {("ulimits", n) for n in set(found["ulimits"]) - set(rank["ulimits"])}
    differ |= {("gpus", found["gpus"])} if rank["gpus"] != found["gpus"] else set()
    for field in ("cap_add", "devices"):
        differ |= {(field, name) for name in set(rank[field]) ^ set(found[field])}
    for field in ("memory_limit", "shm_size"):
        differ |= {(field, "value")} if diff.size(rank[field]) != diff.size(found[field]) else set()
    differ |= {("image", "value")} if found["image"] != rank["image_digest"] else set()
    return differ


@pytest.mark.parametrize(
    ("profile", "rdma"), [("tp8-300k", ""), ("tp8-300k", RDMA), ("tp8-1m", "")], ids=["300k", "300k-rdma-seen", "1m"]
)
def test_every_rank_is_the_plans_but_for_documented_differences(home: Path, profile: str, rdma: str) -> None:
    deployment = deployed(profile)
    scripts = rehearsed(home, deployment, rdma)
    seen = set()
    for rank in deployment["ranks"]:
        found = started(home, scripts, rank["address"])
        differ = differences(rank, found)
        assert differ <= sparkrun.explained(), f"rank {rank['rank']}: {sorted(differ - sparkrun.explained())}"
        seen |= differ
        assert found["name"] == f"{sparkrun.job(deployment)}_node_{rank['rank']}"
        assert rank_container.is_rank(found["name"], found["labels"], deploy.CONTAINER)
        assert rank_container.labels(found["labels"])[deploy.LABEL_RANK] == str(rank["rank"])
        assert found["labels"][deploy.LABEL_PLAN] == deployment["plan_hash"]
        assert found["flags"] == ("", "host", "private", "0:0", None, False, False)
    # The list must not outgrow what sparkrun does: each such difference is seen, with RDMA devices or without.
    listed = {one for one in sparkrun.explained() if one[0] in ("argv", "env", "mounts", "gpus", "security", "process")}
    by_detection = {("env", one) for one in ("NODE_IP", "MN_IF_NAME", "NCCL_NET", "NCCL_IB_DISABLE", "UCX_NET_DEVICES")}
    by_detection |= {("env", "OMPI_MCA_btl_tcp_if_include"), ("env", "NCCL_IB_GID_INDEX")}
    assert listed - seen == {("process", "exit_code")} | (set() if rdma else by_detection)
    serving = [host for host, script in scripts if "sparkrun_serve.sh" in script]
    assert serving[0] == deployment["ranks"][0]["address"]
    assert sorted(serving) == sorted(rank["address"] for rank in deployment["ranks"])


def test_without_a_python_for_it_that_is_said(home: Path) -> None:
    said = action(home, deployed("tp8-300k"), "found", python="/bin/false")["msg"]
    assert said.startswith("error [sparkrun-python] sparkrun_python /bin/false is no Python 3.12 or later")


def test_without_a_way_to_pypi_that_is_said(home: Path, tmp_path: Path) -> None:
    """In another folder, so that the environment is to be made there."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    said = action(home, deployed("tp8-300k"), "ready", nowhere, folder=str(tmp_path))["msg"]
    assert said.startswith("error [sparkrun-install]")
    assert "PIP_INDEX_URL" in said
    assert "Traceback" not in said


def test_what_sparkrun_refuses_is_said_in_its_words(home: Path) -> None:
    """A port that is none: the dry run says so, and no rank was touched."""
    deployment = deployed("tp8-300k")
    for rank in deployment["ranks"]:
        rank["argv"][rank["argv"].index("--master-port") + 1] = "none"
    said = action(home, deployment, "ready")["msg"]
    assert said.startswith("error [sparkrun-failed] sparkrun run")
    assert "No rank was touched" in said
