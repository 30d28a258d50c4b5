"""The sparkrun launcher without sparkrun: what it is given, what it cannot express, whose containers are ours."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from support import hosts

from gb10 import deploy, diff, plan, rank_container, sparkrun

Document = dict[str, Any]
IMAGE = "sha256:" + "ab" * 32


@pytest.fixture(name="deployment")
def _deployment() -> Document:
    planned = plan.build("tp8-300k", hosts("tp8-300k"), {"vllm-dsv41:engram-mem": IMAGE})
    return deploy.resolve(planned, {rank["node"]: {"NCCL_IB_HCA": "rocep1s0f1"} for rank in planned["ranks"]})


def test_the_recipes_have_the_reports_names() -> None:
    names = [sparkrun.recipe_name(profile) for profile in ("tp8-300k", "tp8-1m", "tp4-300k")]
    assert names == ["deepseek-v41-flash-tp8", "deepseek-v41-flash-tp8-1m", "deepseek-v41-flash-tp4-300k"]


def test_the_worked_example_can_be_expressed(deployment: Document) -> None:
    assert sparkrun.refusals(deployment) == []
    recipe = yaml.safe_load(sparkrun.text(sparkrun.recipe(deployment, "R")))
    assert recipe["executor_config"]["auto_remove"] is False
    assert "restart_policy" not in recipe["executor_config"]
    assert {entry["image"] for entry in recipe["containers"]} == {IMAGE}
    assert recipe["distribution_config"] == {"models": {"enabled": False}, "containers": {"enabled": False}}


def test_an_image_known_by_its_tag_only_is_given_by_its_tag(deployment: Document) -> None:
    for rank in deployment["ranks"]:
        rank["image_digest"] = plan.UNPINNED
    recipe = sparkrun.recipe(deployment, "R")
    assert "containers" not in recipe
    assert recipe["container"] == "vllm-dsv41:engram-mem"


def change(deployment: Document, rank: int, **changed: Any) -> Document:
    changed_ranks = copy.deepcopy(deployment["ranks"])
    for key, value in changed.items():
        kept = changed_ranks[rank][key]
        changed_ranks[rank][key] = kept | value if isinstance(kept, dict) else value
    return {**deployment, "ranks": changed_ranks}


@pytest.mark.parametrize(
    ("rank", "changed", "said"),
    [
        (3, {"env": {"NCCL_IB_HCA": "rocep1s0f0"}}, "NCCL_IB_HCA=rocep1s0f0 (head: rocep1s0f1)"),
        (3, {"env": {"ONLY_HERE": "1"}}, "ONLY_HERE=1 (head: unset)"),
        (2, {"env": {"VLLM_HOST_IP": "10.0.0.9"}}, "VLLM_HOST_IP is 10.0.0.9 but the rank's address 192.168.1.157"),
        (0, {"gpus": "2"}, "container_gpus is 2"),
        (0, {"mounts": []}, "are mounted from nowhere"),
        (0, {"mounts": [{"source": "/a:b", "target": "/c", "read_only": True}]}, "/a:b has a colon or comma"),
    ],
)
def test_what_a_recipe_cannot_express_is_refused(deployment: Document, rank: int, changed: Document, said: str) -> None:
    found = sparkrun.refusals(change(deployment, rank, **changed))
    assert {finding.code for finding in found} == {"sparkrun-cannot"}
    assert any(said in finding.message for finding in found), found


@pytest.mark.parametrize("word", ["{model}", "{launch.node_rank}", '{"a":{{"b":1}}}'])
def test_what_sparkrun_would_read_as_a_template_is_refused(deployment: Document, word: str) -> None:
    argv = [*deployment["ranks"][0]["argv"], "--odd", word]
    assert "as a template" in sparkrun.refusals(change(deployment, 0, argv=argv))[0].message


def test_fewer_ranks_than_gpus_are_refused(deployment: Document) -> None:
    few = {**deployment, "ranks": deployment["ranks"][:4]}
    assert "tensor_parallel is 8 on 4 ranks" in sparkrun.refusals(few)[0].message


def test_every_option_sparkrun_gives_itself_is_left_out(deployment: Document) -> None:
    rest, managed = sparkrun.split(deployment["ranks"][5]["argv"])
    assert managed["--node-rank"] == "5"
    assert managed["--headless"] == ""
    assert not set(managed) & set(rest)
    assert len(rest) + len(managed) * 2 - 1 == len(deployment["ranks"][5]["argv"])


def test_the_rehearsed_command_is_read_back(deployment: Document) -> None:
    shown = "Cluster:   x\n\nServe command:\n  " + sparkrun.recipe(deployment, "R")["command"].strip().replace(
        "\n", "\n  "
    )
    assert sparkrun.command_shown(shown + "\n\n[6/6] Post-launch hooks\n") == sparkrun.command(deployment)
    assert sparkrun.command_shown(shown.replace("300000", "1")) != sparkrun.command(deployment)
    assert sparkrun.command_shown("nothing of the kind") == []


def test_ssh_goes_where_ansible_goes(deployment: Document) -> None:
    reach = {"spark-147": {"host": "spark-147.lan", "port": 2222, "key": "/home/me/key"}}
    assert (
        "Host 192.168.1.147\n  HostName spark-147.lan\n  Port 2222\n  IdentityFile /home/me/key\n"
        in sparkrun.ssh_config(deployment, reach)
    )


def labelled(deployment: Document, rank: int) -> dict[str, str]:
    job = sparkrun.job(deployment)
    theirs = {
        "sparkrun.cluster_id": job,
        "sparkrun.rank": str(rank),
        "sparkrun.model": "/data/models/deepseek-v4.1-flash",
    }
    return sparkrun.labels(deployment, "R") | theirs


def test_a_rank_is_ours_whoever_started_it(deployment: Document) -> None:
    name = f"{sparkrun.job(deployment)}_node_3"
    ours, foreign = labelled(deployment, 3), {"sparkrun.cluster_id": "sparkrun_x"}
    listed = [
        {"Names": ["/gb10-rank"], "State": "exited", "Labels": {}},
        {"Names": [f"/{name}"], "State": "running", "Labels": ours},
        {"Names": ["/" + name.replace("node_3", "solo")], "State": "running", "Labels": ours},
        {"Names": ["/sparkrun_0123456789abcdef_0123456789ab_node_0"], "State": "running", "Labels": foreign},
        {"Names": ["/gb10-rank-2"], "State": "running", "Labels": {}},
    ]
    assert rank_container.names(listed, "gb10-rank") == [name, "gb10-rank"]
    assert rank_container.labels(ours)[deploy.LABEL_RANK] == "3"


def states(deployment: Document, launcher: str) -> Document:
    return {
        rank["node"]: {
            "exists": True,
            "running": True,
            "image_id": IMAGE,
            "labels": rank_container.labels(labelled(deployment, rank["rank"]))
            if launcher == "sparkrun"
            else deploy.container(deployment, rank, "R")["labels"],
        }
        for rank in deployment["ranks"]
    }


@pytest.mark.parametrize("started", ["docker", "sparkrun"])
@pytest.mark.parametrize("wanted", ["docker", "sparkrun"])
def test_another_launcher_restarts_all_ranks(deployment: Document, started: str, wanted: str) -> None:
    reasons = deploy.restart_reasons({**deployment, "launcher": wanted}, states(deployment, started))
    assert len(reasons) == (0 if started == wanted else 8)
    assert all("another launcher is asked for" in reason for reason in reasons)


def test_a_running_rank_of_sparkruns_differs_in_nothing(deployment: Document) -> None:
    rank = deployment["ranks"][1]
    made = {
        "argv": ["bash", "-c", "..."],
        "env": rank["env"] | {"CUTE_DSL_ARCH": "sm_121a", "HF_HOME": "/cache/huggingface"},
        "env_of_image": {},
        "ulimits": rank["ulimits"],
        "cap_add": rank["cap_add"],
        "devices": rank["devices"],
        "gpus": "0",
        "mounts": [
            *({**mount, "read_only": False} for mount in rank["mounts"]),
            {"source": "/var/cache/gb10/sparkrun", "target": "/cache/huggingface", "read_only": False},
        ],
        "memory_bytes": 112 << 30,
        "shm_bytes": 8 << 30,
    }
    labels = rank_container.labels(labelled(deployment, 1))
    container = {"ours": True, "image_id": IMAGE, "labels": labels, "made_from": made}
    running = diff.running_rank({"docker": {"containers": [container]}})
    planned = rank | {"profile": "tp8-300k"}
    assert diff.fields(planned, running) == []
    made["env"]["NCCL_BUFFSIZE"] = "1"
    running = diff.running_rank(json.loads(json.dumps({"docker": {"containers": [container]}})))
    assert [change.field for change in diff.fields(planned, running)] == ["env NCCL_BUFFSIZE"]


@pytest.mark.parametrize(
    ("command", "asleep"),
    [("bash --noprofile --norc /tmp/sparkrun_serve.sh", False), ("sleep infinity", True)],
)
def test_a_container_without_an_engine_is_no_running_rank(deployment: Document, command: str, asleep: bool) -> None:
    """sparkrun's containers sleep from the start, and go on when it gives up half-way."""
    top = {"Titles": ["UID", "CMD"], "Processes": [["root", "/sbin/docker-init -- bash"], ["root", command]]}
    assert rank_container.asleep(labelled(deployment, 0), lambda: top) is asleep
    assert rank_container.asleep({"gb10.rank": "0"}, lambda: None) is False
    found = states(deployment, "sparkrun")
    if asleep:
        found["spark-147"] |= {"running": False, "status": rank_container.ASLEEP}
    reasons = deploy.restart_reasons(deployment, found)
    assert reasons == (["spark-147: no engine runs in its container"] if asleep else [])
