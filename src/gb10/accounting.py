"""One way to add up a rank's memory, and what follows from it: pool, tokens, GMU floor and ceiling, vLLM's words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gb10.kv_cache import KvLayout, pool_blocks

GIB = 1 << 30
REPORTED, ENGINE = "reported", "engine"
Kind = Literal["measured", "reported", "derived", "given"]


@dataclass(frozen=True)
class Component:
    """One line of an accounting, with where its figure comes from."""

    name: str
    gib: float
    kind: Kind
    source: str


@dataclass(frozen=True)
class Accounting:
    """One way to add it up. ``kv_bytes`` is the pool; ``unexplained_gib`` is what is left beyond the reported pool."""

    name: str
    total_gib: float
    budget_gib: float
    components: tuple[Component, ...]
    outside: tuple[Component, ...]
    unexplained_gib: float
    kv_bytes: int
    kv_published_gib: float | None
    """The pool the source itself gives for exactly these settings."""
    reserve_gib: float
    shape: KvLayout
    blocks_per_request: int
    max_model_len: int
    max_num_seqs: int
    largest_model_len: int
    """The longest context this accounting holds once, were max_model_len set to it."""
    estimated_model_len: int
    """vLLM's own estimate from the present pool, at most max_model_len."""
    pinned_pool: bool
    """The pool is given in bytes, not by GMU."""

    @property
    def used_gib(self) -> float:
        """Inside the budget, without the pool."""
        return sum(c.gib for c in self.components)

    @property
    def left_gib(self) -> float:
        """What the sum leaves for the pool."""
        return self.budget_gib - self.used_gib

    @property
    def outside_gib(self) -> float:
        """Taken from the node beside the budget."""
        return sum(c.gib for c in self.outside)

    @property
    def kv_gib(self) -> float:
        """The pool in GiB."""
        return self.kv_bytes / GIB

    @property
    def kv_blocks(self) -> int:
        """num_gpu_blocks, the null block included."""
        return pool_blocks(self.kv_bytes, self.shape)

    @property
    def requests(self) -> float:
        """Requests of full length at once; vLLM's "Maximum concurrency"."""
        return self.kv_blocks / self.blocks_per_request

    @property
    def tokens(self) -> int:
        """vLLM's "KV cache size"."""
        return int(self.requests * self.max_model_len)

    @property
    def serves(self) -> bool:
        """Whether one request of full length and the null block fit."""
        return self.kv_blocks > self.blocks_per_request

    def pool_bytes(self, requests: int) -> int:
        """The smallest pool that holds ``requests`` of full length: their blocks and the null block."""
        return (requests * self.blocks_per_request + 1) * self.shape.bytes_per_block

    @property
    def headroom_gib(self) -> float:
        """What stays with the operating system once the budget is used up."""
        taken = self.used_gib + self.kv_gib if self.pinned_pool else self.budget_gib
        return self.total_gib - self.outside_gib - taken

    def gmu_floor(self, requests: int = 1) -> float:
        """Smallest GMU whose pool holds ``requests`` of full length (rounded up to 0.0001); above 1 when none does."""
        pool = self.pool_bytes(requests) / GIB
        return math.ceil((self.used_gib + self.unexplained_gib + pool) / self.total_gib * 1e4 + 1e-6) / 1e4

    @property
    def gmu_ceiling(self) -> float:
        """Largest GMU that keeps the reserve (rounded down to 0.0001); 0 when none does."""
        share = (self.total_gib - self.outside_gib - self.reserve_gib) / self.total_gib
        return min(1.0, max(0.0, math.floor(share * 1e4 + 1e-6) / 1e4))

    def prints(self, device: str) -> list[str]:
        """What vLLM will log, or refuse with, were this accounting right."""
        lines = []
        if device == "GPU":
            size = f"{round(self.kv_gib, 2)} GiB"
            lines = [f"Available KV cache memory: {size}"]
            if self.pinned_pool:
                lines = [f"... reserved {size} memory for KV Cache as specified by kv_cache_memory_bytes config ..."]
        pool = self.kv_bytes - self.shape.bytes_per_block
        if self.serves:
            return [
                *lines,
                f"{device} KV cache size: {self.tokens:,} tokens, "
                f"Maximum concurrency for {self.max_model_len:,} tokens per request: {self.requests:.2f}x",
            ]
        if pool <= 0:
            return [*lines, "No available memory for the cache blocks."]
        need = self.blocks_per_request * self.shape.bytes_per_block
        text = (
            f"To serve at least one request with the model's max seq len ({self.max_model_len}), "
            f"({round(need / GIB, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({round(pool / GIB, 2)} GiB)."
        )
        if self.estimated_model_len:
            text += f" Based on the available memory, the estimated maximum model length is {self.estimated_model_len}."
        return [*lines, text]

    def as_dict(self, device: str) -> dict[str, Any]:
        """JSON form, GiB to four digits."""
        return {
            "total_gib": rounded(self.total_gib),
            "budget_gib": rounded(self.budget_gib),
            "components": [{**asdict(c), "gib": rounded(c.gib)} for c in self.components],
            "outside": [{**asdict(c), "gib": rounded(c.gib)} for c in self.outside],
            "used_gib": rounded(self.used_gib),
            "left_gib": rounded(self.left_gib),
            "unexplained_gib": rounded(self.unexplained_gib),
            "kv_gib": rounded(self.kv_gib),
            "kv_published_gib": self.kv_published_gib,
            "kv_blocks": self.kv_blocks,
            "kv_tokens": self.tokens,
            "requests": rounded(self.requests),
            "largest_model_len": self.largest_model_len,
            "headroom_gib": rounded(self.headroom_gib),
            "gmu_floor": self.gmu_floor(),
            "gmu_floor_all": self.gmu_floor(self.max_num_seqs),
            "gmu_ceiling": self.gmu_ceiling,
            "prints": self.prints(device),
        }


def rounded(value: float) -> float:
    """Four digits, and never -0.0."""
    return round(value, 4) + 0.0
