"""Runs on the head, in a container of the serving image: drives vLLM's own benchmark client, level after level.

Its source is given to the image's Python, so it needs nothing but the standard library. Its one argument is a JSON
object: url, model, command (of the client), tokenizer, output_tokens, warmups, prompts, run, levels ([{concurrency,
repeat, requests}]), timeout (seconds of one request), level_timeout, metrics, gauges, interval.

The endpoint's API key, where it has one, is in the environment as the engine reads it (VLLM_API_KEY); the client gets
it as the name it reads.

It first asks what is served, and streams one answer to see what this endpoint's chunks hold; it measures nothing of an
endpoint that fails there. The last line it prints is MARK and the result: compressed JSON, in base64. With each level
come the engine's own figures before and after it, and the highest of its gauges during it.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import Any

MARK = "GB10-BENCHMARK "
KEPT = ("duration", "ttfts", "itls", "latencies", "output_lens", "input_lens", "errors", "start_times")
ERROR_LENGTH = 200  # characters kept of what the client says
KEY = os.environ.get("VLLM_API_KEY", "")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
OPENER.addheaders += [("Authorization", f"Bearer {KEY}")] if KEY else []
CLIENT_ENV = {**os.environ, **({"OPENAI_API_KEY": KEY} if KEY else {})}

Spec = dict[str, Any]


def ask(url: str, timeout: float) -> dict[str, Any]:
    """Status and text of a GET; status 0 when nothing answered."""
    try:
        with OPENER.open(url, timeout=timeout) as answer:
            return {"status": answer.status, "body": answer.read().decode(errors="replace")}
    except urllib.error.HTTPError as problem:
        return {"status": problem.code, "body": problem.read().decode(errors="replace")[:2000]}
    except (OSError, ValueError) as problem:
        return {"status": 0, "body": str(problem)}


def models(spec: Spec) -> dict[str, Any]:
    """Answer of /v1/models, its body decoded where it is JSON."""
    answer = ask(f"{spec['url']}/v1/models", spec["timeout"])
    try:
        return answer | {"body": json.loads(answer["body"])}
    except ValueError:
        return answer


def lists(answer: dict[str, Any], model: str) -> bool:
    """Whether the endpoint serves ``model``; what else it says is judged on the controller."""
    try:
        return answer["status"] == 200 and model in [served["id"] for served in answer["body"]["data"]]
    except (KeyError, TypeError):
        return False


def probe(spec: Spec) -> dict[str, Any]:
    """One streamed answer: ``chunks`` (role, content or other, in order), ``tokens`` by its usage (None: it told none),
    ``done`` (the stream was ended as it should be), ``error``."""
    body = {
        "model": spec["model"],
        "messages": [{"role": "user", "content": f"{spec['run']} probe. {spec['prompts'][0]}"}],
        "max_completion_tokens": spec["output_tokens"],
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{spec['url']}/v1/chat/completions", json.dumps(body).encode(), headers)
    found: dict[str, Any] = {"chunks": [], "tokens": None, "done": False, "error": ""}
    end = time.monotonic() + spec["timeout"]
    try:
        with OPENER.open(request, timeout=spec["timeout"]) as answer:
            for line in answer:
                if time.monotonic() > end:
                    raise TimeoutError("timed out")
                text = line.decode(errors="replace").strip()
                if text == "data: [DONE]":
                    found["done"] = True
                elif text.startswith("data: "):
                    read_chunk(json.loads(text.removeprefix("data: ")), found)
    except urllib.error.HTTPError as problem:
        found["error"] = f"HTTP {problem.code}: {problem.read().decode(errors='replace')[:ERROR_LENGTH]}"
    except Exception as problem:  # whatever an endpoint does is said, not thrown
        found["error"] = str(problem) or type(problem).__name__
    return found


def streams(seen: dict[str, Any]) -> bool:
    """Whether an answer had all that figures are made from; what it lacked is said on the controller."""
    return bool(seen and not seen["error"] and "content" in seen["chunks"] and seen["done"] and seen["tokens"])


def read_chunk(chunk: dict[str, Any], found: dict[str, Any]) -> None:
    """Adds one event of the stream."""
    usage, choices = chunk.get("usage"), chunk.get("choices")
    if choices:
        delta = choices[0].get("delta") or {}
        said = any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls"))
        found["chunks"].append("content" if said else "role" if delta.get("role") else "other")
    elif usage:
        found["tokens"] = usage.get("completion_tokens")


def client_argv(spec: Spec, level: dict[str, Any], prompts: str, results: str) -> list[str]:
    """The client's command line for one level; the result is ``result.json`` in ``results``."""
    options = {
        "--backend": "openai-chat",
        "--base-url": spec["url"],
        "--endpoint": "/v1/chat/completions",
        "--model": spec["model"],
        "--tokenizer": spec["tokenizer"],
        "--dataset-name": "sharegpt",
        "--dataset-path": prompts,
        "--output-len": spec["output_tokens"],
        "--num-prompts": level["requests"],
        "--max-concurrency": level["concurrency"],
        "--num-warmups": spec["warmups"],
        "--temperature": 0,
        "--result-dir": results,
        "--result-filename": "result.json",
    }
    flags = ["--disable-shuffle", "--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed"]
    return [*spec["command"], *(str(word) for pair in options.items() for word in pair), *flags]


