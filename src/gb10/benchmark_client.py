"""What the worker on the head brought back: read, judged, and made into requests by our definitions."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from gb10.answer import models_fault
from gb10.benchmark import Request
from gb10.benchmark_worker import MARK

Document = Mapping[str, Any]
SHOWN = 200  # characters of what a container said


class Unmeasured(Exception):
    """There is nothing to measure, or nothing was; one line of text."""


def result_of(output: str) -> dict[str, Any]:
    """The worker's result in what its container printed. Raises Unmeasured."""
    lines = [line for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(MARK)]
    try:
        found: dict[str, Any] = json.loads(
            zlib.decompress(base64.b64decode(marked[-1].removeprefix(MARK), validate=True))
        )
    except IndexError:
        said = lines[-1][:SHOWN] if lines else "it said nothing"
        raise Unmeasured(f"the client on the head gave no result: {said}") from None
    except (binascii.Error, zlib.error, ValueError):
        raise Unmeasured("the client's result did not arrive whole") from None
    return found


def fault(found: Document, model: str, url: str) -> str:
    """Why the endpoint cannot be measured, empty when it can."""
    models, probe = found["models"], found["probe"]
    if models["status"] == 0:
        return f"nothing answers at {url}: {models['body']}"
    listed = models_fault(models["status"], models["body"], model)
    if listed:
        return listed
    if probe["error"]:
        return f"one streamed answer failed: {probe['error']}"
    if "content" not in probe["chunks"]:
        return f"a streamed answer of {len(probe['chunks'])} chunks had no content in it"
    if not probe["done"]:
        return "a streamed answer stopped before its end"
    if not probe["tokens"]:
        return "a streamed answer told no usage, so its tokens would only be guessed (stream_options.include_usage)"
    return ""


def leading(probe: Document) -> int:
    """Chunks at the beginning of every answer that only name the role. The client takes the first chunk for the first
    token, whatever is in it."""
    count = 0
    for kind in probe["chunks"]:
        if kind != "role":
            break
        count += 1
    return count


def requests_of(raw: Document, skipped: int, output_tokens: int) -> list[Request]:
    """The level's requests from the client's per-request lists. ``skipped``: what ``leading`` found.

    The engine was told to ignore the end. An answer with another number of tokens than was asked for was cut off, or
    its tokens were guessed: it failed.
    """
    columns = zip(raw["ttfts"], raw["itls"], raw["latencies"], raw["output_lens"], raw["errors"], strict=True)
    return [_request(*column, skipped, output_tokens) for column in columns]


def _request(
    ttft: float, itls: Sequence[float], latency: float, tokens: int, error: str, skipped: int, wanted: int
) -> Request:
    if error:
        return Request(error=error)
    if ttft <= 0 or latency <= 0:  # an HTTP status without a reason leaves the client's text empty
        return Request(error="the endpoint refused it without a reason")
    if tokens != wanted:
        return Request(error=f"it ended with {tokens} of {wanted} tokens")
    if len(itls) < skipped:
        return Request(error="no chunk had content")
    first = ttft + sum(itls[:skipped])
    return Request(ttft=first, itls=tuple(itls[skipped:]), latency=latency, tokens=tokens)
