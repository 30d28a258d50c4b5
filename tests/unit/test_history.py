"""The ledger: every kind of damage shows, and a damaged ledger is never written to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gb10 import runs, signature
from gb10.history import digest, lines_of
from gb10.ledger import Ledger, LedgerError
from gb10.plan import canonical

HOURS = ("2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z", "2026-11-30T09:00:00Z")


def entry(kind: str, run: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "run": run, "time": HOURS[0], **more}


def filled(folder: Path, count: int = 3) -> Ledger:
    """Three runs of three entries, each with a plan."""
    ledger = Ledger(folder)
    for number in range(count):
        run = f"r{number}"
        ledger.begin(entry("begin", run, nodes=["a"]), {"schema": 1, "ranks": [], "number": number})
        item = {"node": "a", "seconds": 1.0, "diff": "+x\n"}
        ledger.append(entry("change", run, task="t", path="p:1", action="copy", items=[item]))
        ledger.append(entry("end", run, outcome="changed", signal="", seconds=1, stats={}, failed=[], unreachable=[]))
    return ledger


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_was_written_verifies_and_is_canonical(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "deep/ledger")
    chain = ledger.read(deep=True)
    assert chain.faults == ()
    assert [line.sequence for line in chain.lines] == list(range(9))
    for path in ledger.runs.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        for line in path.read_text().splitlines():
            assert canonical(json.loads(line)) == line
    assert ledger.plan_faults(chain) == []
    assert {line.entry["ledger"] for line in chain.lines if line.entry["kind"] == "begin"} == {chain.identity}
    assert Ledger(tmp_path / "none").read().lines == ()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def swap(folder: Path) -> None:
    held = lines(folder / "runs/r1.jsonl")
    (folder / "runs/r1.jsonl").write_text("".join([held[1], held[0], held[2]]))
    text = (folder / "runs/r1.jsonl").read_text()  # and their numbers, so that it looks right
    text = text.replace('"sequence":3}', '"sequence":X}').replace('"sequence":4}', '"sequence":3}')
    (folder / "runs/r1.jsonl").write_text(text.replace('"sequence":X}', '"sequence":4}'))


def forge(folder: Path) -> None:
    """An entry changed, and its own hash made to fit."""
    path = folder / "runs/r1.jsonl"
    held, _faults = lines_of("r1", path.read_text())
    text = held[1].text.replace("+x", "+y")
    forged = replace(held[1], text=text, hash=digest(text, held[1].previous, held[1].sequence))
    path.write_text("".join(line.written() + "\n" for line in (held[0], forged, held[2])))


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text())) and None


DAMAGE = {
    "one byte": edit("runs/r1.jsonl", lambda text: text.replace('"diff":"+x', '"diff":"+y')),
    "one byte of a hash": edit(
        "runs/r1.jsonl", lambda t: t.replace('"hash":"', '"hash":"0', 1).replace('","pre', '"pre')
    ),
    "entry dropped": lambda f: (f / "runs/r1.jsonl").write_text("".join(lines(f / "runs/r1.jsonl")[:2])),
    "run dropped": lambda f: (f / "runs/r1.jsonl").unlink(),
    "first run dropped": lambda f: (f / "runs/r0.jsonl").unlink(),
    "newest run dropped": lambda f: (f / "runs/r2.jsonl").unlink(),
    "newest entry dropped": edit("runs/r2.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-1])),
    "reordered": swap,
    "changed with its hash": forge,
    "truncated": edit("runs/r2.jsonl", lambda text: text[:-30]),
    "emptied": edit("runs/r2.jsonl", lambda text: ""),
    "doubled": edit("runs/r1.jsonl", lambda text: text + text.splitlines(keepends=True)[-1]),
    "copied": lambda f: (f / "runs/r9.jsonl").write_text((f / "runs/r1.jsonl").read_text()),
    "foreign line": edit("runs/r1.jsonl", lambda text: text + "null\n"),
    "spaces": edit("runs/r1.jsonl", lambda text: text.replace('{"entry"', '{ "entry"', 1)),
    "head gone": lambda f: (f / "head.json").unlink(),
    "head broken": edit("head.json", lambda text: "{"),
    "head set back": edit("head.json", lambda text: text.replace('"sequence":8', '"sequence":2')),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_shows_and_stops_the_next_run(damage: str, tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    DAMAGE[damage](tmp_path)
    faults = ledger.read(deep=True).faults
    assert faults
    assert all("\n" not in fault for fault in faults)
    before = content(tmp_path)
    with pytest.raises(LedgerError, match="verify"):
        ledger.begin(entry("begin", "r3"))
    assert content(tmp_path) == before


def test_every_flipped_byte_shows(tmp_path: Path) -> None:
    """Of a run's file and of the head, one after the other."""
    ledger = filled(tmp_path, 1)
    for name in ("runs/r0.jsonl", "head.json"):
        path = tmp_path / name
        good = path.read_bytes()
        for at in range(len(good) - (name == "head.json")):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            assert ledger.read().faults, (name, at)
        path.write_bytes(good)
    assert ledger.read().faults == ()


