"""What a rank's log says: phases, faults, causes, and the lines that are none (case 28)."""

from __future__ import annotations

import re

import pytest

from gb10 import engine_log
from gb10.data import load

SIGNS = load("engine_log")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("misc/ibvwrap.cc NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memlock"),
        ("socket.cc NCCL WARN Call to accept failed: Too many open files", "nofile"),
        ("NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out", "gid-index"),
        ("NET/IB: Got completion with status=IBV_WC_RETRY_EXC_ERR(12)", "mtu"),
        ("ValueError: No common block size for 64", "block-size"),
        ("INFO Estimated CUDA graph memory: -20.50 GiB", "negative-graph-memory"),
        (
            "ValueError: Free memory on device cuda:0 (96.52/121.69 GiB) on startup is less than desired GPU memory "
            "utilization (0.8, 97.36 GiB).",
            "free-memory",
        ),
        ("ValueError: No available memory for the cache blocks.", "no-kv-memory"),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds. 7/8 clients joined.", "rank-missing"),
        ("OSError: [Errno 98] Address already in use", "port-held"),
        ("KeyError: 'invalid tool call parser: deepseek_v99 (chose from { ... })'", "parser-unknown"),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY]", "driver-memory"),
    ],
)
def test_a_fault_is_recognised(line: str, code: str) -> None:
    fault = engine_log.fault_of(["INFO before", line, "INFO after"], SIGNS["faults"])
    assert fault
    assert fault["code"] == code
    assert fault["line"] == line
    assert fault["remedy"].endswith(".")


@pytest.mark.parametrize(
    "line",
    [
        "INFO No available shared memory broadcast block found in 60 seconds.",
        "INFO Estimated CUDA graph memory: 1.50 GiB",
        "WARNING Found ulimit of 20000 and failed to automatically increase. This can cause fd limit errors like "
        "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
        "WARNING Unknown vLLM environment variable detected: VLLM_FLASHINFER_AUTOTUNE",
    ],
)
def test_information_is_no_fault(line: str) -> None:
    assert engine_log.fault_of([line], SIGNS["faults"]) is None
    assert engine_log.cause_of([line], SIGNS["cause"]) == ""


def test_the_cause_is_the_first_error_and_not_its_consequences() -> None:
    lines = [
        "WARNING like `OSError: [Errno 24] Too many open files`",
        "(VllmWorker-4 pid=23) ERROR subprocess.CalledProcessError: Command 'lscpu' returned non-zero exit status 127.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace ...",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert "lscpu" in engine_log.cause_of(lines, SIGNS["cause"])


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([], ""),
        (["INFO [api_utils.py:347] version 0.32.0", "vLLM API server version 0.32.0"], "starting"),
        (["Starting to load model x", "Model loading took 49.55 GiB"], "loaded"),
        (["Model loading took 49.55 GiB", "Loading safetensors checkpoint shards: 3%"], "loaded"),
        (["INFO: Application startup complete."], "ready"),
    ],
)
def test_the_phase_is_the_furthest_one_reached(lines: list[str], phase: str) -> None:
    assert engine_log.phase_of(lines, SIGNS["phases"]) == phase


def test_dockers_log_frames_are_taken_apart() -> None:
    def frame(text: bytes) -> bytes:
        return b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text

    assert engine_log.lines_of(frame(b"one\n") + frame("zwei ü\n".encode())) == ["one", "zwei ü"]
    assert engine_log.lines_of(b"a tty has no frames\n") == ["a tty has no frames"]


def test_every_fault_says_what_it_means_and_what_to_do() -> None:
    assert len({fault["code"] for fault in SIGNS["faults"]}) == len(SIGNS["faults"])
    for fault in SIGNS["faults"]:
        assert fault["message"].endswith("."), fault["code"]
        assert fault["remedy"].endswith("."), fault["code"]
        re.compile(fault["pattern"])


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("INFO (Worker_TP3 pid=9) Model loading took 49.55 GiB memory and 310.2 seconds", "weights_gib", 49.55),
        ("INFO Available KV cache memory: 14.96 GiB", "kv_gib", 14.96),
        ("INFO Graph capturing finished in 21 secs, took 2.01 GiB", "graphs_gib", 2.01),
        ("INFO GPU KV cache size: 3,192,727 tokens, Maximum concurrency for 300,000 tokens per request: 10.64x",
         "kv_tokens", 3192727),
        ("INFO CPU KV cache size: 1,048,576 tokens", "kv_tokens", 1048576),
        ("INFO Maximum concurrency for 300,000 tokens per request: 10.64x", "requests", 10.64),
    ],
)  # fmt: skip
def test_a_figure_is_read(line: str, name: str, value: float) -> None:
    assert engine_log.figures_of(["INFO before", line], SIGNS["figures"])[name] == value


def test_what_an_engine_does_not_know_is_noted_once() -> None:
    lines = ["WARNING Unknown vLLM environment variable detected: VLLM_FLASHINFER_AUTOTUNE"] * 3
    (note,) = engine_log.notes_of(lines, SIGNS["notes"])
    assert (note["code"], note["what"]) == ("env-unknown", "VLLM_FLASHINFER_AUTOTUNE")
