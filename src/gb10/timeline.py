"""The change history as one HTML page that needs nothing else: no script, no font, no picture from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from gb10.runs import Now, Run
from gb10.stories import counted, now_text, outcome, who

STYLE = """
:root{--ink:#1c2330;--soft:#5d6778;--line:#d9dee7;--page:#f5f7fa;--card:#fff;--changed:#2563eb;--unchanged:#8a94a6;
--failed:#c62828;--interrupted:#c77700;--open:#7b1fa2;--good:#1b7f3b}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf1;--soft:#9aa5b8;--line:#333c4b;--page:#12161d;--card:#1b212b}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem}h1{font-size:1.5rem;margin:0 0 .25rem}
h2{font-size:.85rem;font-weight:600;color:var(--soft);margin:2rem 0 .5rem;letter-spacing:.04em}
.now{border-left:4px solid var(--good);background:var(--card);padding:.75rem 1rem;white-space:pre-line;
border-radius:4px}
.bad{border-color:var(--failed)}.runs{border-left:2px solid var(--line);margin-left:.45rem;padding-left:1.2rem}
article{position:relative;background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7rem 1rem;
margin:0 0 .7rem}
article::before{content:"";position:absolute;left:-1.68rem;top:1.05rem;width:.8rem;height:.8rem;border-radius:50%;
background:var(--c);border:2px solid var(--page)}
.changed{--c:var(--changed)}.unchanged{--c:var(--unchanged)}.failed{--c:var(--failed)}
.interrupted{--c:var(--interrupted)}.open{--c:var(--open)}
header{display:flex;flex-wrap:wrap;gap:.15rem .8rem;align-items:baseline}time{font-variant-numeric:tabular-nums}
.tag{color:var(--c);font-weight:600}.soft,dt,footer{color:var(--soft)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}dd{margin:0;overflow-wrap:anywhere}
summary{cursor:pointer;padding:.15rem 0}pre{margin:.2rem 0 .6rem;padding:.5rem .7rem;background:var(--page);
border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.45 ui-monospace,monospace}
.add{color:var(--good)}.del{color:var(--failed)}footer{margin-top:2rem;font-size:.85rem}
"""


def page(cluster: str, held: Sequence[Run], now: Now, faults: Sequence[str], head: str) -> str:
    """The whole page, the newest run first. ``head``: what the ledger ends with."""
    days = groupby(reversed(held), key=lambda run: run.text("time")[:10])
    body = "".join(f"<h2>{_(day)}</h2><div class=runs>{''.join(map(card, group))}</div>" for day, group in days)
    state = "".join(f'<p class="now bad">{_(fault)}</p>' for fault in faults)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Change history of {_(cluster)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Change history of {_(cluster)}</h1><p class=soft>{len(held)} runs, times in UTC</p>{state}"
        f"<p class=now>{_(now_text(now))}</p>{body}"
        f"<footer>The ledger ends with {_(head)}.</footer></main></body></html>\n"
    )


def card(run: Run) -> str:
    """One run."""
    kind = run.outcome if run.outcome in ("changed", "unchanged", "failed", "interrupted") else "open"
    given = ", ".join(f"{name}={value}" for name, value in sorted((run.begin.get("overrides") or {}).items()))
    pairs = [
        ("overrides", given),
        ("commit", run.text("commit")[:12] + (" with local changes" if run.begin.get("dirty") else "")),
        ("plan", run.text("plan_hash")[:12]),
        *((f"image {name}", counted(digests)) for name, digests in (run.begin.get("images") or {}).items()),
        ("took", f"{run.end['seconds']:.0f} s" if run.end else ""),
        ("run", run.id),
    ]
    terms = "".join(f"<dt>{_(name)}</dt><dd>{_(value)}</dd>" for name, value in pairs if value)
    bad = [item for kind in ("failed", "unreachable") for item in (run.end or {}).get(kind) or []]
    errors = "".join(
        f"<p class=tag>{_(item['node'])}: {_(item['task'])}</p><pre>{_(item.get('message') or '')}</pre>"
        for item in bad
    )
    return (
        f"<article class={kind}><header><time>{_(run.text('time')[11:19])}</time>"
        f"<strong>{_(run.text('playbook').rsplit('/', 1)[-1])}</strong><span>{_(run.text('profile'))}</span>"
        f"<span class=tag>{_(outcome(run))}</span><span class=soft>{_(who(run))}</span></header>"
        f"<dl>{terms}</dl>{errors}{''.join(map(task, run.changes))}</article>"
    )


def task(change: Any) -> str:
    """One task's changes, folded."""
    nodes = list(dict.fromkeys(str(item["node"]) for item in change["items"]))
    said: dict[str, list[str]] = {}
    for item in change["items"]:
        text = "\n".join(filter(None, [item.get("item"), item.get("diff") or item.get("note")]))
        said.setdefault(text, []).append(str(item["node"]))
    parts = ""
    for text, names in said.items():
        lines = "".join(map(diff_line, text.splitlines()))
        parts += f"<div class=soft>{_(', '.join(sorted(set(names))))}</div><pre>{lines}</pre>" if text else ""
    return f"<details><summary>{_(change['task'])} <span class=soft>on {len(nodes)}</span></summary>{parts}</details>"


def diff_line(line: str) -> str:
    """A line of a diff, coloured."""
    kind = {"+": "add", "-": "del"}.get(line[:1])
    return f"<span class={kind}>{_(line)}</span>\n" if kind else f"{_(line)}\n"


def _(text: str) -> str:
    return escape(str(text))
