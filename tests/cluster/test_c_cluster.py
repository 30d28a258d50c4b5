"""The main job on eight nodes with a real engine: deployed, left alone, switched, interrupted, recovered."""

from __future__ import annotations

import gzip
import json
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from lab_run import (
    API_KEY,
    BIN,
    BOOT,
    INVENTORY,
    KEY_FILE,
    identities,
    inventory_hosts,
    molecule,
    on_node,
    play,
    play_command,
    ranks,
    recap,
    run,
    running,
)
from proxy import KEY, free_port, proxy
from support import ROOT

from gb10 import runs as history_runs
from gb10.ledger import Ledger

COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"


def profiles(found: dict[str, dict[str, object]]) -> set[str]:
    return {rank["Config"]["Labels"]["gb10.profile"] for rank in found.values()}  # type: ignore[index]


def until_said(process: subprocess.Popen[str], words: str, seconds: int) -> None:
    """Reads a running playbook's output up to ``words``."""
    assert process.stdout
    end = time.monotonic() + seconds
    said = ""
    for line in process.stdout:
        said += line
        if words in line:
            return
        assert time.monotonic() < end, said[-3000:]
    raise AssertionError(f"it ended before it said {words!r}:\n{said[-3000:]}")


def start_order(names: Iterable[str]) -> list[str]:
    found = ranks()
    return sorted(names, key=lambda name: found[name]["State"]["StartedAt"])


def test_cluster_scenario() -> None:
    """site.yml: check, converge, idempotence, testinfra on all nodes."""
    molecule("test", "cluster", seconds=2 * BOOT)


def test_workers_started_from_the_highest_rank_down_and_the_head_last() -> None:
    found = ranks()
    by_rank = {int(rank["Config"]["Labels"]["gb10.rank"]): name for name, rank in found.items()}
    assert start_order(found) == [by_rank[n] for n in (7, 6, 5, 4, 3, 2, 1, 0)]


def cache_config(head: dict[str, Any]) -> dict[str, str]:
    """What the endpoint of the plan's first rank says of its KV cache."""
    port = head["argv"][head["argv"].index("--port") + 1]
    with urlopen(f"http://{head['address']}:{port}/metrics", timeout=30) as answer:
        (labels,) = re.findall(r"^vllm:cache_config_info{(.*)} 1\.0$", answer.read().decode(), re.M)
    return dict(re.findall(r'(\w+)="([^"]*)"', labels))


def test_the_engine_has_the_kv_cache_the_plan_predicts(tmp_path: Path) -> None:
    """Blocks, tokens and requests of full length; the plan rounds the last, blocks over blocks a request does not."""
    planned = play("playbooks/plan.yml", "-e", f"plan_file={tmp_path / 'plan.json'}")
    assert planned.returncode == 0, planned.stdout[-3000:]
    plan = json.loads((tmp_path / "plan.json").read_text())
    memory, engine = plan["memory"], plan["memory"]["engine"]
    held = cache_config(plan["ranks"][0])
    assert int(held["num_gpu_blocks"]) == engine["kv_blocks"]
    assert int(held["kv_cache_size_tokens"]) == engine["kv_tokens"]
    requests = float(held["kv_cache_max_concurrency"])
    assert requests == engine["kv_blocks"] / memory["blocks_per_request"]
    assert round(requests, 4) == engine["requests"]


