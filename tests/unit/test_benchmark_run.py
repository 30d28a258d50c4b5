"""Settings, runs as documents, runs against runs, runs on the disk, and the commands that show them."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import benchmark_runs
import pytest
import yaml
from benchmark_runs import SETTINGS
from support import ROOT

from gb10 import (
    benchmark_compare,
    benchmark_container,
    benchmark_kept,
    benchmark_run,
    benchmark_settings,
    benchmark_text,
    cli,
)
from gb10.benchmark_compare import changes, half_width, student_t
from gb10.slo import Slo

DEFAULTS = yaml.safe_load((ROOT / "roles/benchmark/defaults/main.yml").read_text())
GATED = benchmark_settings.Settings(**{**SETTINGS.__dict__, "gate": True, "gate_users": 4})


# --- settings --------------------------------------------------------------------------------------------------------


def test_the_roles_defaults_are_those_of_the_report() -> None:
    settings, findings = benchmark_settings.read(DEFAULTS)
    assert findings == []
    assert settings
    assert (settings.levels, settings.output_tokens, settings.requests_per_user) == ([1, 2, 4, 8], 128, 10)
    assert settings.requests == 150
    said = "450 requests of 128 tokens (3 times 1, 2, 4, 8 users). On spark-153: docker logs -f gb10-benchmark"
    assert benchmark_text.outset(settings, "spark-153") == said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("levels", [], "a rising list"),
        ("levels", [2, 1], "a rising list"),
        ("levels", [1, 1], "a rising list"),
        ("levels", [0, 1], "a rising list"),
        ("levels", "1,2", "a rising list"),
        ("output_tokens", 1, "a plain integer from 2"),
        ("requests_per_user", 0, "a plain integer from 1"),
        ("repeats", "many", "a plain integer"),
        ("command", "vllm bench serve", "a list"),
        ("worse", -1, "a number from 0 to 1"),
        ("gate", "maybe", "true or false"),
    ],
)
def test_settings_that_mean_nothing_are_refused(name: str, value: Any, words: str) -> None:
    settings, findings = benchmark_settings.read(DEFAULTS | {f"benchmark_{name}": value})
    assert settings is None
    (finding,) = findings
    assert (finding.code, finding.level) == ("benchmark-invalid", "error")
    assert f"benchmark_{name} is " in finding.message
    assert words in finding.message


def test_more_requests_than_can_be_meant_are_refused() -> None:
    _, (finding,) = benchmark_settings.read(DEFAULTS | {"benchmark_levels": [1, 1024]})
    assert "10250 requests 3 times are more than 20000" in finding.message


# --- the container ---------------------------------------------------------------------------------------------------

PLAN = json.loads((ROOT / "tests/golden/tp8-300k.json").read_text())
RANK = {"exists": True, "running": True, "image_id": "sha256:1", "labels": {"gb10.profile": "tp8-300k"}}


def test_the_client_is_in_the_image_that_serves_without_gpu_and_fabric() -> None:
    made = benchmark_container.container(PLAN, RANK, SETTINGS, "http://h:8000", "m", "r")
    assert made["image"] == "sha256:1"
    assert set(made) == {"image", "command", "env", "mounts"}
    given = json.loads(made["command"][-1])
    assert given["tokenizer"] == PLAN["ranks"][0]["argv"][2]
    assert given["tokenizer"] in [mount["target"] for mount in made["mounts"]]
    assert [(one["repeat"], one["concurrency"]) for one in given["levels"]][:5] == [
        (1, 1),
        (1, 2),
        (1, 4),
        (1, 8),
        (2, 1),
    ]
    assert max(len(word.encode()) for word in made["command"]) < 1 << 17  # what Linux takes as one argument
    assert "detected" not in made["env"].values()


@pytest.mark.parametrize(
    ("rank", "code"),
    [
        (RANK, ""),
        ({"exists": False}, "benchmark-not-serving"),
        (RANK | {"running": False}, "benchmark-not-serving"),
        (RANK | {"labels": {"gb10.profile": "tp8-1m"}}, "benchmark-other-profile"),
        (RANK | {"labels": {}}, "benchmark-other-profile"),
    ],
)
def test_what_does_not_serve_the_profile_is_refused(rank: dict[str, Any], code: str) -> None:
    found = benchmark_container.refusals(PLAN, rank)
    assert [(finding.code, finding.node) for finding in found] == ([(code, "spark-153")] if code else [])


# --- judged ----------------------------------------------------------------------------------------------------------


def codes(findings: Any) -> list[tuple[str, str]]:
    return [(f.level, f.code) for f in findings]


def test_a_run_like_the_report_serves_as_many() -> None:
    """At 4 users TPS is the report's 20.10 but for rounding: 128 tokens in its 6.49 s are 19.72 a second."""
    run = benchmark_runs.run(slo=Slo(1000, 19))
    assert run["capacity"]["max_c"] == 4
    assert benchmark_runs.run(profile="tp8-1m")["capacity"]["max_c"] == 2
    assert benchmark_runs.run(failed=1, slo=Slo(1000, 1))["capacity"]["max_c"] == 4