def prompts_of(spec: Spec, level: dict[str, Any]) -> list[dict[str, Any]]:
    """The level's prompts as the client reads them. Each begins with what no other has, so no cache holds it."""
    name = f"{spec['run']} {level['repeat']}.{level['concurrency']}"
    held = spec["prompts"]
    said = [f"{name}.{number} {held[number % len(held)]}" for number in range(level["requests"])]
    return [{"conversations": [{"value": text}, {"value": "-"}]} for text in said]


def measure(spec: Spec, level: dict[str, Any]) -> dict[str, Any]:
    """One level: what the client measured (``raw``, empty where it failed), ``error``, and the server's metrics."""
    found = dict(level, raw={}, error="", before=metrics(spec), highest={})
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.json"
        prompts.write_text(json.dumps(prompts_of(spec, level)))
        stop = threading.Event()
        watcher = threading.Thread(target=watch, args=(spec, found["highest"], stop), daemon=True)
        watcher.start()
        try:
            found["error"] = run_client(client_argv(spec, level, str(prompts), folder), spec["level_timeout"])
            if not found["error"]:
                raw = json.loads((Path(folder) / "result.json").read_text())
                found["raw"] = {key: raw[key] for key in KEPT}
        except (OSError, ValueError, KeyError) as problem:
            found["error"] = f"the client's result cannot be read: {problem!r}"
        finally:
            stop.set()
            watcher.join(spec["timeout"])
    if found["raw"]:
        found["raw"]["errors"] = [last_line(text) for text in found["raw"]["errors"]]
        for key in ("ttfts", "latencies", "start_times"):
            found["raw"][key] = [round(value, 6) for value in found["raw"][key]]
        found["raw"]["itls"] = [[round(value, 6) for value in itls] for itls in found["raw"]["itls"]]
    return found | {"after": metrics(spec)}


def run_client(argv: list[str], seconds: float) -> str:
    """Why the client gave no result, empty when it did. It and all it started end within ``seconds``."""
    try:
        client = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=CLIENT_ENV,
            start_new_session=True,
        )
    except OSError as problem:
        return f"the client {argv[0]} does not start: {problem.strerror}"
    try:
        said, _ = client.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        return f"the client had not ended after {seconds:g} s"
    return f"the client ended with {client.returncode}: {last_line(said)}" if client.returncode else ""


def last_line(text: str) -> str:
    """The last line with something in it: of a traceback, what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:ERROR_LENGTH] if lines else ""


def metrics(spec: Spec) -> list[str]:
    """The lines of /metrics that are wanted; empty where there are none."""
    names = (*spec["metrics"], *spec["gauges"])
    answer = ask(f"{spec['url']}/metrics", spec["timeout"])
    lines = answer["body"].splitlines() if answer["status"] == 200 else []
    return [line for line in lines if line.partition("{")[0].partition(" ")[0] in names]


def watch(spec: Spec, highest: dict[str, float], stop: threading.Event) -> None:
    """The highest of each gauge until ``stop``."""
    while not stop.wait(spec["interval"]):
        for line in metrics(spec):
            name = line.partition("{")[0].partition(" ")[0]
            if name in spec["gauges"]:
                highest[name] = max(highest.get(name, 0.0), float(line.rpartition(" ")[2]))


def run(spec: Spec) -> dict[str, Any]:
    """Everything, in the form the controller reads."""
    found: dict[str, Any] = {"models": models(spec), "probe": {}, "levels": []}
    if lists(found["models"], spec["model"]):
        found["probe"] = probe(spec)
    if streams(found["probe"]):
        for level in spec["levels"]:
            begun = time.monotonic()
            found["levels"].append(measure(spec, level))
            said = found["levels"][-1]["error"] or "measured"
            name = f"repeat {level['repeat']}, {level['concurrency']} at once"
            print(f"{name}: {said}, {time.monotonic() - begun:.0f} s", flush=True)
            if found["levels"][-1]["error"]:
                break
    return found


if __name__ == "__main__":
    text = json.dumps(run(json.loads(sys.argv[1]))).encode()
    print(MARK + base64.b64encode(zlib.compress(text, 9)).decode(), flush=True)
