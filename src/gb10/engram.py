"""The Engram tables: how many rows they have and which rows each rank owns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from math import isqrt
from typing import Any

from gb10.data import load

GIB = 1 << 30


@dataclass(frozen=True)
class EngramShard:
    """One rank's part: per layer the rows ``[start, end)``, and the bytes of all of them."""

    rank: int
    rows: dict[int, tuple[int, int]]
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form: layer numbers become strings, ranges lists."""
        out = asdict(self)
        out["rows"] = {str(layer): list(span) for layer, span in self.rows.items()}
        return out


@cache
def head_rows() -> dict[int, tuple[int, ...]]:
    """Rows of every hash head, per layer: primes in ascending order, none used twice (vLLM's EngramLayout)."""
    data = load("model_v41")["engram"]
    heads: int = data["heads"]
    primes: list[int] = []
    candidate: int = data["bucket_floor"]
    while len(primes) < heads * len(data["layers"]):
        if all(candidate % d for d in range(2, isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return {layer: tuple(primes[n * heads : (n + 1) * heads]) for n, layer in enumerate(data["layers"])}


def engram_split(tensor_parallel: int) -> list[EngramShard]:
    """Row ranges and bytes of every rank, in rank order.

    Raises ValueError where vLLM's split would leave a rank without heads.
    """
    data = load("model_v41")["engram"]
    heads: int = data["heads"]
    if tensor_parallel < 1:
        raise ValueError(f"tensor_parallel must be at least 1, not {tensor_parallel}")
    part = -(-heads // tensor_parallel)
    if (tensor_parallel - 1) * part >= heads:
        raise ValueError(f"{heads} Engram heads cannot be split over {tensor_parallel} ranks")
    shards = []
    for rank in range(tensor_parallel):
        rows = {
            layer: (sum(sizes[: rank * part]), sum(sizes[: (rank + 1) * part])) for layer, sizes in head_rows().items()
        }
        count = sum(end - start for start, end in rows.values())
        shards.append(EngramShard(rank, rows, count * int(data["row_bytes"])))
    return shards


def engram_gib(tensor_parallel: int) -> float:
    """GiB of the largest rank's part. Ranks that vLLM could not fill count as an even split."""
    try:
        return max(shard.bytes for shard in engram_split(tensor_parallel)) / GIB
    except ValueError:
        total = sum(shard.bytes for shard in engram_split(1))
        return total / tensor_parallel / GIB