def test_second_run_disturbs_nothing() -> None:
    before = identities()
    done = play("site.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert {node: numbers["changed"] for node, numbers in recap(done).items()} == dict.fromkeys(recap(done), 0)
    assert COUNTED in done.stdout
    assert identities() == before


def test_check_mode_of_another_profile_predicts_and_changes_nothing() -> None:
    before = identities()
    done = play("site.yml", "--check", profile="tp8-1m")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "the plan changed" in done.stdout
    assert identities() == before


def test_the_command_says_what_a_deploy_would_change(tmp_path: Path) -> None:
    """`gb10 plan --diff` of what Docker tells on eight nodes; kept also when a finding stops the run."""
    facts = tmp_path / "facts.json"
    for more, status in (((), 0), (("-e", "preflight_arch=riscv64"), 2)):
        facts.unlink(missing_ok=True)
        done = play("playbooks/preflight.yml", "-e", f"facts_file={facts}", *more)
        assert done.returncode == status, done.stdout[-3000:]
        assert facts.stat().st_mode & 0o777 == 0o600
    command = [BIN / "gb10", "plan", "-i", INVENTORY, "--profile", "tp8-300k", "--diff", facts]
    same = run(command, 60)
    assert (same.returncode, same.stdout) == (0, "Nothing would change.\n"), same.stderr
    other = run([*command, "-e", "max_num_seqs=4"], 60)
    assert "argv --max-num-seqs: 8 -> 4" in other.stdout
    assert "A deploy stops and starts every rank" in other.stdout


def test_status_and_verify() -> None:
    status = play("playbooks/status.yml")
    assert status.returncode == 0, status.stdout[-3000:]
    assert status.stdout.count("running") >= 8
    assert status.stdout.count(" ready ") >= 8
    assert "The endpoint answers right." in status.stdout
    verified = play("playbooks/verify.yml")
    assert verified.returncode == 0, verified.stdout[-3000:]
    assert COUNTED in verified.stdout


def asked(port: int, certificate: Path, key: str, path: str = "/v1/chat/completions") -> tuple[int, list[str]]:
    """Status of a streamed completion through the proxy, and its chunks."""
    prompt = {"role": "user", "content": "Count from 1 to 10."}
    body = {"model": "deepseek-v4.1-flash", "messages": [prompt], "stream": True, "max_tokens": 40, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = Request(f"https://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=120, context=ssl.create_default_context(cafile=str(certificate))) as answer:
            return answer.status, [line.decode() for line in answer if line.startswith(b"data: {")]
    except HTTPError as error:
        return error.code, []


def test_the_proxy_of_the_docs(tmp_path: Path) -> None:
    """docs/proxy.md: TLS, keys, one of two clusters away, chunk by chunk, nothing but the API."""
    away = f"127.0.0.1:{free_port()}"
    with proxy(tmp_path, away, "10.77.1.153:8000") as (port, certificate):
        for _ in range(2):  # whichever of the two is asked first
            status, chunks = asked(port, certificate, KEY)
            assert status == 200
            said = "".join(json.loads(chunk[6:])["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            assert COUNTED in said
            assert len(chunks) > 10
        assert asked(port, certificate, "another")[0] == 401
        assert asked(port, certificate, KEY, "/metrics")[0] == 404
    assert KEY not in (tmp_path / "gb10.log").read_text() + (tmp_path / "error.log").read_text()
    with proxy(tmp_path, away) as (port, certificate):
        assert asked(port, certificate, KEY)[0] == 502


def test_a_node_lost_after_the_first_play_stops_all_before_any_rank_is_touched() -> None:
    """Case 20."""
    before = identities()
    command = play_command("site.yml", "-e", "max_num_seqs=4")
    with running(command) as process:
        until_said(process, "PLAY [Deploy]", 240)
        subprocess.run(["docker", "network", "disconnect", "gb10-lab", "spark-161"], check=True, timeout=60)
        try:
            rest = process.communicate(timeout=400)[0]
        finally:
            subprocess.run(
                ["docker", "network", "connect", "--ip", "10.77.1.161", "gb10-lab", "spark-161"], check=True, timeout=60
            )
    assert process.returncode != 0
    assert "spark-161" in rest
    assert "UNREACHABLE" in rest or "peer-unreached" in rest
    assert identities() == before


def test_interrupted_switch_is_finished_by_the_same_command() -> None:
    """Ctrl-C while ranks start; then the same command. All old ranks are gone before the first new one starts.

    Case 16: on one node the tag of the other profile's image is on another image: replaced by content.
    """
    before = identities()
    tagged = on_node("spark-157", "docker", "tag", ranks()["spark-157"]["Image"], "vllm-dsv41:latest")
    assert tagged.returncode == 0, tagged.stderr
    command = play_command("site.yml", profile="tp8-1m")
    with running(command) as process:
        until_said(process, "rank 6 on spark-166", 300)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode != 0
    assert not {held[0] for held in before.values()} & {held[0] for held in identities().values()}
    done = play("site.yml", profile="tp8-1m")
    assert done.returncode == 0, done.stdout[-3000:]
    assert COUNTED in done.stdout
    assert profiles(ranks()) == {"tp8-1m"}
    assert len({rank["Image"] for rank in ranks().values()}) == 1


def test_a_dead_rank_and_yesterdays_container_are_replaced_on_switching_back() -> None:
    """Case 21: node 5 holds a container of the rank's name that somebody started by hand.

    The endpoint gets an API key with it, and has one from here on.
    """
    image = ranks()["spark-162"]["Image"]
    on_node("spark-162", "docker", "rm", "-f", "gb10-rank")
    by_hand = on_node("spark-162", "docker", "run", "-d", "--name", "gb10-rank", image, "sleep", "3600")
    assert by_hand.returncode == 0, by_hand.stderr
    done = play("site.yml", key=API_KEY)
    assert done.returncode == 0, done.stdout[-3000:]
    assert COUNTED in done.stdout
    assert API_KEY not in done.stdout + done.stderr
    found = ranks()
    assert profiles(found) == {"tp8-300k"}
    assert {int(r["Config"]["Labels"]["gb10.rank"]) for r in found.values()} == set(range(8))


def models(key: str, path: str = "/v1/models") -> int:
    """What the endpoint answers who asks with this key, or with none."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"http://10.77.1.153:8000{path}", headers=headers), timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_the_endpoint_asks_for_its_key() -> None:
    assert [models(key) for key in ("", "another-0123456789", API_KEY)] == [401, 401, 200]
    assert models("", "/health") == 200


def test_the_key_is_in_its_file_and_in_the_heads_rank_and_nowhere_else() -> None:
    """On nodes: files, journals, process lists, containers; on the controller: all that is kept of runs.

    Docker's own directories hold every container's environment, for root alone.
    """
    found = ranks()
    assert f"VLLM_API_KEY={API_KEY}" in found["spark-153"]["Config"].pop("Env")
    assert API_KEY not in json.dumps(found)
    modes = on_node("spark-153", "stat", "-c", "%a %U", KEY_FILE, str(Path(KEY_FILE).parent)).stdout
    assert modes.splitlines() == ["600 root", "700 root"]
    for node in found:
        listed = on_node(node, "ps", "axww", "-o", "args").stdout
        assert ("vllm" in listed, API_KEY in listed) == (True, False)
        journal = on_node(node, "journalctl", "--no-pager", "--output", "json", seconds=120).stdout
        assert (len(journal) > 1000, API_KEY in journal) == (True, False)
        logged = on_node(node, "docker", "logs", "--tail", "5000", "gb10-rank")
        assert API_KEY not in logged.stdout + logged.stderr
        places = ["/etc", "/home", "/root", "/tmp", "/var/lib/gb10", "/var/log", "/var/tmp"]
        held = on_node(node, "grep", "-rlsF", "--devices=skip", API_KEY, *places, seconds=120)
        assert held.stdout.split() == ([KEY_FILE] if node == "spark-153" else []), node
    kept = [path for path in (ROOT / "history/lab").rglob("*") if path.is_file()]
    assert len(kept) > 10
    for path in kept:
        held_ = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert API_KEY.encode() not in held_, path


def test_a_kept_key_is_not_lost_and_another_one_restarts_the_ranks() -> None:
    before = identities()
    refused = play("site.yml")
    assert refused.returncode != 0
    assert "error [api-key-missing]" in " ".join((refused.stdout + refused.stderr).split())
    for more, key in (((), "another-0123456789"), (("-e", "serve_api_key_remove=true"), "")):
        checked = play("playbooks/serve.yml", "--check", *more, key=key)
        assert checked.returncode == 0, checked.stdout[-3000:]
        assert "spark-153: the API key changed" in checked.stdout
    same = play("playbooks/serve.yml", key=API_KEY)
    assert same.returncode == 0, same.stdout[-3000:]
    assert {numbers["changed"] for numbers in recap(same).values()} == {0}
    assert identities() == before
    assert models(API_KEY) == 200


def test_every_run_is_on_record_and_the_nodes_know_it() -> None:
    """The story of this module, told by the ledger; the anchors on the nodes and in their logs fit it."""
    ledger = Ledger(ROOT / "history/lab")
    chain = ledger.read(deep=True)
    assert [*chain.faults, *ledger.plan_faults(chain)] == []
    story = history_runs.runs(chain.entries)
    assert {"changed", "unchanged", "failed", "interrupted"} <= {one.outcome for one in story}
    newest, before = history_runs.last_deployment(story), history_runs.deployment_before(story)
    assert newest
    assert before
    assert (newest.text("profile"), before.text("profile")) == ("tp8-300k", "tp8-1m")
    assert set(newest.begin["images"].popitem()[1]) == set(inventory_hosts())
    held = {line.sequence: line.hash for line in chain.lines}
    known = set()
    for node in inventory_hosts():
        kept = json.loads(on_node(node, "cat", "/etc/ansible/facts.d/gb10_history.fact").stdout)
        known.add(kept["run"])
        assert held[kept["sequence"]] == kept["hash"]
        logged = on_node(node, "journalctl", "--no-pager", "--identifier", "gb10-history", "--lines", "1").stdout
        assert kept["hash"] in logged
    assert len(known) == 1
    said = {}
    for words in ("list", "now", "node spark-162", "blame max_num_seqs", f"diff {before.id} last", "verify"):
        told = run([BIN / "gb10", "history", *words.split(), "--ledger", ledger.folder], 60)
        assert (told.returncode, told.stderr) == (0, ""), words
        said[words] = told.stdout
    assert said["now"].startswith("tp8-300k, plan "), said["now"]
    assert "interrupted by SIGINT" in said["list"]
    assert "Every rank's container is made" in said["node spark-162"]
    assert "profile: tp8-1m -> tp8-300k" in said[f"diff {before.id} last"]
