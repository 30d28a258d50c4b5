"""What a rank's log says: phases, faults, causes, and the lines that are none (case 28)."""

from __future__ import annotations

import pytest
from modules import load_module

from gb10.data import load

MODULE = load_module("gb10_rank")
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
    ],
)
def test_a_fault_is_recognised(line: str, code: str) -> None:
    fault = MODULE.fault_of(["INFO before", line, "INFO after"], SIGNS["faults"])
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
    assert MODULE.fault_of([line], SIGNS["faults"]) is None
    assert MODULE.cause_of([line], SIGNS["cause"]) == ""


def test_the_cause_is_the_first_error_and_not_its_consequences() -> None:
    lines = [
        "WARNING like `OSError: [Errno 24] Too many open files`",
        "(VllmWorker-4 pid=23) ERROR subprocess.CalledProcessError: Command 'lscpu' returned non-zero exit status 127.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace ...",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    assert "lscpu" in MODULE.cause_of(lines, SIGNS["cause"])


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([], ""),
        (["INFO [api_utils.py:347] version 0.32.0", "vLLM API server version 0.32.0"], "starting"),
        (["Starting to load model x", "Model loading took 49.55 GiB"], "loaded"),
        (["Model loading took 49.55 GiB", "Loading safetensors checkpoint shards: 3%"], "loaded"),
        (["INFO: Application startup complete."], "serving"),
    ],
)
def test_the_phase_is_the_furthest_one_reached(lines: list[str], phase: str) -> None:
    assert MODULE.phase_of(lines, SIGNS["phases"]) == phase


def test_dockers_log_frames_are_taken_apart() -> None:
    def frame(text: bytes) -> bytes:
        return b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text

    assert MODULE.text_of(frame(b"one\n") + frame("zwei ü\n".encode())) == ["one", "zwei ü"]
    assert MODULE.text_of(b"a tty has no frames\n") == ["a tty has no frames"]
