"""What NCCL takes from a rank's memory: by the measured formula, and as the report says. Bytes unless named otherwise.

The formula holds for one GPU per node, network transport, no GPUDirect RDMA and NCCL_CUMEM_ENABLE=0 (all buffers are
made when the communicator is): within 4 KiB for one communicator, 2 MiB more for several (small buffers share a slab).
"""

from __future__ import annotations

from typing import Any

from gb10.data import load

GIB = 1 << 30
MIB = 1 << 20


def connections_per_channel(ranks: int) -> int:
    """K(N): network connections of one rank and channel (ring and binomial trees), 2 x |{+-2^j mod N : 2^j < N}|."""
    steps = [1 << j for j in range(ranks.bit_length()) if 1 << j < ranks]
    return 2 * len({step % ranks for step in steps} | {-step % ranks for step in steps})


def connection_bytes(buffsize: int | None = None, ll128_buffsize: int | None = None) -> int:
    """S: host buffers of one connection. NCCL_PROTO does not change it: all three protocols' buffers are made."""
    data = _data()
    return int(
        data["ll_buffsize"]
        + (data["ll128_buffsize"] if ll128_buffsize is None else ll128_buffsize)
        + (data["buffsize"] if buffsize is None else buffsize)
        + data["connection_bytes"]
    )


def nccl_host_bytes(
    channels: int | None,
    ranks: int,
    buffsize: int | None = None,
    ll128_buffsize: int | None = None,
    communicators: int = 1,
) -> int:
    """Pinned host memory (Shmem) of one rank. ``None`` means unset: 64 channels on Sparks, NCCL's own sizes."""
    data = _data()
    if ranks < 2:
        return 0
    fixed = int(data["proxy_pool_bytes"] + data["work_fifo_bytes"])
    return communicators * (_channels(channels) * channel_bytes(ranks, buffsize, ll128_buffsize) + fixed)


def channel_bytes(ranks: int, buffsize: int | None = None, ll128_buffsize: int | None = None) -> int:
    """Pinned host memory of one channel of one communicator; buffers below 2 MiB share a slab."""
    slab = int(_data()["slab_bytes"])
    size = connection_bytes(buffsize, ll128_buffsize)
    if size < slab:
        size = slab // (slab // size)
    return connections_per_channel(ranks) * size


def send_recv_bytes(channels: int | None, communicators: int = 1) -> int:
    """What the first send or receive adds; the channel count is rounded up to a power of two."""
    data = _data()
    count = 1 << (_channels(channels) - 1).bit_length()
    return communicators * 2 * count * int(data["p2p_buffers"] * data["p2p_buffer_bytes"])


def dev_shm_bytes(communicators: int) -> int:
    """What the proxy pools take of /dev/shm: two exceed the 64 MiB a container gets by default."""
    return communicators * int(_data()["proxy_pool_bytes"])


def gpu_bytes(channels: int | None, communicators: int = 1) -> int:
    """Device memory, which on GB10 is the same memory."""
    return communicators * _channels(channels) * int(_data()["gpu_bytes_per_channel"])


def available_loss_bytes(
    channels: int | None,
    ranks: int,
    buffsize: int | None = None,
    ll128_buffsize: int | None = None,
    communicators: int = 1,
) -> int:
    """What MemAvailable loses on a Spark: a line through the two published points, queue pairs and regions included."""
    data = _data()
    if ranks < 2:
        return 0
    low, high = data["spark_loss"]
    slope = (high["lost_mib"] - low["lost_mib"]) / (high["pinned_mib"] - low["pinned_mib"])
    pinned = channel_bytes(ranks, buffsize, ll128_buffsize) / MIB
    lost = low["lost_mib"] + slope * (pinned - low["pinned_mib"])
    fixed = int(data["proxy_pool_bytes"] + data["work_fifo_bytes"])
    return int(communicators * (round(_channels(channels) * lost * MIB) + fixed))


def nccl_reported_gib(channels: int | None) -> float:
    """The report's figure at TP8: 11 GiB with 8 channels, 37 with 64 (or unset), a line through both."""
    low, high = _data()["reported"]
    slope = (high["gib"] - low["gib"]) / (high["channels"] - low["channels"])
    return float(low["gib"] + slope * (_channels(channels) - low["channels"]))


def _channels(channels: int | None) -> int:
    return int(_data()["default_channels"]) if channels is None else channels


def _data() -> dict[str, Any]:
    return load("nccl")
