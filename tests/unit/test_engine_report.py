"""What the engine reports after a boot, beside the plan, and what the next plan learns of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import hosts

from gb10 import calibration, engine_report, plan

# As an engine of tp8-300k logs it where the plan is right to the digit it prints.
RIGHT = {"weights_gib": 49.55, "graphs_gib": 2.01, "kv_gib": 14.96, "kv_tokens": 3192727.0, "requests": 10.64}


@pytest.fixture(name="memory", scope="module")
def _memory() -> dict[str, Any]:
    found: dict[str, Any] = plan.build("tp8-300k", hosts("tp8-300k"))["memory"]
    return found


def ranks(**odd: dict[str, float]) -> dict[str, dict[str, float]]:
    """Eight ranks that report what is planned, but for ``odd`` ones."""
    return {f"n{i}": RIGHT | odd.get(f"n{i}", {}) for i in range(8)}


def test_an_engine_as_planned_is_no_finding(memory: dict[str, Any]) -> None:
    lines = engine_report.compare(memory, ranks())
    assert [line.what for line in lines] == [what for what, *_ in engine_report.COMPARED]
    assert all(abs(line.apart or 0) < 0.1 for line in lines), lines
    assert engine_report.findings(lines, 0.1) == []


@pytest.mark.parametrize(
    ("odd", "what", "node", "words"),
    [
        ({"kv_tokens": 2_900_000.0}, "KV tokens", "n3", "2,900,000 where the plan has 3,192,727 (-9.2 %)"),
        ({"kv_gib": 12.0}, "KV pool GiB", "n3", "(-19.8 %)"),  # of several pools the smallest decides
        ({"weights_gib": 63.0}, "weights GiB", "n3", "(+27.1 %)"),  # of several loads the largest
    ],
)
def test_what_is_apart_is_said_with_the_node_and_a_reason(
    memory: dict[str, Any], odd: dict[str, float], what: str, node: str, words: str
) -> None:
    (found,) = engine_report.findings(engine_report.compare(memory, ranks(n3=odd)), 5)
    assert (found.level, found.code, found.node) == ("warning", "engine-apart", node)
    assert found.message.startswith(f"{what}: ")
    assert words in found.message
    assert found.remedy
    assert engine_report.findings(engine_report.compare(memory, ranks(n3=odd)), 50) == []


def test_a_figure_only_one_side_has_is_shown_and_not_judged(memory: dict[str, Any]) -> None:
    lines = engine_report.compare({}, ranks())
    assert lines
    assert {line.planned for line in lines} == {None}
    assert engine_report.findings(lines, 0) == []
    assert engine_report.compare(memory, {"n0": {}}) == []


def test_the_next_plan_has_the_pool_that_was_measured(memory: dict[str, Any], tmp_path: Path) -> None:
    """Learnt of a boot with less KV memory than planned: planned again, the pool is the measured one."""
    path = tmp_path / "measured.json"
    measured = {"weights_gib": 50.25, "graphs_gib": 1.5, "kv_gib": 12.5}
    found = engine_report.learn(memory, {"n0": measured, "n1": measured | {"kv_gib": 12.75}}, "R1")
    assert found
    calibration.keep(str(path), engine_report.key(memory), found)
    again = plan.build(
        "tp8-300k", hosts("tp8-300k", calibration_file=str(path)), calibrated=calibration.read(str(path))
    )
    engine = again["memory"]["engine"]
    parts = {c["name"]: c for c in engine["components"]}
    assert engine["kv_gib"] == pytest.approx(12.5, abs=0.001)
    assert parts["weights"]["gib"] == 50.25
    assert parts["cuda-graphs"]["gib"] == 1.5
    for name in engine_report.LEARNT:
        assert parts[name]["kind"] == "measured", name
        assert "R1" in parts[name]["source"], name
    assert again["memory"]["reported"] == memory["reported"], "the report's own sum is nobody's measurement"


def test_a_measurement_of_another_model_or_degree_changes_nothing(memory: dict[str, Any]) -> None:
    found = engine_report.learn(memory, ranks(), "R1")
    other = plan.build("tp8-1m", hosts("tp8-1m"))
    same = plan.build("tp8-1m", hosts("tp8-1m"), calibrated={engine_report.key(memory): found})
    assert same == other


@pytest.mark.parametrize(
    "given",
    [
        {"kv_cache_memory_bytes": 1 << 30},  # profiling was skipped
        {"accelerator": "cpu"},
    ],
)
def test_nothing_is_learnt_where_the_engine_measures_nothing(memory: dict[str, Any], given: dict[str, Any]) -> None:
    assert engine_report.learn(memory | given, ranks(), "R1") is None
    assert engine_report.learn(memory, {}, "R1") is None
    assert engine_report.learn(memory, {"n0": {"weights_gib": 90.0, "kv_gib": 90.0}}, "R1") is None, "negative rest"


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 2}', '{"schema": 1, "measured": {"k": {"components": {"weights": -1}}}}',
     '{"schema": 1, "measured": {"k": {"components": {"weights": "49"}}}}', '{"schema": 1, "measured": {"k": 1}}'],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_and_left(tmp_path: Path, text: str) -> None:
    path = tmp_path / "measured.json"
    path.write_text(text)
    with pytest.raises(calibration.Unreadable, match=r"measured\.json: "):
        calibration.keep(str(path), "k", {"components": {}})
    assert path.read_text() == text


def test_one_measurement_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "below/measured.json"
    calibration.keep(str(path), "a", {"components": {"weights": 1.0}})
    calibration.keep(str(path), "b", {"components": {"weights": 2.0}})
    calibration.keep(str(path), "a", {"components": {"weights": 3.0}})
    assert {k: v["components"]["weights"] for k, v in calibration.read(str(path)).items()} == {"a": 3.0, "b": 2.0}
    assert [p.name for p in path.parent.iterdir()] == ["measured.json"]
    assert json.loads(path.read_text())["schema"] == calibration.SCHEMA