@pytest.mark.parametrize(
    ("settings", "slo", "wanted"),
    [
        (SETTINGS, Slo(1000, 20), []),
        (SETTINGS, Slo(1, 20), [("warning", "slo-missed")]),
        (GATED, Slo(1000, 20), [("error", "slo-missed")]),
        (GATED, Slo(1000, 15), []),
    ],
)
def test_the_gate_makes_an_error_of_missed_targets(settings: Any, slo: Slo, wanted: list[tuple[str, str]]) -> None:
    run = benchmark_runs.run(settings=settings, slo=slo)
    assert codes(benchmark_run.findings(run, settings)) == wanted


def test_failures_cache_hits_and_preemptions_are_said() -> None:
    run = benchmark_runs.run(failed=2)
    run["levels"][0]["repeats"][0]["server"] = benchmark_runs.SERVER | {"prefix_hits": 0.5, "preemptions": 3.0}
    found = benchmark_run.findings(run, SETTINGS)
    assert codes(found) == [
        ("warning", "benchmark-cached"),
        ("warning", "benchmark-preempted"),
        ("warning", "benchmark-failures"),
    ]
    assert "8 at once: 6 of 78 requests failed: Internal Server Error (6)." in found[-1].message


# --- run against run -------------------------------------------------------------------------------------------------


def test_student_t_is_that_of_the_tables() -> None:
    assert student_t(1) == 12.706
    assert student_t(4.9) == 2.776
    assert student_t(99) == 2.131


def test_the_interval_is_welchs() -> None:
    """Two samples of three with variance 1: t(4) x sqrt(2/3)."""
    assert half_width([1, 2, 3], [4, 5, 6]) == pytest.approx(2.776 * (2 / 3) ** 0.5)
    assert half_width([1, 1], [2, 2]) == 0
    assert half_width([1], [2, 3]) is None


@pytest.mark.parametrize(
    ("factors", "verdicts", "regressions"),
    [
        ((0.99, 1.0, 1.01), {"same"}, 0),
        ((1.19, 1.2, 1.21), {"worse"}, 20),
        ((0.79, 0.8, 0.81), {"better"}, 0),
        ((0.8, 1.2, 1.6), {"same"}, 0),  # 20 % slower on average, and noise larger than that
        ((1.03, 1.035, 1.04), {"worse"}, 0),  # beyond noise, less than benchmark_worse
        ((1.5,), {"unknown"}, None),
    ],
)
def test_only_what_is_beyond_noise_is_a_change(
    factors: tuple[float, ...], verdicts: set[str], regressions: int | None
) -> None:
    before, after = benchmark_runs.run("a"), benchmark_runs.run("b", factors=factors)
    assert {change.verdict for change in changes(before, after)} == verdicts
    for gate, level in ((False, "warning"), (True, "error")):
        found = codes(benchmark_compare.findings(before, after, 0.05, gate=gate))
        assert found == (
            [("warning", "benchmark-noise-unknown")]
            if regressions is None
            else [(level, "benchmark-regression")] * regressions
        )


def test_another_workload_is_not_compared() -> None:
    other = benchmark_settings.Settings(**{**SETTINGS.__dict__, "seed": 2, "requests_per_user": 4})
    before, after = benchmark_runs.run("a", settings=other), benchmark_runs.run("b", factors=(2.0, 2.0, 2.0))
    (finding,) = benchmark_compare.findings(before, after, 0.05, gate=True)
    assert (finding.level, finding.code) == ("warning", "benchmark-not-comparable")
    assert "requests_per_user was 4 and is 3; seed was 2 and is 1" in finding.message


def test_levels_only_one_run_has_are_left_out() -> None:
    before, after = benchmark_runs.run("a"), benchmark_runs.run("b")
    after["levels"] = after["levels"][:2]
    before["levels"] = before["levels"][1:]
    assert {change.c for change in changes(before, after)} == {2}


