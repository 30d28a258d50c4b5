"""A login has the real limits, which the lab's containers cannot give."""

from vm_run import NODE, declared, run

from lab import vm


def test_login():
    # A connection of its own: one that was opened before keeps the limits it got.
    done = run(*vm.keys().command(vm.named(NODE), "ulimit -Hn; ulimit -Sn; ulimit -Hl; ulimit -Sl"))
    files, pinned = str(declared("host_limits_nofile")), declared("host_limits_memlock")
    assert done.stdout.split() == [files, files, pinned, pinned]
    assert pinned == "unlimited"
