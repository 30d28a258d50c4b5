"""A run of the benchmark as one HTML page that needs nothing else: no network, no script, pictures inside.

Good on a phone (one column, wide tables scroll in themselves), on a screen and in print.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gb10 import benchmark_compare, data
from gb10.benchmark_plots import CHARTS
from gb10.benchmark_text import number
from gb10.reference import table as reference

MEMORY = "What fills a node's memory, as the report adds it up and as vLLM does"
BARS = (
    "This run is the thick line; bars are the 95 % interval of its mean, from repeats. Squares: the report's table. "
    "Thin: the run before."
)
STYLE = Path(__file__).with_name("data") / "report.css"


def page(
    run: Mapping[str, Any], before: Mapping[str, Any] | None, charts: Mapping[str, Path], memory: Path | None = None
) -> str:
    """The page. ``charts``: SVG files by stem; ``memory``: that of the memory plan."""
    title = f"Benchmark of {run['profile']}"
    capacity = run["capacity"]
    parts = [
        f"<header><h1>{escape(title)}</h1><p>{escape(run['cluster'])}, {escape(run['time'])}, run "
        f"<code>{escape(run['run'])}</code></p></header>",
        f'<section class="verdict"><p class="max">Max C <strong>{capacity["max_c"]}</strong></p>'
        f"<p>{escape(capacity['recommendation'])}</p></section>",
        _warnings(run["findings"]),
        _section("Charts", _charts(charts), f"<p>{BARS}</p>"),
        _section("Targets", _targets(run)),
        _section("Figures", _figures(run), _definitions(run)),
        _section("Against the report", _against_report(run)),
        _section("Against the run before", _against_run(before, run)),
        _section("What the engine tells", _server(run)),
        _section("Memory plan", f'<div class="wide">{_picture(memory, MEMORY)}</div>') if memory else "",
        _section("Configuration", _configuration(run, before)),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(content) + "</section>"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]], classes: Sequence[str] = ()) -> str:
    """A table that scrolls in itself; ``classes``: one a row."""
    marks = [*classes]
    body = []
    for n, row in enumerate(rows):
        mark = f' class="{marks[n]}"' if n < len(marks) and marks[n] else ""
        body.append(f"<tr{mark}>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _warnings(findings: Sequence[Mapping[str, str]]) -> str:
    if not findings:
        return ""
    items = "".join(
        f'<li class="{escape(f["level"])}"><strong>{escape(f["level"])}</strong> <code>{escape(f["code"])}</code> '
        f"{escape(f['message'])} {escape(f['remedy'])}</li>"
        for f in findings
    )
    return f'<section class="findings"><h2>Findings</h2><ul>{items}</ul></section>'


# Figure: name with unit, decimals.
ROWS = {
    "ttft_ms": ("TTFT, ms", 1),
    "tpot_ms": ("TPOT, ms per token", 2),
    "itl_ms": ("ITL, ms per chunk", 2),
    "tps": ("TPS of one request, tok/s", 2),
    "latency_s": ("latency, s", 2),
}


def _figures(run: Mapping[str, Any]) -> str:
    rows, marks = [], []
    for level in run["levels"]:
        share = level["tokens"] / level["chunks"] if level["chunks"] else None
        rows.append(
            (
                f"{level['c']}",
                f"{level['completed']} of {level['requests']}",
                number(level["aggregate_tps"], 1),
                number(level["request_rate"], 2),
                number(share, 2),
            )
        )
        marks.append("failed" if level["failed"] else "")
    header = ("users", "completed", "output tok/s, all", "requests/s", "tokens a chunk")
    parts = [_table(header, rows, marks)]
    for figure, (name, digits) in ROWS.items():
        cells = [
            (level["c"], *(number(level[figure][key], digits) for key in ("mean", "p50", "p90", "p99")))
            for level in run["levels"]
        ]
        parts.append(f"<div><h3>{escape(name)}</h3>" + _table(("users", "mean", "P50", "P90", "P99"), cells) + "</div>")
    return parts[0] + f'<div class="grid small">{"".join(parts[1:])}</div>'


DEFINITIONS = {
    "TTFT": "from sending the request to the first chunk with content; a chunk that only names the role is no token.",
    "TPOT": "(latency - TTFT) / (tokens - 1) of one request. The report prints this one as ITL.",
    "ITL": "between two chunks of one request. With speculative decoding a chunk holds several tokens.",
    "TPS": "tokens / latency of one request, TTFT included, as the report prints it.",
    "latency": "from sending the request to its last token.",
    "output tok/s, requests/s": "of all completed requests, over the wall time of the level.",
    "P50, P90, P99": "what 50, 90, 99 % of the requests reach or better: for TPS these are low figures.",
}


def _definitions(run: Mapping[str, Any]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in DEFINITIONS.items())
    return f"<details open><summary>What the figures mean</summary><dl>{items}</dl></details>"


def _picture(path: Path, words: str) -> str:
    """A picture inside the page."""
    held = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(words)}" src="data:image/svg+xml;base64,{held}"></figure>'


def _charts(charts: Mapping[str, Path]) -> str:
    titles = {chart.stem: f"{chart.title}, {chart.unit}, over concurrent users" for chart in CHARTS}
    return f'<div class="grid">{"".join(_picture(path, titles[stem]) for stem, path in charts.items())}</div>'


def _targets(run: Mapping[str, Any]) -> str:
    slo, misses = run["slo"], run["capacity"]["misses"]
    key = slo["statistic"]
    rows, marks = [], []
    for level in run["levels"]:
        why = misses[str(level["c"])]
        figures = (number(level["ttft_ms"][key], 1), number(level["tps"][key], 2))
        rows.append((level["c"], *figures, "; ".join(why) or "met"))
        marks.append("failed" if why else "good")
    wanted = [f"TTFT ({key}), ms" + (f", at most {slo['ttft_ms']:g}" if slo["ttft_ms"] is not None else "")]
    wanted += [f"TPS ({key})" + (f", at least {slo['tps']:g}" if slo["tps"] is not None else "")]
    return '<div class="targets">' + _table(("users", *wanted, "verdict"), rows, marks) + "</div>"


def _against_report(run: Mapping[str, Any]) -> str:
    known = reference(run["profile"])
    if not known:
        return f"<p>The report has no table of {escape(run['profile'])}.</p>"
    rows = []
    for level in run["levels"]:
        row = known.get(level["c"])
        if row is None:
            continue
        pairs = [
            (level["ttft_ms"]["mean"], row.ttft_ms, 1),
            (level["tpot_ms"]["mean"], row.tpot_ms, 2),
            (level["tps"]["mean"], row.tps, 2),
            (level["latency_s"]["mean"], row.latency_s, 2),
            (level["aggregate_tps"], row.aggregate_tps, 1),
        ]
        rows.append((level["c"], *(_beside(*pair) for pair in pairs)))
    header = ("users", "TTFT ms", "TPOT ms (its ITL)", "TPS", "latency s", "tok/s, all")
    same = run["workload"]["output_tokens"] == data.load("reference")["output_tokens"]
    note = "<p>Ours / the report's. Its requests a second are 1 / latency; the last column has users / latency.</p>"
    if not same:
        note += "<p>The report's answers had 128 tokens, these had another number: latencies do not compare.</p>"
    return (_table(header, rows) if rows else "<p>No level is one of the report's.</p>") + note


def _beside(ours: float | None, reported: float | None, digits: int) -> str:
    change = f" ({100 * (ours / reported - 1):+.0f} %)" if ours is not None and reported else ""
    return f"{number(ours, digits)} / {number(reported, digits)}{change}"


def _against_run(before: Mapping[str, Any] | None, run: Mapping[str, Any]) -> str:
    if before is None:
        return "<p>There is no earlier run of this profile.</p>"
    about = f"<p>Run <code>{escape(before['run'])}</code>, {escape(before['time'])}."
    different = benchmark_compare.unlike(before, run)
    if different:
        return about + f" It measured something else: {escape('; '.join(different))}.</p>"
    rows, marks = [], []
    for c in benchmark_compare.changes(before, run):
        name, unit, _ = benchmark_compare.FIGURES[c.figure]
        noise = "unknown" if c.noise is None else f"± {c.noise:.1f} %"
        cells = (f"{c.before:.2f}", f"{c.after:.2f}", f"{c.percent:+.1f} %", noise, WORDS[c.verdict])
        rows.append((c.c, f"{name}, {unit}", *cells))
        marks.append({"worse": "failed", "better": "good"}.get(c.verdict, ""))
    words = " Noise: the 95 % interval of the difference, from the repeats of both runs.</p>"
    header = ("users", "figure", "before", "now", "change", "noise", "verdict")
    return about + words + '<div class="changes">' + _table(header, rows, marks) + "</div>"


WORDS = {"better": "better", "worse": "worse", "same": "within noise", "unknown": "one repeat: not known"}


def _server(run: Mapping[str, Any]) -> str:
    rows = []
    for level in run["levels"]:
        told = [repeat["server"] for repeat in level["repeats"]]

        def mean(key: str, told: list[Mapping[str, Any]] = told) -> float | None:
            values = [one[key] for one in told if one[key] is not None]
            return sum(values) / len(values) if values else None

        def most(key: str, told: list[Mapping[str, Any]] = told) -> float | None:
            return max((one[key] for one in told if one[key] is not None), default=None)

        rows.append(
            (
                level["c"],
                _percent(mean("acceptance")),
                number(mean("accepted_length"), 2),
                _percent(most("kv_use")),
                number(most("preemptions"), 0),
                _percent(mean("prefix_hits")),
                number(mean("ttft_ms"), 1),
                number(most("running"), 0),
                number(most("waiting"), 0),
            )
        )
    header = ("users", "drafts accepted", "tokens a step", "KV use, highest", "preemptions", "prefix cache hits")
    words = (
        "<p>From /metrics, before and after each level; KV use and queue as seen once a second. A dash: not told.</p>"
    )
    return _table((*header, "TTFT ms, its own", "running", "waiting"), rows) + words


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _configuration(run: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """Every part of it; where the run before had another value, that one too."""
    old = _parts(before) if before else {}
    rows, marks = [], []
    for name, value in _parts(run).items():
        changed = name in old and old[name] != value and name not in ("run", "time")
        rows.append((name, value + (f" (before: {old[name]})" if changed else "")))
        marks.append("changed" if changed else "")
    return '<div class="configuration">' + _table(("what", "value"), rows, marks) + "</div>"


def _parts(run: Mapping[str, Any]) -> dict[str, str]:
    workload, client, held = run["workload"], run["client"], run["deployment"]
    commit = str(run.get("commit", "")) + (" with changes" if run.get("dirty") else "")
    return {
        "model, endpoint": f"{run['model']}, {run['url']}",
        "image": held["image"],
        "image digest": held["image_digest"],
        "plan hash": held["plan_hash"],
        "deployed by run": held["deployed_by"],
        "git commit": commit or "none",
        "ranks": str(held["ranks"]),
        "KV cache, tokens": held["kv_cache_tokens"] or "-",
        **{name: str(value) for name, value in held["options"].items()},
        "client": f"{' '.join(client['command'])}, on the head",
        "answers": f"{workload['output_tokens']} tokens, the engine told to ignore the end",
        "requests": f"{workload['requests_per_user']} a user and level, {client['repeats']} repeats, "
        f"{client['warmups']} before each level not counted",
        "prompts": f"seed {workload['seed']}, sha256 {workload['prompts_sha256']}; each begins with what no other has, "
        "so that the prefix cache holds none",
    }