def written(folder: Path, run: dict[str, Any]) -> Path:
    """A run's directory with nothing but the run."""
    place = folder / run["run"]
    place.mkdir()
    (place / "run.json").write_text(json.dumps(run))
    return place


# --- kept ------------------------------------------------------------------------------------------------------------


def test_a_run_is_kept_whole_with_the_sum_the_ledger_has(tmp_path: Path) -> None:
    run = benchmark_runs.run()
    place, digest = benchmark_kept.keep(tmp_path, run, {"raw": 1})
    assert sha256((place / "run.json").read_bytes()).hexdigest() == digest
    assert benchmark_kept.load(place) == json.loads(json.dumps(run))
    stems = ("ttft", "itl", "tps", "latency", "throughput")
    wanted = {
        "run.json",
        "raw.json",
        "levels.csv",
        "report.html",
        *(f"{s}.{kind}" for s in stems for kind in ("svg", "png")),
    }
    assert {path.name for path in place.iterdir()} == wanted
    assert [path.name for path in tmp_path.iterdir()] == [run["run"]]
    once = {path.name: path.read_bytes() for path in place.iterdir()}
    assert benchmark_kept.keep(tmp_path, run, {"raw": 1}) == (place, digest)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == once


def test_the_csv_has_every_figure_of_every_level(tmp_path: Path) -> None:
    run = benchmark_runs.run()
    rows = list(csv.DictReader(io.StringIO(benchmark_kept.levels_csv(run))))
    assert [row["c"] for row in rows] == ["1", "2", "4", "8"]
    assert float(rows[3]["tps_p90"]) == run["levels"][3]["tps"]["p90"]
    assert len(rows[0]) == 8 + 5 * 4


def test_the_run_before_is_the_newest_of_the_profile(tmp_path: Path) -> None:
    for name, profile in (("1", "tp8-300k"), ("2", "tp8-300k"), ("3", "tp8-1m"), ("5", "tp8-300k")):
        written(tmp_path, benchmark_runs.run(name, profile))
    written(tmp_path, {"run": "4"})
    run = benchmark_runs.run("4")
    assert (benchmark_kept.previous(tmp_path, run) or {})["run"] == "2"
    assert (benchmark_kept.previous(tmp_path, run, "1") or {})["run"] == "1"
    assert benchmark_kept.previous(tmp_path / "none", run) is None
    with pytest.raises(benchmark_kept.NotKept, match="9: No such file"):
        benchmark_kept.previous(tmp_path, run, "9")


def test_a_directory_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(benchmark_kept.NotKept, match="Not a directory"):
        benchmark_kept.keep(tmp_path / "file", benchmark_runs.run())


# --- gb10 report -----------------------------------------------------------------------------------------------------


def test_report_shows_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = written(tmp_path, benchmark_runs.run())
    assert cli.main(["report", str(place), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "Max C 2." in said
    assert "13.63" in said  # the report's own TPS at 8
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.parametrize(("factors", "status"), [((1.0, 1.0, 1.0), 0), ((1.3, 1.3, 1.31), 1)])
def test_compare_ends_with_1_on_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factors: tuple[float, ...], status: int
) -> None:
    a, b = (
        written(tmp_path, benchmark_runs.run(name, factors=f)) for name, f in (("a", (1.0, 1.0, 1.0)), ("b", factors))
    )
    assert cli.main(["report", "--compare", str(a), str(b)]) == status
    assert ("error [benchmark-regression] 1 at once: TTFT 213.19" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report"], "required"),
        (["report", "nowhere"], "nowhere: no such directory"),
        (["report", "/nowhere/x"], "/nowhere/x: No such file or directory"),
        (["report", "--compare", "a"], "expected 2 arguments"),
        (["report", "a", "--worse", "2"], "invalid share value"),
    ],
)
def test_what_cannot_be_shown_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


# --- gb10 benchmark --------------------------------------------------------------------------------------------------


def test_benchmark_is_the_playbook_with_what_was_given() -> None:
    """Of no profile it comes as far as the plan's refusal."""
    gb10 = Path(sys.executable).parent / "gb10"
    command = [gb10, "benchmark", "--profile", "tp9", "-i", ROOT / "inventory/hosts.yml", "-e", "benchmark_repeats=1"]
    env = os.environ | {"PATH": f"{gb10.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode != 0
    assert "error [profile-unknown] There is no profile 'tp9'." in done.stdout
