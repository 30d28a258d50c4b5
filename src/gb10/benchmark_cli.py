"""``gb10 benchmark`` measures; ``gb10 report`` shows and draws runs that are kept. See docs/benchmark.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gb10 import benchmark_compare, benchmark_kept, benchmark_text, checkout, playbook, run_cli
from gb10.benchmark_run import Document
from gb10.findings import errors, line
from gb10.sources import shown

GOOD, WORSE, USAGE = 0, 1, 2
PLAYBOOK = "playbooks/benchmark.yml"


def add(verbs: Any) -> None:
    """Both verbs on the command line of ``gb10``."""
    verb = verbs.add_parser(
        "benchmark",
        help="the endpoint measured: TTFT, TPS and throughput by concurrent users",
        description=f"Runs {PLAYBOOK}.",
        epilog="example:  gb10 benchmark --profile tp8-300k -i inventory/hosts.yml -e benchmark_repeats=5",
        allow_abbrev=False,
    )
    verb.set_defaults(run=benchmark_verb)
    verb.add_argument("--profile", default="", metavar="P", help="that serves (default: the variable profile)")
    playbook.options(verb)
    shows = verbs.add_parser(
        "report",
        help="a run of the benchmark again, or two side by side",
        description="RUN is the directory of a run, or its id where it stands in history/*/benchmarks.",
        epilog="exit status: 0; 1 when --compare finds a regression beyond noise; 2 when a run cannot be read.",
        allow_abbrev=False,
    )
    shows.set_defaults(run=report_verb)
    what = shows.add_mutually_exclusive_group(required=True)
    what.add_argument("of", nargs="?", metavar="RUN", help="the run")
    what.add_argument("--compare", nargs=2, metavar=("A", "B"), help="run B against the earlier run A")
    shows.add_argument("-o", "--output", metavar="DIR", help="page, charts and CSV are drawn there")
    shows.add_argument(
        "--worse", type=share, default=0.05, metavar="SHARE", help="least share of a regression (default: 0.05)"
    )


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def benchmark_verb(args: argparse.Namespace) -> int:
    """The exit status of ansible-playbook."""
    options = [*(["-e", f"profile={args.profile}"] if args.profile else []), *playbook.given(args)]
    return run_cli.run_verb(argparse.Namespace(playbook=PLAYBOOK, options=options))


def report_verb(args: argparse.Namespace) -> int:
    """Prints a run; draws it where asked."""
    try:
        names = args.compare or [args.of]
        runs = [find(name) for name in names]
        before, run = (runs[0] if args.compare else None), runs[-1]
        print(benchmark_text.text(run, before))
        if args.output:
            print(f"\n{benchmark_kept.render(run, before, Path(args.output).expanduser())}")
    except benchmark_kept.NotKept as problem:
        print(f"gb10: {problem}.", file=sys.stderr)
        return USAGE
    except OSError as problem:
        print(f"gb10: {args.output}: {shown(problem)}.", file=sys.stderr)
        return USAGE
    found = benchmark_compare.findings(before, run, args.worse, gate=True) if before else []
    for finding in found:
        print(line(finding), file=sys.stderr)
    return WORSE if errors(found) else GOOD


def find(name: str) -> Document:
    """A run by its directory, or by its id in the checkout's history. Raises NotKept."""
    path = Path(name).expanduser()
    if not path.exists() and "/" not in name and name:
        held = sorted((checkout.root() / "history").glob(f"*/benchmarks/{name}/{benchmark_kept.RUN}"))
        if not held:
            raise benchmark_kept.NotKept(f"{name}: no such directory, and no run of that id in history/*/benchmarks")
        path = held[0]
    return benchmark_kept.load(path)
