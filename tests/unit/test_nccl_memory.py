"""NCCL's memory against every measured run the formula is for (NCCL_CUMEM_ENABLE=0: 73 of 81 runs), and the published
steps of an eight-Spark site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gb10.nccl_memory import (
    available_loss_bytes,
    channel_bytes,
    connection_bytes,
    connections_per_channel,
    dev_shm_bytes,
    nccl_host_bytes,
    nccl_reported_gib,
    send_recv_bytes,
)

MEASURED = json.loads((Path(__file__).parent.parent / "data" / "nccl-memory.json").read_text())
ROWS = [dict(zip(MEASURED["columns"], row, strict=True)) for row in MEASURED["rows"]]
KIB, MIB = 1 << 10, 1 << 20


def communicators(row):
    """Communicators that share their resources count as one."""
    return 1 if "SHARE_RESOURCES" in row["other"] else row["comms"]


def name(row):
    return "-".join(str(row[c]) for c in ("lib", "ranks", "channels", "buffsize", "ll128_buffsize", "comms", "other"))


def test_rows_are_all_there():
    assert len(ROWS) == 73
    assert {row["ranks"] for row in ROWS} == {2, 3, 4, 5, 6, 7, 8, 12, 16}
    assert {row["comms"] for row in ROWS} == {1, 2, 4}


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_pinned_memory_of_every_measured_run(row):
    predicted = nccl_host_bytes(
        row["channels"], row["ranks"], row["buffsize"], row["ll128_buffsize"], communicators(row)
    )
    tolerance = 4 * KIB + (2 * MIB if row["comms"] > 1 else 0)
    assert abs(row["shm_init"] * KIB - predicted) <= tolerance


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_connections_of_every_measured_run(row):
    assert row["conn_init"] == communicators(row) * row["channels"] * connections_per_channel(row["ranks"])


@pytest.mark.parametrize("row", [r for r in ROWS if r["shm_p2p"] is not None], ids=name)
def test_first_send_and_receive(row):
    low, high = (row["shm_p2p"], row["shm_p2p"]) if isinstance(row["shm_p2p"], int) else row["shm_p2p"]
    before = row["shm_allgather"] if isinstance(row["shm_allgather"], int) else row["shm_allgather"][0]
    added = send_recv_bytes(row["channels"], row["comms"])
    assert low * KIB - 64 * KIB <= before * KIB + added <= high * KIB + 64 * KIB


@pytest.mark.parametrize(
    ("ranks", "connections"),
    [(1, 0), (2, 2), (3, 4), (4, 6), (5, 8), (6, 8), (7, 12), (8, 10), (12, 12), (16, 14)],
)
def test_connections_per_channel(ranks, connections):
    assert connections_per_channel(ranks) == connections


@pytest.mark.parametrize(
    ("buffsize", "ll128", "size"),
    [(None, None, 9641984), (1048576, None, 6496256), (1048576, 262144, 1843200)],
)
def test_buffers_of_one_connection(buffsize, ll128, size):
    assert connection_bytes(buffsize, ll128) == size


@pytest.mark.parametrize(("buffsize", "mib"), [(None, 91.953125), (1048576, 61.953125), (16777216, 211.953125)])
def test_one_channel_at_eight_ranks(buffsize, mib):
    assert channel_bytes(8, buffsize) / MIB == mib


def test_published_spark_steps():
    """Shmem of an eight-Spark site, two communicators, small buffers: default -> 16 -> 8 channels."""
    steps = MEASURED["published_spark_steps"]
    default = nccl_host_bytes(None, 8, communicators=2)
    sixteen = nccl_host_bytes(16, 8, 1048576, 262144, 2)
    eight = nccl_host_bytes(8, 8, 1048576, 262144, 2)
    assert sixteen - eight == steps["diff_16_to_8"]
    assert default - sixteen == 11670650880
    assert abs(default - sixteen - steps["diff_default_to_16"]) <= 2 * MIB + 4 * KIB


def test_published_spark_memavailable():
    """Default to 8 channels: the mean MemAvailable of the nodes fell 13,583,700,992 bytes less."""
    lost = available_loss_bytes(None, 8, communicators=2) - available_loss_bytes(8, 8, 1048576, 262144, 2)
    assert lost == pytest.approx(13583700992, rel=0.005)


def test_reported_points_and_line():
    assert nccl_reported_gib(8) == 11
    assert nccl_reported_gib(64) == nccl_reported_gib(None) == 37
    assert nccl_reported_gib(16) == pytest.approx(7.286 + 0.4643 * 16, abs=1e-3)


def test_two_communicators_exceed_the_default_shm():
    assert dev_shm_bytes(1) < 64 * MIB < dev_shm_bytes(2) == 68427776


def test_one_rank_needs_no_buffers():
    assert nccl_host_bytes(8, 1) == 0
    assert available_loss_bytes(8, 1) == 0
