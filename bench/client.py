"""Our figures of an endpoint against a second client's, in one run: llmeter and what we make of vLLM's client, in turn.

``python -m bench.client`` measures the lab's endpoint with the lab's engine. Both run here, with the same prompts,
tokens and concurrency. The last column is the median of the repeats' ratios, since the two of a repeat are a minute
apart; it is 1 where both agree.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from gb10 import benchmark, benchmark_client, benchmark_settings, benchmark_worker, checkout
from lab.cache import cache_dir, digest

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).with_name("client-requirements.txt")
LAB = ROOT / ".lab/inventory/group_vars/lab.yml"
SECONDS = 900
FIGURES = {"ttft_ms": "TTFT, mean ms", "latency_s": "latency, mean s", "aggregate_tps": "aggregate, tok/s"}


def second() -> Path:
    """The Python that has the second client, installed where it is not (a minute)."""
    place = cache_dir() / f"llmeter-{digest(REQUIREMENTS)}"
    if not (place / "complete").exists():
        venv.create(place, with_pip=True)
        subprocess.run([place / "bin/pip", "install", "--quiet", "-r", REQUIREMENTS], check=True, timeout=SECONDS)
        (place / "complete").touch()
    return place / "bin/python"


def ours(given: dict[str, Any], level: dict[str, Any]) -> dict[str, float]:
    """As the benchmark has them."""
    found = benchmark_worker.run(given | {"levels": [level]})
    fault = benchmark_client.fault(found, given["model"], given["url"]) or found["levels"][0]["error"]
    if fault:
        raise SystemExit(f"bench.client: {fault}")
    raw = found["levels"][0]["raw"]
    requests = benchmark_client.requests_of(raw, benchmark_client.leading(found["probe"]), given["output_tokens"])
    made = benchmark.level(requests, raw["duration"])
    if made["failed"]:
        raise SystemExit(f"bench.client: {made['errors']}")
    return {name: made[name]["mean"] if isinstance(made[name], dict) else made[name] for name in FIGURES}


def theirs(python: Path, given: dict[str, Any], level: dict[str, Any]) -> dict[str, float]:
    """As llmeter has them."""
    prompts = [one["conversations"][0]["value"] for one in benchmark_worker.prompts_of(given, level)]
    users = level["concurrency"]
    spec = {"url": given["url"], "model": given["model"], "tokens": given["output_tokens"]}
    spec |= {"warmups": given["warmups"], "prompts": [prompts[user::users] for user in range(users)]}
    command = [python, Path(__file__).with_name("llmeter_client.py")]
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"bench.client: llmeter: {(done.stdout + done.stderr)[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Prints one line a figure."""
    defaults = checkout.role_defaults(ROOT)
    lab = yaml.safe_load(LAB.read_text()) if LAB.exists() else {}
    engine = lab.get("lab_engine_dir", "")
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--url", default="http://10.77.1.153:8000")
    given.add_argument("--model", default="deepseek-v4.1-flash")
    given.add_argument("--tokenizer", default=lab.get("weights_source", ""))
    given.add_argument("--client", nargs="+", default=[f"{engine}/bin/vllm" if engine else "vllm", "bench", "serve"])
    given.add_argument("--users", type=int, default=2)
    given.add_argument("--requests", type=int, default=40)
    given.add_argument("--tokens", type=int, default=64)
    given.add_argument("--repeats", type=int, default=3)
    args = given.parse_args()
    variables = {name: defaults.get(name) for name in benchmark_settings.PARSERS}
    variables |= {
        "benchmark_output_tokens": args.tokens,
        "benchmark_command": args.client,
        "benchmark_levels": [args.users],
    }
    settings, findings = benchmark_settings.read(variables)
    if settings is None:
        raise SystemExit(f"bench.client: {findings[0].message}")
    python, held = second(), {"ours": [], "theirs": []}  # type: tuple[Path, dict[str, list[dict[str, float]]]]
    for repeat in range(1, args.repeats + 1):
        level = {"concurrency": args.users, "repeat": repeat, "requests": args.requests}
        for who in ("ours", "theirs"):
            spec = benchmark_settings.spec(settings, args.url, args.model, args.tokenizer, f"{who}-{os.getpid()}")
            held[who].append(ours(spec, level) if who == "ours" else theirs(python, spec, level))
            print(who, {name: round(value, 3) for name, value in held[who][-1].items()}, file=sys.stderr)
    print(f"{'median of ' + str(args.repeats):<20}{'ours':>10}{'llmeter':>10}{'ratio':>8}")
    for name, words in FIGURES.items():
        both = [(a[name], b[name]) for a, b in zip(held["ours"], held["theirs"], strict=True)]
        ratio = median(pair[0] / pair[1] for pair in both)
        mine, other = (median(pair[place] for pair in both) for place in (0, 1))
        print(f"{words:<20}{mine:>10.2f}{other:>10.2f}{ratio:>8.3f}")


if __name__ == "__main__":
    main()
