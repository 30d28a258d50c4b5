"""The memory plan as a person reads it: made from the plan document, both accountings side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

Memory = Mapping[str, Any]

WIDTH = 100
NAME, CELL, MARK = 34, 12, 18  # columns of a line: its name, a right-aligned figure, what is said of the figure


def memory_table(memory: Memory) -> str:
    """The table of a plan document's ``memory``, at most 100 columns wide, without a trailing newline."""
    table = _Table(memory)
    table.budget()
    table.pool()
    table.share()
    table.nodes()
    table.closing()
    return "\n".join(line.rstrip() for line in table.lines)


class _Table:
    """Lines under way, and the sources named so far."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.sides = [memory["reported"], memory["engine"]]
        self.sources: dict[str, int] = {}
        tokens, seqs = memory["max_model_len"], memory["max_num_seqs"]
        engram = {"memory": ", Engram in memory", "disk": ", Engram on disk"}.get(memory["engram"], "")
        self.lines: list[str] = []
        self.wrapped(
            f"GiB of one rank: {memory['model']}, {memory['tensor_parallel']} ranks, {tokens:,} tokens, "
            f"{seqs} sequences{engram}",
            "",
            "  ",
        )
        self.lines += ["", f"{'':<{NAME}}{'as reported':>{CELL}}{'':<{MARK}}{'vLLM steps':>{CELL}}"]

    def row(self, name: str, *cells: tuple[str, str]) -> None:
        """One line: its name, then figure and mark of each accounting."""
        self.lines.append(f"{name:<{NAME}}" + "".join(f"{figure:>{CELL}}{mark:<{MARK}}" for figure, mark in cells))

    def both(self, name: str, key: str, show: Any) -> None:
        """A figure that both accountings have."""
        self.row(name, *((show(side[key]), "") for side in self.sides))

    def mark(self, part: Memory) -> str:
        """How a component is known, and the number of its source."""
        number = self.sources.setdefault(part["source"], len(self.sources) + 1)
        return f" {part['kind'][0]} [{number}]"

    def budget(self) -> None:
        """Components, budget, what is left of it, and what the report leaves unexplained."""
        memory, parts = self.memory, [{c["name"]: c for c in side["components"]} for side in self.sides]
        outside = [{c["name"]: c for c in side["outside"]} for side in self.sides]
        for name in dict.fromkeys(name for side in parts for name in side):
            cells = []
            for mine, apart in zip(parts, outside, strict=True):
                found = mine.get(name)
                where = "outside" if name in apart else "-"
                cells.append((_gib(found["gib"]), self.mark(found)) if found else (where, ""))
            self.row(name, *cells)
        self.both("used", "used_gib", _gib)
        given = [(_gib(side["budget_gib"]), f" of {side['total_gib']:.6g}") for side in self.sides]
        self.row(f"budget, GMU {memory['gpu_memory_utilization']:g}", *given)
        if memory["kv_cache_memory_bytes"] is None:
            self.both("left", "left_gib", _gib)
        published = self.sides[0]["kv_published_gib"]
        if published is not None:
            self.row("KV pool as published", (_gib(published), self.mark(self.sides[0]["components"][0])))
        if self.sides[0]["unexplained_gib"] and memory["kv_cache_memory_bytes"] is None:
            self.row("unexplained", (_gib(self.sides[0]["unexplained_gib"]), ""))
        for name in dict.fromkeys(name for side in outside for name in side):
            cells = [(_gib(s[name]["gib"]), self.mark(s[name])) if name in s else ("-", "") for s in outside]
            self.row(f"outside the budget: {name}", *cells)
        if memory["accelerator"] == "gpu":
            self.both("left to the operating system", "headroom_gib", _gib)

    def pool(self) -> None:
        """What the KV pool holds."""
        memory = self.memory
        given = memory["kv_cache_memory_bytes"] is not None
        self.lines.append("")
        self.row("KV pool", *((_gib(side["kv_gib"]), " g" if given else "") for side in self.sides))
        need = _gib(memory["request_gib"])
        self.row(f"needed for {memory['max_model_len']:,} tokens", (need, ""), (need, ""))
        self.row("left after it", *((_gib(side["kv_gib"] - memory["request_gib"]), "") for side in self.sides))
        self.both("requests of full length at once", "requests", lambda value: f"{value:.2f}")
        self.both("largest context that fits, tokens", "largest_model_len", _whole)
        self.both("pool in tokens", "kv_tokens", _whole)
        self.both(f"blocks of {memory['bytes_per_block']:,} bytes", "kv_blocks", _whole)
        self.row("blocks of one request", *((_whole(memory["blocks_per_request"]), "") for _ in self.sides))

    def share(self) -> None:
        """GMU: its limits and what is recommended."""
        memory = self.memory
        if memory["kv_cache_memory_bytes"] is not None:
            self.lines += ["", "kv_cache_memory_bytes gives the pool: GMU and its limits say nothing."]
            return
        self.lines.append("")
        self.both("GMU floor, one request", "gmu_floor", _gmu)
        self.both(f"GMU floor, {memory['max_num_seqs']} requests", "gmu_floor_all", _gmu)
        self.both(f"GMU ceiling, {memory['memory_reserve_gib']:g} GiB kept", "gmu_ceiling", _gmu)
        best, share = memory["gmu_recommended"], memory["gpu_memory_utilization"]
        how = "auto became" if memory["gpu_memory_utilization_given"] == "auto" else "given is"
        best = "none" if best is None else f"{best:g}"
        self.lines.append(f"gpu_memory_utilization (GMU): {how} {share:g}, recommended is {best}")

    def nodes(self) -> None:
        """Every measured node."""
        if not self.memory["nodes"]:
            return
        names = (
            ("total", 10),
            ("available", 12),
            ("less NCCL", 12),
            ("wanted", 10),
            ("GMU starts", 13),
            ("GMU keeps", 12),
        )
        self.lines += ["", f"{'node':<22}" + "".join(f"{name:>{width}}" for name, width in names)]
        for node in self.memory["nodes"]:
            sizes = (node[key] for key in ("mem_total_gib", "mem_available_gib", "free_gib", "wanted_gib"))
            figures = "".join(f"{size:>{width}.2f}" for size, width in zip(sizes, (10, 12, 12, 10), strict=True))
            said = " serves" if node["serving"] else ""
            self.lines.append(f"{node['node']:<22}{figures}{node['gmu_starts']:>13.2f}{node['gmu_keeps']:>12.2f}{said}")

    def closing(self) -> None:
        """What vLLM will print, where the sources disagree, and what the marks mean."""
        memory = self.memory
        self.lines += ["", "vLLM will print"]
        for name, side in (("as reported", self.sides[0]), ("vLLM steps", self.sides[1])):
            for number, text in enumerate(side["prints"]):
                self.wrapped(text, f"  {name + ':' if not number else '':<13}", " " * 15)
        if memory["disagreements"]:
            self.lines += ["", "Report and evidence disagree"]
        for one in memory["disagreements"]:
            digits = ".2f" if one["unit"] == "GiB" else ",.0f"
            text = f"{one['reported']:{digits}} against {one['evidence']:{digits}} {one['unit']}: {one['note']}"
            self.wrapped(text, f"  {one['what']:<13}", " " * 15)
        self.lines += ["", "Sources: m measured, r reported, d derived, g given; no mark: follows from the lines above"]
        deciding = "as reported" if memory["deciding"] == "reported" else "vLLM steps"
        columns = f"as reported: the report's own sum; vLLM steps: what vLLM does, in turn; errors go by {deciding}"
        self.wrapped(columns, "  ", "  ")
        for source, number in self.sources.items():
            self.wrapped(source, f"  [{number}] ", "      ")

    def wrapped(self, text: str, first: str, then: str) -> None:
        """A text over as many lines as it takes."""
        self.lines += textwrap.wrap(
            text, WIDTH, initial_indent=first, subsequent_indent=then, break_on_hyphens=False, break_long_words=False
        )


def _gib(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def _whole(value: int) -> str:
    return f"{value:,}"


def _gmu(value: float) -> str:
    return f"{value:.4f}" if 0 < value <= 1 else "none"
