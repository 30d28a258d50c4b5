"""What a ledger tells: runs, deployments, what runs now, what changed where, who set what; anchors against it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gb10 import anchors, runs, timeline, when
from gb10.findings import Finding
from gb10.history import Chain, Line, following, verify
from gb10.ledger import Ledger

BIN = Path(sys.executable).parent
NODES = ["n1", "n2", "n3"]


class Story:
    """A ledger with runs an hour apart."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder)
        self.hour = 0

    def time(self) -> str:
        return f"2026-11-{24 + self.hour // 24:02d}T{self.hour % 24:02d}:00:00Z"

    def run(
        self,
        playbook: str,
        outcome: str = "changed",
        plan: int | None = None,
        deployed: bool = True,
        touched: bool = False,
        **begin: Any,
    ) -> str:
        self.hour += 1
        run = f"{self.hour:03d}{playbook.removesuffix('.yml')}"
        body = {"kind": "begin", "schema": 1, "run": run, "time": self.time(), "playbook": playbook, "nodes": NODES}
        body |= {"operator": "alice", "controller": "laptop", "overrides": {}, "profile": "", "plan_hash": ""} | begin
        kept = None
        if plan is not None:
            body |= {"plan_hash": f"hash{plan}", "profile": "tp8-300k"}
            argv = ["serve", "/w", "--max-num-seqs", str(plan), "--trust-remote-code"]
            ranks = [{"node": n, "rank": i, "argv": argv, "env": {"NCCL_X": str(plan)}} for i, n in enumerate(NODES)]
            kept = {"schema": 1, "plan_hash": f"hash{plan}", "ranks": ranks, "settings": {"max_num_seqs": plan}}
        self.ledger.begin(body, kept)
        if touched or outcome == "changed":
            path = "roles/serve/tasks/stop.yml:1" if touched else "roles/docker/tasks/main.yml:3"
            items = [{"node": n, "seconds": 1.0, "diff": f"+{run} <b>on</b> {n}\n"} for n in NODES[:2]]
            change = {"kind": "change", "run": run, "time": self.time(), "task": "T <x>", "action": "a", "path": path}
            self.ledger.append(change | {"items": items})
        if deployed and plan is not None:
            self.ledger.append({"kind": "deployed", "run": run, "time": self.time(), "plan_hash": f"hash{plan}"})
        if outcome != "open":
            end = {"kind": "end", "run": run, "time": self.time(), "outcome": outcome, "signal": "", "seconds": 5.0}
            self.ledger.append(end | {"recording": 0.1, "stats": {}, "failed": [], "unreachable": []})
        return run

    @property
    def runs(self) -> list[runs.Run]:
        chain = self.ledger.read(deep=True)
        assert chain.faults == ()
        return runs.runs(chain.entries)


def ids(held: Any) -> list[str]:
    return [run.id for run in held]


