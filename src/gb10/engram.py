"""The Engram tables: how many rows they have and which rows each rank owns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from math import isqrt
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True)
class EngramTables:
    """One table a layer. Every hash head owns a bucket range of prime size; heads are split over the ranks."""

    layers: tuple[int, ...]
    heads: int
    """Hash heads of one table: (max_ngram_size - 1) x n_heads."""
    bucket_floor: int
    """The primes are the ones from here on, in order."""
    row_bytes: int
    """FP8 values and their scales."""


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
def head_rows(tables: EngramTables) -> dict[int, tuple[int, ...]]:
    """Rows of every hash head, per layer: primes in ascending order, none used twice (vLLM's EngramLayout)."""
    primes: list[int] = []
    candidate = max(2, tables.bucket_floor)
    while len(primes) < tables.heads * len(tables.layers):
        if all(candidate % d for d in range(2, isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return {layer: tuple(primes[n * tables.heads : (n + 1) * tables.heads]) for n, layer in enumerate(tables.layers)}


def splits(tables: EngramTables, tensor_parallel: int) -> bool:
    """Whether every rank gets a head: vLLM refuses a split that leaves one without."""
    part = -(-tables.heads // tensor_parallel)
    return (tensor_parallel - 1) * part < tables.heads


def engram_split(tables: EngramTables, tensor_parallel: int) -> list[EngramShard]:
    """Row ranges and bytes of every rank, in rank order.

    Raises ValueError where vLLM's split would leave a rank without heads.
    """
    if tensor_parallel < 1:
        raise ValueError(f"tensor_parallel must be at least 1, not {tensor_parallel}")
    if not splits(tables, tensor_parallel):
        raise ValueError(f"{tables.heads} Engram heads cannot be split over {tensor_parallel} ranks")
    part = -(-tables.heads // tensor_parallel)
    shards = []
    for rank in range(tensor_parallel):
        rows = {
            layer: (sum(sizes[: rank * part]), sum(sizes[: (rank + 1) * part]))
            for layer, sizes in head_rows(tables).items()
        }
        count = sum(end - start for start, end in rows.values())
        shards.append(EngramShard(rank, rows, count * tables.row_bytes))
    return shards


def engram_gib(tables: EngramTables, tensor_parallel: int) -> float:
    """GiB of the largest rank's part. Ranks that vLLM could not fill count as an even split."""
    if splits(tables, tensor_parallel):
        return max(shard.bytes for shard in engram_split(tables, tensor_parallel)) / GIB
    return engram_split(tables, 1)[0].bytes / tensor_parallel / GIB
