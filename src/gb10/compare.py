"""Two plans side by side. Memory whole, with what differs marked; of the rest only what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gb10.diff import fields, options, ranks
from gb10.report import table

Document = Mapping[str, Any]

# Keys of an accounting (docs/plan.md) and what they are called; components come before them.
FIGURES = {
    "used_gib": "used inside the budget, GiB",
    "budget_gib": "budget, GiB",
    "left_gib": "left, GiB",
    "unexplained_gib": "unexplained, GiB",
    "kv_gib": "KV cache, GiB",
    "kv_tokens": "KV cache tokens",
    "requests": "requests of full length",
    "largest_model_len": "largest context",
    "headroom_gib": "left to the system, GiB",
    "gmu_floor": "GMU floor, one request",
    "gmu_floor_all": "GMU floor, all requests",
    "gmu_ceiling": "GMU ceiling",
}
# Options every plan gives that are worth a line even where they are alike.
SHOWN = ("--tensor-parallel-size", "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs")


@dataclass(frozen=True)
class Line:
    """One figure in both plans, as text; ``-`` where a plan has none."""

    section: str
    what: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the plans differ here."""
        return self.left != self.right


def lines(left: Document, right: Document) -> list[Line]:
    """The comparison of two plan documents."""
    return [*_plan(left, right), *_memory(left, right), *_ranks(left, right)]


def _plan(left: Document, right: Document) -> Iterator[Line]:
    sides = [next(iter(ranks(document).values()), None) for document in (left, right)]
    heads = [rank or {"argv": [], "image": "-", "image_digest": "-"} for rank in sides]
    yield Line("plan", "nodes", *(str(len(document["ranks"])) for document in (left, right)))
    yield Line("plan", "image", *(str(head["image"]) for head in heads))
    yield Line("plan", "image digest", *(str(head["image_digest"])[:19] for head in heads))
    given = [options(head["argv"]) for head in heads]
    for option in SHOWN:
        yield Line("plan", option, *(found.get(option, "-") for found in given))


def _memory(left: Document, right: Document) -> Iterator[Line]:
    memories = [document.get("memory") or {} for document in (left, right)]
    yield Line("memory", "one request, GiB", *(_figure(memory.get("request_gib")) for memory in memories))
    yield Line("memory", "GMU recommended", *(_figure(memory.get("gmu_recommended")) for memory in memories))
    for name in dict.fromkeys(key for memory in memories for key in ("reported", "engine") if memory.get(key)):
        sides = [memory.get(name) or {} for memory in memories]
        for part, prefix in (("components", ""), ("outside", "outside: ")):
            found = [{c["name"]: c["gib"] for c in side.get(part) or []} for side in sides]
            for what in dict.fromkeys(key for side in found for key in side):
                yield Line(name, f"{prefix}{what}, GiB", *(_figure(side.get(what)) for side in found))
        for key, what in FIGURES.items():
            yield Line(name, what, *(_figure(side.get(key)) for side in sides))


def _figure(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}".rstrip("0").rstrip(".")


def _ranks(left: Document, right: Document) -> Iterator[Line]:
    """What the heads' containers differ in, beyond what is said already."""
    heads = [next(iter(ranks(document).values()), None) for document in (left, right)]
    if None in heads:
        return
    said = ("profile", "rank", "image", "image digest", *(f"argv {option}" for option in SHOWN))
    found = []
    for change in fields(heads[1], heads[0]):
        if change.field not in said:
            kind, _, what = change.field.partition(" ")
            section = "nccl" if what.startswith("NCCL_") else kind if kind in ("argv", "env") else "container"
            sides = ("-" if v is None else v for v in (change.running, change.planned))
            found.append(Line(section, what if section != "container" else change.field, *sides))
    yield from sorted(found, key=lambda x: ("argv", "env", "nccl", "container").index(x.section))


def text(found: list[Line], left: str, right: str) -> str:
    """As printed: a ``*`` before what differs."""
    rows: list[tuple[str, str, str, str]] = []
    section = ""
    for line in found:
        if line.section != section:
            section = line.section
            rows.append(("", f"[{section}]", "", ""))
        rows.append(("*" if line.differs else "", line.what, line.left, line.right))
    return table(("", "", left, right), rows)


def as_dict(found: list[Line], left: str, right: str) -> dict[str, Any]:
    """JSON form."""
    return {"schema": 1, "profiles": [left, right], "lines": [asdict(x) | {"differs": x.differs} for x in found]}
