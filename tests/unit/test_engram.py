"""Engram rows and their split over the ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gb10.engram import GIB, engram_gib, engram_split, head_rows
from gb10.model_config import builtin

TABLES = builtin().engram


def test_rows_of_both_tables():
    assert {layer: sum(sizes) for layer, sizes in head_rows(TABLES).items()} == {1: 384006168, 14: 384016682}
    assert engram_split(TABLES, 1)[0].bytes == (384006168 + 384016682) * 264
    assert round(engram_split(TABLES, 1)[0].bytes / GIB, 2) == 188.83


def test_ranges_of_the_published_four_spark_boot():
    shards = engram_split(TABLES, 4)
    assert [s.rows[1] for s in shards] == [
        (0, 96000564),
        (96000564, 192001740),
        (192001740, 288003654),
        (288003654, 384006168),
    ]
    assert [s.rows[14] for s in shards] == [
        (0, 96003054),
        (96003054, 192007016),
        (192007016, 288011564),
        (288011564, 384016682),
    ]


@pytest.mark.parametrize(("ranks", "gib"), [(8, 23.604), (4, 47.209)])
def test_gib_of_a_rank(ranks, gib):
    assert engram_gib(TABLES, ranks) == pytest.approx(gib, abs=0.001)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 24, 5])
def test_ranges_are_whole_and_disjoint(ranks):
    shards = engram_split(TABLES, ranks)
    for layer, sizes in head_rows(TABLES).items():
        ends = [0, *(s.rows[layer][1] for s in shards)]
        assert [s.rows[layer][0] for s in shards] == ends[:-1]
        assert ends[-1] == sum(sizes)
        assert all(a < b for a, b in pairwise(ends))


@pytest.mark.parametrize("ranks", [0, 7, 16, 25])
def test_ranks_without_heads_are_refused(ranks):
    with pytest.raises(ValueError, match=r"heads cannot be split|at least 1"):
        engram_split(TABLES, ranks)