def test_a_run_whose_file_was_changed_gets_no_more_entries(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.begin(entry("begin", "r3"))
    path = tmp_path / "runs/r3.jsonl"
    path.write_text(path.read_text().replace('"run":"r3"', '"run":"r4"'))
    before = content(tmp_path)
    with pytest.raises(LedgerError, match=r"r3\.jsonl was changed"):
        ledger.append(entry("end", "r3"))
    assert content(tmp_path) == before


def test_a_changed_plan_shows(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    path = next((tmp_path / "plans").iterdir())
    path.write_text(path.read_text().replace("ranks", "Ranks"))
    chain = ledger.read(deep=True)
    assert chain.faults == ()
    assert len(ledger.plan_faults(chain)) == 1
    path.unlink()
    assert len(ledger.plan_faults(chain)) == 1


def test_a_run_begins_once_and_before_it_changes(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    with pytest.raises(LedgerError, match="there already"):
        ledger.begin(entry("begin", "r1"))
    with pytest.raises(LedgerError, match="was not begun"):
        ledger.append(entry("end", "r7"))


WRITER = """
import sys
import time
from pathlib import Path
from gb10.ledger import Ledger
folder, name, count, *crew = sys.argv[1:]
ledger = Ledger(Path(folder))
for number in range(int(count)):
    run = f"{name}-{number}"
    if crew:  # all begin a run together
        Path(folder).with_name(run).touch()
    while not all(Path(folder).with_name(f"{one}-{number}").exists() for one in crew):
        time.sleep(0.001)
    ledger.begin({"kind": "begin", "run": run, "time": "t"}, {"ranks": [], "of": run})
    for kind in ("change", "change", "end"):
        ledger.append({"kind": kind, "run": run, "time": "t", "outcome": "changed", "pad": "x" * 5000})
    print(run, flush=True)
"""


def writer(folder: Path, name: str, count: int, *crew: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, folder, name, str(count), *crew]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_concurrent_writers_never_interleave(tmp_path: Path) -> None:
    """Two controllers on one directory, and more."""
    crew = [f"w{number}" for number in range(4)]
    processes = [writer(tmp_path / "ledger", name, 10, *crew) for name in crew]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    chain = Ledger(tmp_path / "ledger").read(deep=True)
    assert chain.faults == ()
    assert len(chain.lines) == 4 * 10 * 4
    held = runs.runs(chain.entries)
    assert {len(run.changes) for run in held} == {2}
    assert [line.run[-1] for line in chain.lines] == [str(number) for number in range(10) for _ in range(16)]


def test_a_writer_killed_anywhere_leaves_a_ledger_that_goes_on(tmp_path: Path) -> None:
    """kill -9 at 12 moments while it writes."""
    for number in range(12):
        process = writer(tmp_path, f"k{number}", 1000)
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.0137 * number)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        chain = Ledger(tmp_path).read(deep=True)
        assert chain.faults == (), number
        Ledger(tmp_path).begin(entry("begin", f"after{number}"))
    assert Ledger(tmp_path).read(deep=True).faults == ()
    assert any(run.outcome == "open" for run in runs.runs(Ledger(tmp_path).read().entries))


def test_a_writer_that_died_before_the_head_is_gone_on_from(tmp_path: Path) -> None:
    """The head is one entry behind, and the next writer is one that began before."""
    ledger = filled(tmp_path)
    ledger.begin(entry("begin", "r3"))
    ledger.begin(entry("begin", "r4"))
    old = (tmp_path / "head.json").read_bytes()
    ledger.append(entry("change", "r3", task="t", path="", items=[]))
    (tmp_path / "head.json").write_bytes(old)
    (tmp_path / "lock").write_text("r3")  # as it is left
    assert ledger.read().behind
    ledger.append(entry("end", "r4"))
    assert ledger.read(deep=True).faults == ()
    assert not ledger.read().behind


def test_entries_after_the_clock_went_back_are_in_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for number, hour in enumerate(HOURS):
        ledger.begin({"kind": "begin", "run": f"r{number}", "time": hour})
    chain = ledger.read(deep=True)
    assert chain.faults == ()
    assert [run.id for run in runs.runs(chain.entries)] == ["r0", "r1", "r2"]
    assert len(runs.backwards(chain.entries)) == 1


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A file system of 6 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", tmp_path], check=True, timeout=30)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True, timeout=30)


def test_a_full_disk_stops_the_run_before_it_begins(small: Path) -> None:
    ledger = filled(small / "ledger")
    (small / "fill").write_bytes(b"x" * (3 << 20))
    before = content(small / "ledger")
    with pytest.raises(LedgerError, match="4 MiB"):
        ledger.begin(entry("begin", "r3"))
    assert content(small / "ledger") == before


def test_a_disk_that_fills_up_during_a_run_damages_nothing(small: Path) -> None:
    ledger = filled(small / "ledger")
    ledger.begin(entry("begin", "r3"))
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={small / 'fill'}", "bs=4k"], check=False, capture_output=True, timeout=30
    )
    before = content(small / "ledger/runs")
    with pytest.raises(LedgerError, match="No space"):
        ledger.append(entry("change", "r3", task="t", path="", items=[], pad="x" * 20000))
    assert content(small / "ledger/runs") == before
    (small / "fill").unlink()
    assert ledger.read(deep=True).faults == ()
    ledger.append(entry("end", "r3"))
    assert ledger.read(deep=True).faults == ()


def test_a_read_only_directory_is_said_and_can_still_be_read(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger")
    subprocess.run(["mount", "--bind", "-o", "ro", tmp_path / "ledger", tmp_path / "ledger"], check=True, timeout=30)
    try:
        with pytest.raises(LedgerError, match="Read-only file system"):
            ledger.begin(entry("begin", "r3"))
        assert ledger.read(deep=True).faults == ()
    finally:
        subprocess.run(["umount", tmp_path / "ledger"], check=True, timeout=30)


def test_a_lock_that_is_held_is_waited_for_and_then_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = filled(tmp_path)
    monkeypatch.setattr("gb10.ledger.LOCK_WAIT", 0.3)
    holder = subprocess.Popen(["flock", tmp_path / "lock", "sleep", "5"])
    try:
        time.sleep(0.2)
        with pytest.raises(LedgerError, match="another run"):
            ledger.begin(entry("begin", "r3"))
    finally:
        holder.terminate()
        holder.wait(timeout=10)
        subprocess.run(["flock", "-w", "20", tmp_path / "lock", "true"], check=True, timeout=30)


def test_many_threads_read_while_one_writes(tmp_path: Path) -> None:
    ledger = filled(tmp_path, 1)
    process = writer(tmp_path, "w", 8)
    with ThreadPoolExecutor(3) as pool:
        while process.poll() is None:
            for chain in pool.map(lambda _n: Ledger(tmp_path).read(deep=True), range(3)):
                assert chain.faults == ()
    assert process.returncode == 0
    assert ledger.read().faults == ()


# --- signatures ------------------------------------------------------------------------------------------------------


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True, timeout=60)
    return path


def allow(folder: Path, *keys: Path) -> Path:
    path = folder / "allowed"
    path.write_text("".join(f"{k.name} {k.with_suffix('.pub').read_text()}" for k in keys))
    return path


def test_signatures_prove_who_vouches(tmp_path: Path) -> None:
    alice, mallory = key(tmp_path, "alice"), key(tmp_path, "mallory")
    ledger = Ledger(tmp_path / "ledger")
    for run, who in (("r0", alice), ("r1", alice)):
        signature.sign(ledger, ledger.begin(entry("begin", run, signed=True)), str(who))
        signature.sign(ledger, ledger.append(entry("end", run)), str(who))
    ledger.begin(entry("begin", "r2", signed=False))
    held = ledger.read().lines
    allowed = allow(tmp_path, alice)
    assert signature.faults(ledger, held, allowed) == []
    assert len(signature.faults(ledger, held, allow(tmp_path, mallory))) == 4
    allow(tmp_path, alice)
    signs = [ledger.signatures / f"{line.hash}.sig" for line in held[:4]]
    signs[0].write_bytes(signs[1].read_bytes())
    signs[3].unlink()
    said = signature.faults(ledger, held, allowed)
    assert [fault.rpartition(": ")[2] for fault in said] == ["its signature is not good", "its signature is missing"]


def test_a_key_that_asks_or_is_not_there_is_said(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "ledger")
    line = ledger.read().lines[0]
    asks = tmp_path / "asks"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "word-of-pass", "-f", asks], check=True, timeout=60)
    for path in (asks, tmp_path / "none"):
        with pytest.raises(LedgerError, match="does not sign"):
            signature.sign(ledger, line, str(path))
