"""What is measured, as the operator set it: read once, refused readably, then typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gb10 import data, prompts
from gb10.findings import Finding, error
from gb10.settings import BadValue, flag, integer, number, sequence, shown, words

MOST_REQUESTS = 20_000  # of a run: more is a slip


def levels(value: Any) -> list[int]:
    """Numbers of concurrent users, rising."""
    one = integer(1, 1024)
    try:
        found = [one(item) for item in sequence(value)]
    except BadValue:
        found = []
    if not found or found != sorted(set(found)):
        raise BadValue("a rising list of integers from 1 to 1024, like [1, 2, 4, 8]")
    return found


@dataclass(frozen=True)
class Settings:
    """The role's variables without their prefix; seconds and tokens."""

    levels: list[int]
    output_tokens: int
    requests_per_user: int
    repeats: int
    warmups: int
    seed: int
    command: list[str]
    python: list[str]
    request_timeout: float
    level_timeout: float
    timeout: float
    gate: bool
    gate_users: int
    worse: float

    @property
    def requests(self) -> int:
        """Of one repeat."""
        return sum(self.requests_per_user * c for c in self.levels)

    def workload(self) -> dict[str, Any]:
        """What must be equal in two runs that are compared."""
        names = ("levels", "output_tokens", "requests_per_user", "seed")
        held = {name: value for name, value in asdict(self).items() if name in names}
        return held | {"prompts_sha256": prompts.digest(prompts.prompt_set(self.seed))}


PARSERS = {
    "benchmark_levels": levels,
    "benchmark_output_tokens": integer(2, 65536),
    "benchmark_requests_per_user": integer(1, 1000),
    "benchmark_repeats": integer(1, 15),
    "benchmark_warmups": integer(0, 1000),
    "benchmark_seed": integer(0, 1 << 31),
    "benchmark_command": words,
    "benchmark_python": words,
    "benchmark_request_timeout": number(1, 3600),
    "benchmark_level_timeout": number(1, 86400),
    "benchmark_timeout": number(1, 7 * 86400),
    "benchmark_gate": flag,
    "benchmark_gate_users": integer(1, 1024),
    "benchmark_worse": number(0, 1),
}


def read(variables: Mapping[str, Any]) -> tuple[Settings | None, list[Finding]]:
    """Settings from the role's variables by name; None with one finding a value that is wrong."""
    values: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, parse in PARSERS.items():
        try:
            values[name.removeprefix("benchmark_")] = parse(variables.get(name))
        except BadValue as bad:
            message = f"{name} is {shown(variables.get(name))} but must be {bad}."
            findings.append(error("benchmark-invalid", message, "Correct the variable."))
    if findings:
        return None, findings
    found = Settings(**values)
    if found.requests * found.repeats > MOST_REQUESTS:
        message = f"{found.requests} requests {found.repeats} times are more than {MOST_REQUESTS}."
        remedy = "Lower benchmark_levels, benchmark_requests_per_user or benchmark_repeats."
        return None, [error("benchmark-invalid", message, remedy)]
    return found, []


def spec(settings: Settings, url: str, model: str, tokenizer: str, run: str) -> dict[str, Any]:
    """What benchmark_worker is given. Repeats are the outer loop, so that what drifts meets every level."""
    known = data.load("benchmark")
    return {
        "url": url,
        "model": model,
        "tokenizer": tokenizer,
        "run": run,
        "command": settings.command,
        "output_tokens": settings.output_tokens,
        "warmups": settings.warmups,
        "prompts": prompts.prompt_set(settings.seed),
        "timeout": settings.request_timeout,
        "level_timeout": settings.level_timeout,
        "metrics": known["metrics"],
        "gauges": known["gauges"],
        "interval": known["interval"],
        "levels": [
            {"concurrency": c, "repeat": repeat, "requests": c * settings.requests_per_user}
            for repeat in range(1, settings.repeats + 1)
            for c in settings.levels
        ],
    }
