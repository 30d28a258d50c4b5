"""Targets, Max C and recommendations; and every claim the report derives from its tables, from the tables."""

from __future__ import annotations

from typing import Any

import pytest

from gb10 import data
from gb10.capacity import capacity, of_table, recommendation
from gb10.reference import profiles, table
from gb10.slo import Slo, read

REPORT, TOOL = Slo(1000, 20), Slo(1000, 15)
OURS = ("tp8-300k", "tp8-1m", "tp4-300k")


def percent(new: float | None, old: float | None) -> float:
    assert new
    assert old
    return 100 * (new / old - 1)


# --- the report's claims ---------------------------------------------------------------------------------------------


def test_the_tables_have_every_level_of_the_report() -> None:
    assert profiles() == [*OURS, "b300"]
    assert all(sorted(table(name)) == [1, 2, 4, 8] for name in profiles())
    assert table("tp9") == {}


@pytest.mark.parametrize(("profile", "fall"), [("tp8-300k", 62), ("tp8-1m", 65)])
def test_tps_falls_from_one_user_to_eight(profile: str, fall: int) -> None:
    assert round(-percent(table(profile)[8].tps, table(profile)[1].tps)) == fall


def test_tp8_is_22_to_55_percent_faster_than_tp4() -> None:
    gains = {c: round(percent(table("tp8-300k")[c].tps, table("tp4-300k")[c].tps)) for c in (1, 8)}
    assert gains == {1: 22, 8: 55}


def test_ttft_of_tp8_is_21_to_39_percent_below_tp4() -> None:
    """Of tp8-300k at 1 and 8 users; at 4 it is 36 %, so between them."""
    falls = [-percent(table("tp8-300k")[c].ttft_ms, table("tp4-300k")[c].ttft_ms) for c in (1, 2, 4, 8)]
    assert (int(min(falls)), int(max(falls))) == (21, 39)


def test_b300_is_8_times_as_fast_at_one_user() -> None:
    assert round(table("b300")[1].tps / table("tp8-300k")[1].tps) == 8


@pytest.mark.parametrize(("slo", "max_c"), [(REPORT, (4, 2, 2)), (TOOL, (4, 4, 2))])
def test_max_c_of_the_report(slo: Slo, max_c: tuple[int, ...]) -> None:
    assert tuple(of_table(table(name), slo).max_c for name in OURS) == max_c


@pytest.mark.parametrize("profile", OURS)
def test_what_the_columns_mean(profile: str) -> None:
    """latency = TTFT + 127 ITL: the printed ITL is per token; the printed RPS is one user's."""
    for row in table(profile).values():
        assert row.latency_s
        assert row.ttft_ms
        assert row.tpot_ms
        assert row.latency_s == pytest.approx((row.ttft_ms + 127 * row.tpot_ms) / 1000, abs=0.006)
        assert row.rps_printed == pytest.approx(1 / row.latency_s, abs=0.006)
        assert row.tps == pytest.approx(128 / row.latency_s, rel=0.03)


def test_the_real_request_rate_rises() -> None:
    assert table("tp8-300k")[8].request_rate == pytest.approx(0.84, abs=0.005)
    for profile in OURS:
        rates = [row.request_rate or 0.0 for row in table(profile).values()]
        assert rates == sorted(rates)
    assert table("b300")[1].request_rate is None


def test_the_data_is_of_128_tokens() -> None:
    assert data.load("reference")["output_tokens"] == 128


# --- judging ---------------------------------------------------------------------------------------------------------

GOOD, SLOW = {"ttft_ms": 100.0, "tps": 30.0}, {"ttft_ms": 100.0, "tps": 10.0}


@pytest.mark.parametrize(
    ("levels", "max_c"),
    [
        ({}, 0),
        ({1: (GOOD, 0)}, 1),
        ({1: (GOOD, 0), 2: (GOOD, 0), 4: (SLOW, 0)}, 2),
        ({1: (GOOD, 0), 2: (SLOW, 0), 4: (GOOD, 0)}, 1),  # a level above one that fails does not count
        ({1: (SLOW, 0), 2: (GOOD, 0)}, 0),
        ({1: (GOOD, 0), 2: (GOOD, 1)}, 1),  # an error fails a level
        ({2: (GOOD, 0), 1: (GOOD, 0)}, 2),
        ({1: ({"ttft_ms": None, "tps": None}, 0)}, 0),
        ({1: ({"ttft_ms": 1000.0, "tps": 20.0}, 0)}, 1),  # the targets themselves are met
    ],
)
def test_max_c(levels: dict[int, Any], max_c: int) -> None:
    assert capacity(levels, REPORT).max_c == max_c


def test_recommendations_say_the_number_and_why() -> None:
    found = of_table(table("tp8-1m"), REPORT)
    assert recommendation(found, REPORT) == (
        "Serve at most 2 concurrent users within TTFT <= 1000 ms and TPS >= 20 tok/s (mean): "
        "4 concurrent users is too many (TPS 17.07 tok/s, at least 20 is wanted)."
    )
    assert "More than 8 was not measured" in recommendation(of_table(table("b300"), Slo(None, 20)), Slo(None, 20))
    assert "already 1 user is too many (2 requests failed" in recommendation(capacity({1: (GOOD, 2)}, REPORT), REPORT)
    assert "nothing can be recommended" in recommendation(capacity({}, REPORT), REPORT)


# --- reading ---------------------------------------------------------------------------------------------------------

NAMES = ("benchmark_slo_ttft_ms", "benchmark_slo_tps", "benchmark_slo_statistic")


@pytest.mark.parametrize(
    ("given", "slo"),
    [
        ((1000, 20, "mean"), Slo(1000, 20)),
        (("1000", "20.5", "p99"), Slo(1000, 20.5, "p99")),
        ((None, 20, "mean"), Slo(None, 20)),
        (("null", 20, "mean"), Slo(None, 20)),
    ],
)
def test_targets_are_read(given: tuple[Any, ...], slo: Slo) -> None:
    assert read(dict(zip(NAMES, given, strict=True))) == (slo, [])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((-1, 20, "mean"), "benchmark_slo_ttft_ms is -1 but must be a number from 1 to 600000"),
        ((0, 20, "mean"), "benchmark_slo_ttft_ms is 0"),
        (("1s", 20, "mean"), "benchmark_slo_ttft_ms is '1s'"),
        ((True, 20, "mean"), "benchmark_slo_ttft_ms is true"),
        ((float("nan"), 20, "mean"), "benchmark_slo_ttft_ms is nan"),
        ((1000, 0, "mean"), "benchmark_slo_tps is 0"),
        ((1000, "15,5", "mean"), "with a decimal point"),
        ((1000, float("inf"), "mean"), "benchmark_slo_tps is inf"),
        ((1000, [20], "mean"), "benchmark_slo_tps is [20]"),
        ((1000, 20, "median"), "benchmark_slo_statistic is 'median' but must be one of mean, p50, p90, p99"),
        ((None, None, "mean"), "there is nothing to judge by"),
    ],
)
def test_nonsense_is_refused_with_name_and_value(given: tuple[Any, ...], words: str) -> None:
    slo, findings = read(dict(zip(NAMES, given, strict=True)))
    assert slo is None
    (finding,) = findings
    assert finding.code == "slo-invalid"
    assert words in finding.message
