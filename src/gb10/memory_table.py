"""The memory plan as a person reads it: fixed width, both accountings side by side."""

from __future__ import annotations

from gb10.memory import Accounting, MemoryPlan

WIDTH = 28


def memory_table(plan: MemoryPlan) -> str:
    """The table, without a trailing newline. GiB per rank; a letter says where each figure is from."""
    a, b = plan.accountings
    lines = [_row("GiB per rank", a.name, b.name), _row("", "-" * 14, "-" * 14)]
    for name in dict.fromkeys(c.name for x in (a, b) for c in x.components):
        lines.append(_row(name, _component(a, name), _component(b, name)))
    lines += [
        _row("used inside the budget", _gib(a.used_gib), _gib(b.used_gib)),
        _row("budget", f"{_gib(a.budget_gib)} of {a.total_gib:g}", f"{_gib(b.budget_gib)} of {b.total_gib:g}"),
        _row("left", _gib(a.left_gib), _gib(b.left_gib)),
    ]
    if a.unexplained_gib:
        lines.append(_row("unexplained", _gib(a.unexplained_gib), ""))
    lines.append(_row("KV cache", _gib(a.kv_gib), _gib(b.kv_gib)))
    lines.append(_row("free after one request", *(_gib(x.kv_gib - plan.request_gib) for x in (a, b))))
    outside = dict.fromkeys(c.name for x in (a, b) for c in x.outside)
    lines += [_row(f"outside: {name}", _outside(a, name), _outside(b, name)) for name in outside]
    if plan.gmu_recommended is not None or outside:
        lines.append(_row("left to the system", _gib(a.headroom_gib), _gib(b.headroom_gib)))
    lines += [
        _row("KV cache tokens", f"{a.tokens:,}", f"{b.tokens:,}"),
        _row("requests of full length", f"{a.requests:.2f}", f"{b.requests:.2f}"),
        _row("largest context", f"{a.largest_model_len:,}", f"{b.largest_model_len:,}"),
    ]
    if not a.pinned_pool:
        lines += [
            _row("GMU floor, one request", _gmu(a.gmu_floor()), _gmu(b.gmu_floor())),
            _row(
                f"GMU floor, {a.max_num_seqs} requests",
                _gmu(a.gmu_floor(a.max_num_seqs)),
                _gmu(b.gmu_floor(b.max_num_seqs)),
            ),
            _row("GMU ceiling", _gmu(a.gmu_ceiling), _gmu(b.gmu_ceiling)),
        ]
        lines.append(f"GMU recommended: {'none' if plan.gmu_recommended is None else f'{plan.gmu_recommended:g}'}")
    lines += [
        f"One request of {a.max_model_len:,} tokens needs {plan.request_gib:.4f} GiB: {a.blocks_per_request:,} blocks "
        f"of {a.shape.bytes_per_block:,} bytes ({a.shape.name}).",
        "m measured, r reported, d derived, g given",
        "vLLM will print:",
    ]
    for x in (a, b):
        lines += [f"  {x.name + ':':<10}{text}" for text in x.prints(plan.device)]
    if plan.disagreements:
        lines.append("Report and evidence disagree:")
        for d in plan.disagreements:
            digits = ".2f" if d.unit == "GiB" else ",.0f"
            lines.append(f"  {d.what:<12}{d.reported:{digits}} against {d.evidence:{digits}} {d.unit}: {d.note}")
    return "\n".join(line.rstrip() for line in lines)


def _row(name: str, left: str, right: str) -> str:
    return f"{name:<{WIDTH}}{left:>18}{right:>18}"


def _component(x: Accounting, name: str) -> str:
    found = [c for c in x.components if c.name == name]
    return f"{_gib(found[0].gib)} {found[0].kind[0]}" if found else "-"


def _outside(x: Accounting, name: str) -> str:
    found = [c for c in x.outside if c.name == name]
    return f"{_gib(found[0].gib)} {found[0].kind[0]}" if found else "-"


def _gib(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def _gmu(value: float) -> str:
    return f"{value:.4f}" if 0 < value <= 1 else "none"
