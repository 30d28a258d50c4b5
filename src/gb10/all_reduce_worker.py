"""One rank of an all-reduce, run inside the rank's image: prints one line of JSON. Needs torch, and nothing of gb10."""

import json
import os
import sys
import time
from datetime import timedelta
from importlib import import_module


def main() -> None:
    """Arguments: backend, bytes, repeats. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment."""
    backend, size, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch = import_module("torch")
    dist = import_module("torch.distributed")
    device = "cuda" if backend == "nccl" else "cpu"
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    rank, count = dist.get_rank(), dist.get_world_size()
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    dist.all_reduce(data)  # connections are made here
    right = bool((data == count).all().item())
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    dist.barrier()
    wait()
    begun = time.monotonic()
    for _ in range(repeats):
        dist.all_reduce(data)
    wait()
    seconds = (time.monotonic() - begun) / repeats
    # Bus bandwidth as nccl-tests counts it: what each rank has to send and receive whatever the algorithm.
    bus = 8e-9 * size / seconds * 2 * (count - 1) / count
    host = os.environ.get("VLLM_HOST_IP", "")
    print(json.dumps({"rank": rank, "ranks": count, "host": host, "right": right, "bytes": size, "bus_gbps": bus}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
