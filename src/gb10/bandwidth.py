"""Measuring links: which programs run on which node, and what they printed.

ib_write_bw and ib_write_lat (perftest) over RDMA; over sockets iperf3, one TCP stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gb10.environment import LOSSLESS_TC
from gb10.pairs import Link

# A transfer that takes this much longer than it should is given up, in seconds.
SLACK = 15

# Retransmission timer of a queue pair, 4.096 us x 2^20: NCCL's own (NCCL_IB_TIMEOUT). perftest's 14 is 67 ms, which a
# path with long queues exceeds, and then its repeats break the connection.
TIMER = 20

# What is measured: unit of each kind.
UNITS = {"gbps": "Gb/s", "us": "us"}


@dataclass(frozen=True)
class Test:
    """How links are measured. ``seconds`` a transfer; ``port`` the first of those that servers listen on."""

    rdma: bool
    lossless: bool
    seconds: int
    port: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each link is measured for."""
        return ("gbps", "us") if self.rdma else ("gbps",)


def servers(test: Test, links: Sequence[Link], limit: int) -> dict[str, list[dict[str, Any]]]:
    """Per node what listens there: ``[{port, argv}]``. Each ends by itself after ``limit`` seconds.

    A perftest server takes one client, so there is one for every link and kind; iperf3's takes one at a time.
    """
    found: dict[str, dict[int, list[str]]] = {link.receiver: {} for link in links}
    for link in links:
        for kind in test.kinds:
            port = port_of(test, links, link, kind)
            argv = (
                perftest(test, link.receives_on.hca, link.receives_on.gid_of(link.target), kind, port)
                if test.rdma
                else ["iperf3", "--server", "--bind", link.target, "--port", str(port)]
            )
            found[link.receiver][port] = ["timeout", "--kill-after=5", str(limit), *argv]
    return {node: [{"port": port, "argv": argv} for port, argv in ports.items()] for node, ports in found.items()}


def transfers(test: Test, links: Sequence[Link], sender: str, receiver: str) -> list[dict[str, Any]]:
    """What ``sender`` runs against ``receiver``, one after the other: ``[{rail, kind, argv, timeout}]``."""
    found = []
    for link in links:
        if (link.sender, link.receiver) != (sender, receiver):
            continue
        for kind in test.kinds:
            port = port_of(test, links, link, kind)
            if test.rdma:
                argv = [*perftest(test, link.sends_on.hca, link.sends_on.gid_of(link.source), kind, port), link.target]
            else:
                argv = ["iperf3", "--client", link.target, "--bind", link.source, "--port", str(port)]
                argv += ["--time", str(test.seconds), "--connect-timeout", "3000", "--json"]
            timeout = test.seconds + SLACK
            found.append({"rail": link.rail, "kind": kind, "argv": argv, "timeout": timeout})
    return found


def port_of(test: Test, links: Sequence[Link], link: Link, kind: str) -> int:
    """The port of a link's server on the receiver."""
    rails = sorted({other.rail for other in links})
    number = rails.index(link.rail)
    if test.rdma:
        senders = sorted({other.sender for other in links})
        number += len(rails) * senders.index(link.sender)
    return test.port + len(test.kinds) * number + test.kinds.index(kind)


def perftest(test: Test, hca: str, gid: int | None, kind: str, port: int) -> list[str]:
    """ib_write_bw in Gb/s for a while, or ib_write_lat of 1000 writes; the same on both ends."""
    argv = ["ib_write_bw" if kind == "gbps" else "ib_write_lat", "-F", "-u", str(TIMER), "-d", hca, "-p", str(port)]
    argv += ["-x", str(gid)] if gid is not None else []
    argv += [f"--tclass={LOSSLESS_TC}"] if test.lossless else []
    if kind == "gbps":
        return [*argv, "-s", "65536", "-q", "4", "-D", str(test.seconds), "--report_gbits"]
    return [*argv, "-s", "2", "-n", "1000"]


def value_of(kind: str, output: str) -> float | None:
    """The measured value in what a client printed: Gb/s on average, or the typical latency in microseconds."""
    if output.lstrip().startswith("{"):
        return iperf3_value(output)
    return perftest_value(output, "BW average[Gb/sec]" if kind == "gbps" else "t_typical[usec]")


def iperf3_value(output: str) -> float | None:
    """Gb/s that arrived, from iperf3's JSON."""
    try:
        bits = json.loads(output)["end"]["sum_received"]["bits_per_second"]
    except (ValueError, KeyError, TypeError):
        return None
    return float(bits) / 1e9


def perftest_value(output: str, column: str) -> float | None:
    """One column of perftest's table: the first line of numbers below the header."""
    names: list[str] = []
    for line in output.splitlines():
        if line.strip().startswith("#bytes"):
            names = re.findall(r"#\w+|BW \w+\[\S+?\]|[\d.]+% percentile\[\w+\]|\w+\[\w+\]", line)
        elif names and re.match(r"\s*\d+\s+\d+\s", line):
            values = line.split()
            return float(values[names.index(column)]) if column in names and len(values) >= len(names) else None
    return None


def problem_of(result: dict[str, Any]) -> str:
    """Why a transfer gave nothing, in one line."""
    if result.get("timed_out"):
        return "no end within its time"
    text = str(result.get("stdout") or "")
    if text.lstrip().startswith("{"):
        try:
            return str(json.loads(text).get("error") or "no result")
        except ValueError:
            return "no result"
    lines = [line.strip() for line in f"{text}\n{result.get('stderr') or ''}".splitlines() if line.strip(" -\t")]
    return lines[-1][:120] if lines else f"exit code {result.get('rc')}"
