"""A node's memory against what a start asks, from facts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gb10.node_memory import Start, largest_gmu, measure, node_findings, start_of, total_gib

GIB = 1 << 30
START = Start(0.80, 1.97, 9.0)
TOTAL_KIB = 127601788  # 121.6909 GiB, MemTotal of a GB10


def facts(available_gib, **more):
    return {"memory": {"total_kib": TOTAL_KIB, "available_kib": int(available_gib * 2**20)}, **more}


@pytest.mark.parametrize(
    ("total", "free", "share"),
    [(100, 82, 0.82), (100, 0, 0.0), (100, -5, 0.0), (1000, 829, 0.82), (7, 7, 1.0), (100, 500, 1.0)],
)
def test_the_largest_gmu(total, free, share):
    assert largest_gmu(total, free) == share


@given(st.integers(1, 1 << 40), st.integers(-(1 << 40), 1 << 41))
def test_the_largest_gmu_starts_and_a_step_more_does_not(total, free):
    share = largest_gmu(total, free)
    assert not share or math.ceil(total * share) <= free
    assert share == 1 or math.ceil(total * (round(share * 100) + 1) / 100) > free


def test_a_node_is_measured_against_the_start():
    node = measure(START, "spark-161", facts(112))
    assert node.as_dict() == {
        "node": "spark-161",
        "mem_total_gib": 121.6905,
        "mem_available_gib": 112.0,
        "wanted_gib": 97.3524,
        "free_gib": 110.03,
        "gmu_starts": 0.90,
        "gmu_keeps": 0.83,
        "serving": False,
    }
    assert node_findings(START, node) == []


@pytest.mark.parametrize(
    ("available", "code"),
    [(108.4, None), (108.2, "memory-reserve-low"), (99.4, "memory-reserve-low"), (99.2, "memory-not-available")],
)
def test_limits(available, code):
    found = node_findings(START, measure(START, "spark-161", facts(available)))
    assert [(f.code, f.node) for f in found] == ([(code, "spark-161")] if code else [])


@pytest.mark.parametrize(
    ("available", "remedy"),
    [
        (100, "0.80 is the largest that starts here, 0.73 the largest that also keeps 9 GiB."),
        (5, "0.02 is the largest that starts here, none keeps 9 GiB."),
        (0, "Free memory on the node: no gpu_memory_utilization starts here."),
    ],
)
def test_the_remedy_names_only_numbers_that_help(available, remedy):
    start = Start(0.87, 1.97, 9.0)
    (found,) = node_findings(start, measure(start, "spark-161", facts(available)))
    assert found.remedy.endswith(remedy)


def test_a_node_that_serves_is_measured_but_not_blamed():
    ours = {"ours": True, "state": "running"}
    node = measure(START, "spark-161", facts(14, docker={"containers": [ours]}))
    assert node.serving
    assert node_findings(START, node) == []
    foreign = measure(START, "spark-161", facts(14, docker={"containers": [ours | {"ours": False}]}))
    assert [f.code for f in node_findings(START, foreign)] == ["memory-not-available"]


@pytest.mark.parametrize(
    "document",
    [
        None, {}, {"memory": None}, {"memory": []}, {"memory": {"total_kib": 1}}, [], "x",
        {"memory": {"total_kib": 0, "available_kib": 0}},
        {"memory": {"total_kib": "1", "available_kib": 1}},
        {"memory": {"total_kib": 1, "available_kib": -1}},
        {"memory": {"total_kib": True, "available_kib": 1}},
        {"memory": {"total_kib": 1 << 60, "available_kib": 1}},
        {"memory": {"total_kib": 100, "available_kib": 50}},
        {"memory": {"total_kib": TOTAL_KIB, "available_kib": TOTAL_KIB + 1}},
        {"memory": {"total_kib": TOTAL_KIB, "available_kib": True}},
    ],
)  # fmt: skip
def test_facts_that_do_not_say(document):
    assert total_gib(document) is None
    assert measure(START, "spark-161", document) is None


def test_what_a_document_asks():
    asked = {"gpu_memory_utilization": 0.8, "before_gib": 1.97, "reserve_gib": 9.0}
    assert start_of({"start": asked}) == START
    assert start_of({"start": None}) is None
    assert start_of({}) is None
