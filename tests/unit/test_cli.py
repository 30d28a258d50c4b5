"""The command gb10 as it is typed: the playbook's plan, and one readable line for everything that is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from gb10_node import spark
from support import ROOT

from gb10 import cli, files
from gb10.diff import options

BIN = Path(sys.executable).parent
HOSTS = ROOT / "inventory/hosts.yml"
PROFILES = ("tp8-300k", "tp8-1m", "tp4-300k")
P = ("--profile", "tp8-300k")
# Those that take a file, a directory or a name.
OPTIONS = ("--inventory", "--profile", "--compare", "--diff", "--against", "--output", "--plot", "--model-config")

Said = tuple[int, str, str]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Any:
    """`gb10 plan` in this process: status, stdout, stderr. A traceback would be an exception here."""

    def run(*args: Any, inventory: Path | None = HOSTS) -> Said:
        given = ["-i", str(inventory)] if inventory else []
        status = cli.main(["plan", *given, *map(str, args)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def command(*args: Any, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, with nothing on its path: no node could be asked."""
    environment = {"PATH": "/nonexistent", "HOME": str(cwd), "LC_ALL": "C.UTF-8"} | (env or {})
    return subprocess.run(
        [BIN / "gb10", *map(str, args)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def by_playbook(inventory: Path, tmp_path: Path, *overrides: str) -> bytes:
    """What playbooks/plan.yml writes."""
    target = tmp_path / "by-playbook.json"
    given = [word for text in overrides for word in ("-e", text)]
    line = [BIN / "ansible-playbook", "-i", inventory, ROOT / "playbooks/plan.yml", "-e", f"plan_file={target}", *given]
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert target.exists(), done.stdout[-3000:] + done.stderr[-2000:]
    return target.read_bytes()


def cluster(folder: Path, number: int = 1, count: int = 8, **variables: Any) -> Path:
    """An inventory with variables in all the places they may be in."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = {f"c{number}-n{n}": {"ansible_host": f"10.1.{number}.{n + 1}", "node_rank": n} for n in range(count)}
    path = folder / f"cluster-{number}.yml"
    path.write_text(yaml.safe_dump({"gb10": {"hosts": nodes, "vars": variables}}))
    return path


def elaborate(folder: Path) -> Path:
    """An inventory that uses what Ansible offers: a group over the profile, group_vars, host_vars, templates."""
    hosts = {f"n{n}": {"ansible_host": f"10.2.0.{n + 1}", "node_rank": "{{ own_rank }}"} for n in range(8)}
    (folder / "group_vars").mkdir(parents=True)
    (folder / "host_vars").mkdir()
    (folder / "group_vars/site.yml").write_text(
        "served: flash\nserved_model_name: '{{ served }}-{{ cluster_name }}'\nmax_num_seqs: 4\n"
        "container_env: {SITE: '{{ groups.gb10 | length }} nodes of {{ inventory_dir | basename }}'}\n"
    )
    for n, name in enumerate(hosts):
        (folder / f"host_vars/{name}.yml").write_text(f"own_rank: {7 - n}\nfabric_address: 10.3.0.{n + 1}\n")
    (folder / "host_vars/n3.yml").write_text("own_rank: 4\nnccl_ib_hca: rocep1s0f1\nfabric_address: 10.3.0.4\n")
    site = {"hosts": hosts, "vars": {"ansible_group_priority": 100}}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gb10": {"children": {"site": site}}}))
    return folder / "hosts.yml"


# --- the same plan as the playbook's --------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_the_json_is_the_golden_which_the_playbook_writes_too(plan: Any, profile: str) -> None:
    status, out, _ = plan("--profile", profile, "--format", "json")
    assert status == 0
    assert out == (ROOT / f"tests/golden/{profile}.json").read_text()


def test_precedence_templates_and_overrides_are_ansibles(plan: Any, tmp_path: Path) -> None:
    inventory = elaborate(tmp_path / "site")
    (tmp_path / "more.yml").write_text("max_model_len: '{{ 200 * 1000 }}'\ncontainer_shm_size: 1g\n")
    given = [
        "gpu_memory_utilization='0.78' container_shm_size=4g",
        '{"profile_env": {"VLLM_FLASHINFER_AUTOTUNE": "0", "Z": "0644"}}',
        "{memory_reserve_gib: '{{ 5 + 2 }}'}",
        f"@{tmp_path / 'more.yml'}",
    ]
    status, out, err = plan(
        "--profile", "tp8-300k", *(w for e in given for w in ("-e", e)), "--format", "json", inventory=inventory
    )
    assert (status, "error" in err) == (0, False)
    assert out.encode() == by_playbook(inventory, tmp_path, "profile=tp8-300k", *given)
    document = json.loads(out)
    first = document["ranks"][0]
    assert (document["head"], first["address"], first["shm_size"]) == ("n7", "10.3.0.8", "1g")
    assert first["env"] | {"SITE": "8 nodes of site", "Z": "0644"} == first["env"]
    argv = options(first["argv"])
    assert argv | {"--max-num-seqs": "4", "--max-model-len": "200000", "--served-model-name": "flash-gb10"} == argv


def test_what_the_playbook_refuses_is_refused_with_the_same_findings(plan: Any, tmp_path: Path) -> None:
    inventory = cluster(tmp_path, count=7, serve_max_model_length=1)
    given = ["gpu_memory_utilisation=0.8", "max_model_len=1M"]
    status, out, err = plan(*P, *(w for e in given for w in ("-e", e)), "--format", "json", inventory=inventory)
    assert status == 1
    assert out.encode() == by_playbook(inventory, tmp_path, "profile=tp8-300k", *given)
    said = [line.split("]")[0] for line in err.splitlines() if line.startswith("error")]
    assert sorted(said) == sorted(
        f"error [{code}" for code in ("variable-unknown", "variable-unknown", "setting-invalid", "world-size")
    )


def test_from_another_directory_with_relative_paths_and_no_program_in_reach(tmp_path: Path) -> None:
    cluster(tmp_path)
    (tmp_path / "more.yml").write_text("max_num_seqs: 4\n")
    done = command("plan", "-i", "cluster-1.yml", *P, "-e", "@more.yml", "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Plan of profile tp8-300k\n")
    assert '"--max-num-seqs",\n        "4"' in (tmp_path / "plan.json").read_text()


def test_the_default_inventory_is_that_of_ansible_cfg(tmp_path: Path) -> None:
    done = command("plan", *P, "--format", "json", cwd=tmp_path)
    assert done.stdout == (ROOT / "tests/golden/tp8-300k.json").read_text(), done.stderr


def test_two_default_inventories_are_two_clusters(tmp_path: Path) -> None:
    both = ",".join(str(cluster(tmp_path, number)) for number in (1, 2))
    done = command("plan", *P, "--format", "json", cwd=tmp_path, env={"ANSIBLE_INVENTORY": both})
    assert [len(x["plan"]["ranks"]) for x in json.loads(done.stdout)] == [8, 8], done.stderr


def test_the_profile_may_stand_in_the_inventory_or_in_an_override(plan: Any, tmp_path: Path) -> None:
    golden = (ROOT / "tests/golden/tp8-1m.json").read_text()
    assert plan("-e", "profile=tp8-1m", "--format", "json")[1] == golden
    status, out, _ = plan("--format", "json", inventory=cluster(tmp_path, profile="tp8-1m"))
    assert (status, json.loads(out)["profile"]) == (0, "tp8-1m")


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_table_has_memory_ranks_and_warnings(plan: Any) -> None:
    status, out, err = plan(*P)
    assert (status, err) == (0, "")
    for words in ("96.80", "85.65", "11.15", "2.45", "spark-148", "warning [image-unpinned]"):
        assert words in out


def test_each_inventory_is_a_cluster_of_its_own(plan: Any, tmp_path: Path) -> None:
    one, two = cluster(tmp_path, 1), cluster(tmp_path, 2, count=7)
    status, out, err = plan(*P, "-i", two, inventory=one)
    assert status == 1
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["inventory", str(one), str(two)]
    assert "c1-n0" in out.splitlines()[1]
    assert out.count("warning [image-unpinned]") == 1
    assert err.startswith(f"{two}: error [world-size]")
    assert err.count("\n") == 1
    listed = json.loads(plan(*P, "-i", two, "--format", "json", inventory=one)[1])
    assert [(x["inventory"], len(x["plan"]["ranks"])) for x in listed] == [(str(one), 8), (str(two), 0)]
    assert listed[0]["plan"] == json.loads(plan(*P, "--format", "json", inventory=one)[1])


def test_two_profiles_stand_side_by_side(plan: Any) -> None:
    status, out, _ = plan(*P, "--compare", "tp8-1m")
    assert status == 0
    assert plan("-e", "profile=tp8-300k", "--compare", "tp8-1m")[1] == out
    assert out.splitlines()[0].split() == ["tp8-300k", "tp8-1m"]
    assert plan(*P, "--profile", "tp8-1m")[1] == out
    made = json.loads(plan(*P, "--compare", "tp8-1m", "--format", "json")[1])
    assert made["profiles"] == ["tp8-300k", "tp8-1m"]
    assert {
        "section": "plan",
        "what": "--max-model-len",
        "left": "300000",
        "right": "1048576",
        "differs": True,
    } in made["lines"]


# --- nodes and what runs there ---------------------------------------------------------------------------------------


def facts_file(tmp_path: Path, names: Iterable[str], **more: Any) -> Path:
    (tmp_path / "tree").mkdir(exist_ok=True)
    files.write_facts(str(tmp_path / "facts.json"), dict.fromkeys(names, spark(**more).facts(tmp_path / "tree")))
    return tmp_path / "facts.json"


NODES = tuple(yaml.safe_load(HOSTS.read_text())["gb10"]["hosts"])


def test_against_real_nodes_their_memory_counts(plan: Any, tmp_path: Path) -> None:
    small = {"MemTotal": 100 << 20, "MemAvailable": 60 << 20, "CmaTotal": 0, "CmaFree": 0}
    status, out, err = plan(*P, "--against", facts_file(tmp_path, NODES, meminfo=small), "--format", "json")
    assert status == 1
    assert "error [memory-not-available] spark-153" in err
    assert out != (ROOT / "tests/golden/tp8-300k.json").read_text()


def test_a_file_of_facts_is_the_operators_alone(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("")
    (tmp_path / "facts.json").chmod(0o644)
    assert facts_file(tmp_path, NODES).stat().st_mode & 0o777 == 0o600


def test_what_a_deploy_would_change(plan: Any, tmp_path: Path) -> None:
    golden = ROOT / "tests/golden/tp8-300k.json"
    assert plan(*P, "--diff", golden)[:2] == (0, "Nothing would change.\n")
    status, out, _ = plan(*P, "--diff", golden, "-e", "max_num_seqs=6")
    assert status == 0
    assert "argv --max-num-seqs: 8 -> 6" in out
    assert "spark-153, spark-147" in out
    made = json.loads(plan(*P, "--diff", golden, "-e", "max_num_seqs=6", "--format", "json")[1])
    assert {"field": "argv --max-num-seqs", "running": "8", "planned": "6"} in made["nodes"]["spark-148"]
    out = plan(*P, "--diff", facts_file(tmp_path, NODES))[1]
    assert "spark-148:\n  rank: none -> 7" in out


@pytest.mark.parametrize("option", ["--against", "--diff"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "neither facts nor a plan"),
        ('{"schema": 2, "nodes": {}}', "its schema is 2"),
        ('{"schema": 1, "nodes": {}}', "no facts of spark-147"),
        ('{"schema": 1, "nodes": []}', "no file of facts"),
        ('{"schema": 1, "nodes": {"spark-153": {"schema": 7}}}', "the facts of spark-153"),
    ],
)
def test_a_file_that_is_none_of_facts_is_refused(
    plan: Any, tmp_path: Path, option: str, content: str | None, said: str
) -> None:
    path = tmp_path / "facts.json"
    if content is not None:
        path.write_text(content)
    status, out, err = plan(*P, option, path)
    assert (status, out) == (1, "")
    assert said in err
    assert [line for line in err.splitlines() if line.startswith("error")] == [
        line for line in err.splitlines() if "[facts-file-unusable]" in line
    ]


def test_a_file_that_is_wrong_deep_in_it_is_named(plan: Any, tmp_path: Path) -> None:
    golden = json.loads((ROOT / "tests/golden/tp8-300k.json").read_text())
    wrong: list[Any] = [{k: v for k, v in golden.items() if k != "profile"}]
    for change in (
        {"argv": "x"}, {"argv": [1]}, {"env": []}, {"ulimits": [1]}, {"devices": [{}, 1]}, {"mounts": [{}]}, {"node": 5}
    ):  # fmt: skip
        wrong.append(golden | {"ranks": [golden["ranks"][0] | change]})
    seen = json.loads(facts_file(tmp_path, NODES).read_text())
    ours = {"ours": True, "labels": [1], "made_from": {"env": []}}
    for part in ({"docker": "x"}, {"docker": {"containers": [1]}}, {"docker": {"containers": [ours]}}, {"links": [1]}):
        wrong.append(seen | {"nodes": seen["nodes"] | {"spark-158": seen["nodes"]["spark-158"] | part}})
    for number, document in enumerate(wrong):
        (tmp_path / "wrong.json").write_text(json.dumps(document))
        status, out, err = plan(*P, "--diff", tmp_path / "wrong.json")
        (last,) = [line for line in err.splitlines() if line.startswith("error")]
        assert (status, out) == (1, ""), number
        assert "wrong.json: " in last
        assert "not the form" in last


def test_a_plan_without_ranks_is_nothing_to_compare_with(plan: Any, tmp_path: Path) -> None:
    for ranks in ("[]", '[{"rank": 0}]'):
        (tmp_path / "plan.json").write_text(f'{{"schema": 1, "profile": "x", "ranks": {ranks}}}')
        status, _, err = plan(*P, "--diff", tmp_path / "plan.json")
        assert (status, "[facts-file-unusable]" in err) == (1, True)
    assert "[facts-file-unusable]" in plan(*P, "--against", ROOT / "tests/golden/tp8-1m.json")[2]


# --- what is given wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (
            ("--profile", "tp8-300K"),
            1,
            "error [profile-unknown] There is no profile 'tp8-300K'. Did you mean tp8-300k?",
        ),
        (("--profile", "x"), 1, "The profiles are: tp4-300k, tp8-1m, tp8-300k."),
        ((), 1, "error [profile-missing]"),
        ((*P, "--compare", "x"), 1, "error [profile-unknown]"),
        ((*P, "-e", "x"), 2, "gb10: -e x: 'x' is no KEY=VALUE."),
        ((*P, "-e", "{a"), 2, "gb10: -e {a: YAML parsing failed"),
        ((*P, "-e", "[1]"), 2, "gb10: -e [1]: Invalid extra vars data"),
        ((*P, "-e", "@/nope.yml"), 2, "gb10: -e @/nope.yml: no such file."),
        ((*P, "-e", "{x" * 3000), 2, "...: YAML parsing failed"),
        (
            (*P, "-e", "max_model_len={{ 10**5000 }}"),
            1,
            "max_model_len must be plain YAML, not a number of more than 64",
        ),
        (("--compare", "tp8-1m"), 1, "error [profile-missing]"),
        *(((*P, option, ""), 2, f"gb10: {option} is given but empty.") for option in OPTIONS),
        ((*P, "-e", "/nope.yml"), 2, "Please prepend extra_vars filename"),
        ((*P, "-e", "{max_num_seqs: '{{ nope }}'}"), 1, "error [variable-broken] spark-153: max_num_seqs"),
        ((*P, "-e", "{api_host: 2020-01-01}"), 1, "api_host must be plain YAML, not a date. Quote it."),
        ((*P, "-e", "profile=tp8-1m"), 2, "contradict each other"),
        ((*P, "-e", "plan_file=x.json"), 2, "give -o FILE"),
        ((*P, "-o", "/nonexistent/plan.json"), 1, "error [plan-file-unwritable]"),
        ((*P, "-i", "/nope"), 2, "gb10: inventory /nope: no such file."),
        ((*P, "--format", "xml"), 2, "invalid choice: 'xml'"),
        ((*P, "--compare", "tp8-1m", "--diff", "x"), 2, "not allowed with"),
        ((*P, "--profile", "tp8-1m", "--diff", "x"), 2, "--diff takes one profile."),
        ((*P, "--profile", "tp8-1m", "--compare", "tp4-300k"), 2, "not 3."),
        ((*P, "-i", HOSTS, "--against", "x"), 2, "--against takes one inventory, not 2."),
        ((*P, "--vault-password-file", "/nope"), 2, "the vault password cannot be read"),
        ((*P, "--frobnicate"), 2, "unrecognized arguments: --frobnicate. See gb10 --help."),
        ((*P, "--model-config", "/nope/config.json"), 1, "/nope/config.json"),
        ((*P, "-e", "images_source=/nope"), 1, "error [images-source-unreadable]"),
    ],
)
def test_it_is_said_in_one_line(plan: Any, args: tuple[Any, ...], status: int, said: str) -> None:
    ended, _, err = plan(*args)
    lines = [line for line in err.splitlines() if "warning [" not in line]
    assert (ended, len(lines)) == (status, 1), err
    assert said in lines[0]


@pytest.mark.parametrize(
    ("name", "content", "status", "said"),
    [
        ("a.yml", "gb10:\n  hosts:\n   a: [\n", 2, "cannot be parsed: YAML parsing failed"),
        ("a.yml", "[]\n", 2, "cannot be parsed"),
        ("a.ini", "[gb10\nx\n", 2, "cannot be parsed"),
        ("a.yml", "all: {hosts: {a: {}}}\n", 1, "error [no-nodes] Group gb10 of"),
        ("a.yml", "gb10: {hosts: {}}\n", 1, "error [no-nodes] Group gb10 of"),
    ],
)
def test_an_inventory_that_is_none(plan: Any, tmp_path: Path, name: str, content: str, status: int, said: str) -> None:
    (tmp_path / name).write_text(content)
    ended, out, err = plan(*P, inventory=tmp_path / name)
    assert (ended, out, err.count("\n")) == (status, "", 1), err
    assert said in err
    assert str(tmp_path / name) in err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("group_vars/gb10.yml", b"a: 1\n  b: 2\n", "Mapping values are not allowed in this context ({}:2:4)."),
        ("group_vars/gb10.yml", b"a: \xff\n", "it is no UTF-8 text ({})."),
        (
            "group_vars/gb10.yml",
            b"max_num_seqs: '{{ nope }}'\n",
            "max_num_seqs cannot be read: 'nope' is undefined ({}:1:15).",
        ),
        ("cluster-1.yml", b"gb10: {hosts: {a\xe9: {}}}\n", "{} cannot be parsed: it is no UTF-8 text."),
        ("cluster-1.sh", b"#!/bin/sh\necho x; exit 3\n", "Inventory script returned non-zero exit code 3."),
    ],
)
def test_the_file_at_fault_is_named(plan: Any, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    inventory = cluster(tmp_path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    _, _, err = plan(*P, inventory=path if path.parent == tmp_path else inventory)
    (last,) = [line for line in err.splitlines() if line.startswith(("gb10:", "error"))]
    assert said.format(path) in last


def test_a_vault_needs_its_password(tmp_path: Path) -> None:
    vault = VaultLib([("default", VaultSecret(b"open"))])
    (tmp_path / "vault.yml").write_bytes(vault.encrypt("max_num_seqs: 4\n"))
    for name, text in (("right", "open"), ("wrong", "shut")):
        (tmp_path / name).write_text(text + "\n")

    def given(*more: str) -> subprocess.CompletedProcess[str]:
        return command("plan", *P, "-e", "@vault.yml", "-o", "plan.json", *more, cwd=tmp_path)

    for refused in (given(), given("--vault-password-file", "wrong")):
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert "vault" in refused.stderr
    assert given("--vault-password-file", "right").returncode == 0
    assert '"--max-num-seqs",\n        "4"' in (tmp_path / "plan.json").read_text()


def test_a_secret_the_plan_does_not_read_needs_no_password(plan: Any, tmp_path: Path) -> None:
    vault = VaultLib([("default", VaultSecret(b"open"))])
    inventory = cluster(tmp_path)
    (tmp_path / "group_vars").mkdir()
    text = vault.encrypt("s3cret").decode().replace("\n", "\n  ").rstrip()
    (tmp_path / "group_vars/gb10.yml").write_text(f"api_token: !vault |\n  {text}\n")
    status, out, err = plan(*P, inventory=inventory)
    assert (status, err) == (0, "")
    assert "s3cret" not in out


def test_help_and_version() -> None:
    assert command("--version").stdout == "gb10 0.1.0\n"
    shown = command("plan", "--help")
    assert shown.returncode == 0
    assert "exit status" in shown.stdout
    nothing = command()
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)


def test_outside_of_a_checkout_it_says_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src/gb10", tmp_path / "lib/python/gb10")
    done = subprocess.run(
        [sys.executable, "-m", "gb10.cli", "plan", *P],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "lib/python"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "error [checkout-missing]" in done.stderr
    inside = subprocess.run(
        [sys.executable, "-m", "gb10.cli", "plan", *P, "--format", "json"],
        cwd=ROOT / "docs",
        env={"PYTHONPATH": str(tmp_path / "lib/python"), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert inside.stdout == (ROOT / "tests/golden/tp8-300k.json").read_text(), inside.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [BIN / "gb10", "plan", *P, "--format", "json"],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("more", [(), ("--format", "json")])
def test_a_full_disk_is_said_and_no_traceback(more: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        line = [BIN / "gb10", "plan", *P, *more]
        done = subprocess.run(line, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "gb10: standard output: No space left on device."
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "status"),
    [('exec "$@" >&-', 0), ('mkdir gone && cd gone && rmdir ../gone && exec "$@"', 1)],
)
def test_no_output_and_no_directory_to_work_in_are_no_tracebacks(tmp_path: Path, script: str, status: int) -> None:
    line = ["/bin/sh", "-c", script, "sh", BIN / "gb10", "plan", *P]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert ("The working directory is gone" in done.stderr) == bool(status)


def test_interrupted_it_ends_in_one_line(tmp_path: Path) -> None:
    """An inventory script that never answers, and Ctrl-C."""
    script = tmp_path / "inventory.sh"
    script.write_text(f"#!/bin/sh\necho started > {tmp_path}/started\nexec sleep 60\n")
    script.chmod(0o755)
    with subprocess.Popen(
        [BIN / "gb10", "plan", "-i", script, *P],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            break
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "gb10: interrupted\n")


def test_pictures_are_drawn_of_what_was_planned(plan: Any, tmp_path: Path) -> None:
    status, _, err = plan(*P, "--compare", "tp8-1m", "--plot", tmp_path / "plots")
    assert status == 0
    drawn = sorted((tmp_path / "plots").iterdir())
    assert {path.suffix for path in drawn} == {".png", ".svg"}
    assert all(str(path) in err for path in drawn)
    assert b"tp8-1m" in b"".join(path.read_bytes() for path in drawn if path.suffix == ".svg")
    (tmp_path / "file").write_text("")
    status, _, err = plan(*P, "--plot", tmp_path / "file")
    assert (status, "--plot" in err) == (2, True)
