"""The rank's container has the real limits and devices, read from inside."""

import re

from vm_run import RANK, declared, play, recap

KERNEL = {"nofile": "Max open files", "memlock": "Max locked memory", "stack": "Max stack size"}


def inside(host, command):
    with host.sudo():
        return host.check_output(f"docker exec {RANK} {command}")


def test_limits(host):
    rows = re.findall(r"^(Max [a-z ]+?) {2,}(\S+) +(\S+)", inside(host, "cat /proc/1/limits"), re.M)
    held = {name: (soft, hard) for name, soft, hard in rows}
    for name, value in declared("container_ulimits").items():
        soft, _, hard = value.partition(":")
        wanted = tuple("unlimited" if number == "-1" else number for number in (soft, hard or soft))
        assert held[KERNEL[name]] == wanted


def test_memory_can_be_pinned_by_devices_that_are_there(host):
    status = inside(host, "cat /proc/1/status")
    effective = int(re.search(r"^CapEff:\s+(\w+)", status, re.M)[1], 16)
    assert effective >> 14 & 1  # CAP_IPC_LOCK
    assert {"uverbs0", "uverbs1", "rdma_cm"} <= set(inside(host, "ls /dev/infiniband").split())


def test_shared_memory(host):
    kib = int(inside(host, "df -k /dev/shm").splitlines()[-1].split()[1])
    assert kib == int(declared("container_shm_size").removesuffix("g")) << 20


def test_nothing_is_taken_back_under_a_rank(host):
    running = f"docker inspect --format '{{{{.State.Running}}}}' {RANK}"
    with host.sudo():
        assert host.check_output(running) == "true"
    done = play("unprepare")
    assert done.returncode != 0
    assert "unprepare-under-rank] vm-0" in done.stdout
    assert recap(done)["changed"] == 0
    with host.sudo():
        assert host.check_output(running) == "true"
        host.check_output(f"docker rm --force {RANK}")