def test_deployments_and_the_one_to_go_back_to(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert runs.last_deployment([]) is None
    assert runs.deployment_before([]) is None
    first = story.run("site.yml", plan=1)
    assert runs.deployment_before(story.runs) is None
    second = story.run("site.yml", plan=2)
    again = story.run("site.yml", "unchanged", plan=2)
    story.run("site.yml", "failed", plan=3, deployed=False)
    story.run("site.yml", "failed", plan=3)  # the record on a node failed after the deployment
    story.run("site.yml", "open", plan=4)
    story.run("prepare.yml", plan=5, deployed=False)
    held = story.runs
    assert ids(runs.deployments(held)) == [first, second, again]
    newest, before = runs.last_deployment(held), runs.deployment_before(held)
    assert newest
    assert before
    assert (newest.id, before.id) == (again, first)


def test_what_runs_now_and_since_when(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert runs.now([]).state == "nothing"
    story.run("site.yml", plan=1)
    second = story.run("serve.yml", plan=2)
    story.run("prepare.yml", "failed", plan=2, deployed=False)
    last = story.run("site.yml", "unchanged", plan=2)
    found = runs.now(story.runs)
    assert found.deployment
    assert found.since
    assert (found.state, found.deployment.id, found.since.id, found.unsure) == ("serving", last, second, ())
    broken = story.run("site.yml", "interrupted", plan=3, deployed=False, touched=True)
    found = runs.now(story.runs)
    assert (found.state, ids(found.unsure)) == ("unsure", [broken])
    stopped = story.run("stop.yml", touched=True)
    found = runs.now(story.runs)
    assert found.since
    assert (found.state, found.since.id, found.unsure) == ("stopped", stopped, ())
    served = story.run("serve.yml", plan=2)
    found = runs.now(story.runs)
    assert found.since
    assert (found.state, found.since.id) == ("serving", served), "not since before the stop"


def test_blame_follows_a_setting_an_option_and_an_environment_variable(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first = story.run("site.yml", plan=4)
    story.run("site.yml", "unchanged", plan=4)
    second = story.run("site.yml", plan=8, overrides={"max_num_seqs": 8}, operator="bob")
    third = story.run("site.yml", plan=4)
    plan = story.ledger.plan
    for name, values in (("max_num_seqs", [4, 8, 4]), ("--max-num-seqs", ["4", "8", "4"]), ("NCCL_X", ["4", "8", "4"])):
        found = runs.blame(story.runs, name, plan)
        assert [(one.run.id, one.value) for one in found] == list(zip((first, second, third), values, strict=True))
    assert [one.override for one in runs.blame(story.runs, "max_num_seqs", plan)] == [False, True, False]
    assert [one.value for one in runs.blame(story.runs, "--trust-remote-code", plan)] == [True]
    assert runs.blame(story.runs, "nonsense", plan) == []


def test_the_difference_of_two_runs_is_by_value(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run("site.yml", plan=4, overrides={"a": 1})
    story.run("site.yml", plan=8, overrides={"a": 2, "b": 1})
    old, new = story.runs
    plans = [story.ledger.plan(run.text("plan")) for run in (old, new)]
    found = runs.difference(old, new, *plans)
    assert ("overrides.a", 1, 2) in found
    assert ("overrides.b", None, 1) in found
    assert ("n1.argv.--max-num-seqs", "4", "8") in found
    assert ("settings.max_num_seqs", 4, 8) in found
    assert not [name for name, _old, _new in found if "trust-remote-code" in name]
    assert runs.difference(old, old, plans[0], plans[0]) == []


def test_changes_of_a_node_since(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first, second = story.run("prepare.yml"), story.run("images.yml")
    assert [one.run.id for one in runs.changes_of(story.runs, "n1")] == [first, second]
    assert [one.run.id for one in runs.changes_of(story.runs, "n1", "2026-11-24T02:00:00Z")] == [second]
    assert runs.changes_of(story.runs, "n3") == []


NOW = datetime(2026, 12, 3, 15, 30, tzinfo=UTC)  # a Thursday


@pytest.mark.parametrize(
    ("words", "time"),
    [
        ("tuesday", "2026-12-01T00:00:00Z"),
        ("Thursday", "2026-11-26T00:00:00Z"),
        ("friday", "2026-11-27T00:00:00Z"),
        ("today", "2026-12-03T00:00:00Z"),
        ("yesterday", "2026-12-02T00:00:00Z"),
        ("3d", "2026-11-30T15:30:00Z"),
        ("12h", "2026-12-03T03:30:00Z"),
        ("90m", "2026-12-03T14:00:00Z"),
        ("2026-11-30", "2026-11-30T00:00:00Z"),
        ("2026-11-30T10:00", "2026-11-30T10:00:00Z"),
        ("2026-11-30T10:00+02:00", "2026-11-30T08:00:00Z"),
    ],
)
def test_since(words: str, time: str) -> None:
    assert when.since(words, NOW) == time


@pytest.mark.parametrize("words", ["", "someday", "3x", "2026-13-01", "d"])
def test_no_time(words: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        when.since(words, NOW)


# --- anchors ---------------------------------------------------------------------------------------------------------


def said(found: list[Finding]) -> set[tuple[str, str, str]]:
    return {(f.level, f.code, f.node) for f in found}


def kept(story: Story, at: int = -1) -> dict[str, Any]:
    """What a node keeps of one of the runs."""
    begins = [line for line in story.ledger.read().lines if line.entry["kind"] == "begin"]
    return anchors.anchor(begins[at])


def everywhere(anchor: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(NODES, anchor)


def test_a_ledger_that_fits_the_nodes_says_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    assert anchors.anchor_findings({n: {} for n in NODES}, story.ledger.read()) == []
    story.run("prepare.yml")
    story.run("site.yml", "failed", deployed=False)  # never got to the nodes
    assert anchors.anchor_findings(everywhere(kept(story)), story.ledger.read()) == []
    assert anchors.anchor_findings(everywhere(kept(story, 0)), story.ledger.read()) == []


def test_a_fresh_checkout_is_a_warning(tmp_path: Path) -> None:
    story = Story(tmp_path / "a")
    story.run("prepare.yml")
    found = anchors.anchor_findings(everywhere(kept(story)), Story(tmp_path / "b").ledger.read())
    assert said(found) == {("warning", "history-fresh", "")}
    assert "alice@laptop" in found[0].message


def test_a_run_from_another_laptop_is_found_on_its_nodes(tmp_path: Path) -> None:
    mine, other = Story(tmp_path / "a"), Story(tmp_path / "b")
    mine.run("prepare.yml")
    other.run("prepare.yml", operator="bob", controller="desk")
    found = anchors.anchor_findings(everywhere(kept(mine)) | {"n2": kept(other)}, mine.ledger.read())
    assert said(found) == {("warning", "anchor-unknown", "n2")}
    assert "bob@desk" in found[0].message


def test_a_node_that_missed_a_run_is_found(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run("prepare.yml")
    old = kept(story)
    story.run("site.yml", plan=1)
    found = anchors.anchor_findings(everywhere(kept(story)) | {"n1": old, "n3": {}}, story.ledger.read())
    assert said(found) == {("warning", "anchor-behind", "n1"), ("warning", "anchor-behind", "n3")}
    assert "It missed 1 run, the last one site.yml" in found[0].message
    assert "It missed 2 runs" in found[1].message


def test_a_truncated_ledger_with_its_head_set_back_is_found(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.run("prepare.yml")
    head = (tmp_path / "head.json").read_bytes()
    newest = story.run("site.yml", plan=1)
    node = kept(story)
    (tmp_path / f"runs/{newest}.jsonl").unlink()
    (tmp_path / "head.json").write_bytes(head)
    chain = story.ledger.read(deep=True)
    assert chain.faults == (), "by itself it looks whole"
    assert said(anchors.anchor_findings(everywhere(node), chain)) == {("error", "ledger-truncated", n) for n in NODES}


@pytest.mark.parametrize("same_identity", [True, False])
def test_a_ledger_rewritten_as_a_whole_is_found(same_identity: bool, tmp_path: Path) -> None:
    """Every hash is right; only the nodes know better."""
    story = Story(tmp_path / "true")
    story.run("prepare.yml")
    story.run("site.yml", plan=1)
    node = kept(story)
    last: Line | None = None
    files: dict[str, str] = {}
    for line in story.ledger.read().lines:
        body = json.loads(line.text.replace('"alice"', '"mallory"'))
        if body["kind"] == "begin" and not same_identity:
            body["ledger"] = "f" * 32
        last = following(last, body)
        files[last.run] = files.get(last.run, "") + last.written() + "\n"
    assert last
    chain: Chain = verify(files, {"sequence": last.sequence, "hash": last.hash, "run": last.run}, deep=True)
    assert chain.faults == ()
    found = said(anchors.anchor_findings(everywhere(node), chain))
    level, code = ("error", "ledger-rewritten") if same_identity else ("warning", "anchor-unknown")
    assert found == {(level, code, n) for n in NODES}


# --- the command -----------------------------------------------------------------------------------------------------


def gb10(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "gb10", "history", *words, "--ledger", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = Story(tmp_path_factory.mktemp("held") / "rack")
    story.run("prepare.yml")
    story.run("site.yml", plan=4, overrides={"max_num_seqs": 4})
    story.run("site.yml", "failed", plan=8, deployed=False)
    story.run("site.yml", "open", plan=8, deployed=False)
    story.run("site.yml", plan=8, operator="bob")
    return story


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("list", ["001prepare", "no end yet", "bob@laptop", "2 of 3"]),
        ("show 002", ["max_num_seqs=4", "T <x>", "+002site <b>on</b> n1", "changed, deployed"]),
        ("verify", ["5 runs, whole", "run 004site has no end"]),
        ("diff 002 last", ["n1.argv.--max-num-seqs: 4 -> 8", "operator: alice -> bob"]),
        ("now", ["tp8-300k, plan hash8, since 2026-11-24T05:00:00Z by bob@laptop, run 005site"]),
        ("node n1 --since 2026-11-24T04:30", ["005site", "+005site <b>on</b> n1"]),
        ("node n3", ["Nothing changed on n3"]),
        ("blame max_num_seqs", ["max_num_seqs", "-e", "002site", "003site"]),
        ("blame nonsense", ["No run on record had nonsense"]),
    ],
)
def test_the_command_tells(words: str, wanted: list[str], held: Story) -> None:
    done = gb10(*words.split(), folder=held.ledger.folder)
    assert (done.returncode, done.stderr) == (0, "")
    for text in wanted:
        assert text in done.stdout, done.stdout
    assert json.loads(gb10(*words.split(), "--format", "json", folder=held.ledger.folder).stdout) is not None


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("show site", "4 runs have site in its id"),
        ("show zz", "no run has zz in its id"),
        ("node n9", "no run knows a node n9 (known: n1, n2, n3)"),
        ("node n1 --since someday", "--since: 'someday' is no time"),
        ("nonsense", "invalid choice"),
    ],
)
def test_what_cannot_be_used_is_one_line(words: str, wanted: str, held: Story) -> None:
    done = gb10(*words.split(), folder=held.ledger.folder)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_ledger_is_told_by_every_verb(tmp_path: Path) -> None:
    story = Story(tmp_path)
    run = story.run("prepare.yml")
    path = tmp_path / f"runs/{run}.jsonl"
    path.write_text(path.read_text().replace("alice", "mallo"))
    for words in ("list", "verify", "now", "node n1", "list --format html"):
        done = gb10(*words.split(), folder=tmp_path)
        assert done.returncode == 1
        assert "error [history-damaged]" in done.stderr
        assert "entry 0 (run 001prepare) was changed" in done.stderr
    assert gb10("list", folder=tmp_path / "none").returncode == 2


def test_a_hash_kept_elsewhere_is_looked_for(held: Story) -> None:
    kept_ = held.ledger.read().lines[4].hash
    assert gb10("verify", "--contains", kept_[:20], folder=held.ledger.folder).returncode == 0
    done = gb10("verify", "--contains", "0" * 64, folder=held.ledger.folder)
    assert done.returncode == 1
    assert "no entry has the hash 000" in done.stderr
    assert gb10("verify", "--contains", kept_[:5], folder=held.ledger.folder).returncode == 2


class Page(HTMLParser):
    """Tags opened and closed in order, and what they load from elsewhere."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _value in attrs if name in ("src", "href", "onclick")]
        self.loads += [tag] if tag in ("script", "link", "img", "b") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_needs_nothing_else(held: Story, tmp_path: Path) -> None:
    target = tmp_path / "history.html"
    done = gb10("list", "--format", "html", "-o", str(target), folder=held.ledger.folder)
    assert (done.returncode, done.stdout) == (0, "")
    text = target.read_text()
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.loads == []
    assert not re.search(r"url\(|@import|https?://", text)
    assert "+005site <b>on</b> n1" in page.text
    assert page.text.index("005site") < page.text.index("001prepare"), "the newest first"
    assert text.count("<article class=") == 5
    assert timeline.diff_line("+<x>") == "<span class=add>+&lt;x&gt;</span>\n"
