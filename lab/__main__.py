"""The lab's command line: check, up, status, ask, down, clean."""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lab import ask, dockerd, engine, host, inventory, model, node_image, nodes, rank_image, vm, vm_image
from lab.cache import cache_dir
from lab.run import LabError, each, interrupt, run, say, step

LOCK = Path("/run/lock/gb10-lab.lock")
VM_LOCK = Path("/run/lock/gb10-lab-vm.lock")
PARTS_SECONDS = 3600


def main() -> int:
    """Run one subcommand and return its exit code."""
    arguments = _parser().parse_args()
    # A shell starts background jobs with SIGINT ignored; a lab is left in order either way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    host.extend_path()
    try:
        host.require(host.platform_problems())
        return int(arguments.command(arguments))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        interrupt()
        print(
            "lab: interrupted; `python -m lab up` goes on, `python -m lab down` removes what there is", file=sys.stderr
        )
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, command, text in (
        ("check", _check, "say what this machine lacks"),
        ("up", _up, "make the nodes run; repairs what is broken, changes nothing where all is well"),
        ("status", _status, "one line per node"),
        ("ask", _ask, "each node's rank, and the endpoint's answer to one question"),
        ("down", _down, "remove the nodes, keep the cache"),
        ("clean", _clean, "remove the nodes and the cache"),
    ):
        sub = commands.add_parser(name, help=text)
        sub.set_defaults(command=command)
        if name in ("check", "up"):
            count = os.environ.get("NODES") or "8"
            sub.add_argument("--nodes", type=int, default=count, metavar="N", help="1 to 8 (default: $NODES or 8)")
    _vm_parser(commands.add_parser("vm", help="virtual machines as nodes: a real kernel, disks, RDMA devices"))
    return parser


def _vm_parser(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="make them run; changes nothing where all is well")
    up.set_defaults(command=_vm_up)
    up.add_argument("--nodes", type=int, default=1, metavar="N", help=f"1 to {vm.MOST} (default: 1)")
    commands.add_parser("status", help="one line per machine").set_defaults(command=_vm_status)
    commands.add_parser("down", help="remove them, keep the cache").set_defaults(command=_vm_down)
    restart = commands.add_parser("restart", help="power one off and on")
    restart.set_defaults(command=_vm_restart)
    restart.add_argument("name", help="vm-0 or vm-1")
    restart.add_argument("--append", metavar="ARGS", help="kernel arguments it has from now on")
    names = "NVMe disks it has from now on, in the kernel's order"
    restart.add_argument("--disks", nargs="+", choices=vm.DISKS, help=names)


def _check(arguments: argparse.Namespace) -> int:
    host.require(host.resource_problems(len(nodes.first(arguments.nodes))))
    print(f"lab: this machine can run {arguments.nodes} nodes")
    missing = host.missing_tools()
    if missing:
        print(f"lab: `python -m lab up` will install {', '.join(missing)}")
    return 0


def _up(arguments: argparse.Namespace) -> int:
    wanted = nodes.first(arguments.nodes)
    host.require(host.resource_problems(len(wanted)))
    with _locked():
        host.install_tools()
        with step("Docker engine answers"):
            if dockerd.ensure():
                say("no Docker engine answered: started one")
        parts = {"node image": node_image.ensure, "engine": _engine_and_model, "rank images": rank_image.ensure}
        image, (tree, weights), images = _make_parts(parts)
        with step(f"nodes answer: {len(wanted)}"):
            changed = nodes.ensure(wanted, image, tree)
        changed |= inventory.write(_inventory(), wanted, nodes.keys(), engine=tree, weights=weights, images=images)
    if not changed:
        say("nothing changed")
    say(f"the lab is up: use it with `ansible-playbook -i {os.path.relpath(_inventory())} ...`")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    if not dockerd.answers():
        print("lab: down (no Docker engine answers)")
        return 1
    known = nodes.existing()
    if not known:
        print("lab: down (no nodes)")
        return 1
    present = [node for node in nodes.first(len(nodes.OCTETS)) if node.name in known]
    healthy = True
    for node, found in zip(present, each(nodes.probe, present), strict=True):
        words = "  ".join(f"{name} {'up' if up else 'DOWN'}" for name, up in found.items())
        print(f"{node.name}  rank {node.rank}  {node.address}  {known[node.name][0]}  {words}")
        healthy = healthy and all(found.values())
    return 0 if healthy else 1


def _ask(arguments: argparse.Namespace) -> int:
    if not dockerd.answers() or not nodes.existing():
        print("lab: down; `make demo` makes it and deploys")
        return 1
    known = nodes.existing()
    present = [node for node in nodes.first(len(nodes.OCTETS)) if node.name in known]
    print("\n".join(ask.ranks(present)))
    print(f"endpoint: http://{present[0].address}:{ask.API_PORT} ({ask.MODEL})")
    print(f"{ask.QUESTION} -> {ask.answer(present[0])}")
    return 0


def _vm_up(arguments: argparse.Namespace) -> int:
    machines = vm.first(arguments.nodes)
    with _locked(VM_LOCK):
        host.install_tools(host.VM_TOOLS)
        image = vm_image.ensure()
        with step(f"virtual machines answer: {len(machines)}"):
            changed = vm.ensure(machines, image)
        changed |= vm.write_inventory(machines)
    if not changed:
        say("nothing changed")
    say(f"up: use them with `ansible-playbook -i {os.path.relpath(vm.inventory_path())} ...`")
    return 0


def _vm_status(arguments: argparse.Namespace) -> int:
    machines = vm.existing()
    if not machines:
        print("lab: no virtual machines")
        return 1
    found = vm.states(machines)
    for node, parts in zip(machines, found, strict=True):
        words = "  ".join(f"{name} {'up' if up else 'DOWN'}" for name, up in parts.items())
        print(f"{node.name}  rank {node.rank}  {node.address}:{node.port}  {words}")
    return 0 if all(all(parts.values()) for parts in found) else 1


def _vm_restart(arguments: argparse.Namespace) -> int:
    with _locked(VM_LOCK), step(f"{arguments.name} restarted"):
        vm.restart(vm.named(arguments.name), vm_image.ensure(), append=arguments.append, disks=arguments.disks)
    return 0


def _vm_down(arguments: argparse.Namespace) -> int:
    with _locked(VM_LOCK):
        removed = vm.remove_all()
    say(f"virtual machines removed: {removed}" if removed else "nothing changed")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    removed = 0
    with _locked():
        if not dockerd.answers() and dockerd.holds_nodes():
            host.install_tools()
            dockerd.ensure()
        if dockerd.answers():
            with step("nodes, volumes and network removed"):
                removed = nodes.remove_all()
        if dockerd.stop():
            say("the Docker engine the lab started is stopped")
        nodes.forget_keys()
    if not removed:
        say("nothing changed")
    size = run(["du", "--summarize", "--block-size=1M", str(cache_dir())], timeout=120).stdout.split()[0]
    say(f"the lab is down; its cache {cache_dir()} ({int(size) / 1024:.1f} GiB) stays until `python -m lab clean`")
    return 0


def _clean(arguments: argparse.Namespace) -> int:
    _down(arguments)
    _vm_down(arguments)  # the cache holds the root they run from
    with _locked():
        if dockerd.answers():
            node_image.forget()
        shutil.rmtree(cache_dir())
    say("the cache is removed")
    return 0


def _inventory() -> Path:
    return host.project() / ".lab" / "inventory" / "hosts.yml"


def _engine_and_model() -> tuple[Path, Path]:
    tree = engine.ensure()
    return tree, model.ensure(tree)


def _make_parts(parts: dict[str, Callable[[], Any]]) -> list[Any]:
    """Make ``parts`` at the same time and return what they return, in order.

    Each is made in a process of its own, so that an interrupt reaches every one wherever it stands.

    Raises:
        LabError: one failed; the others are ended.
    """
    deadline = time.monotonic() + PARTS_SECONDS
    context = multiprocessing.get_context("fork")
    running = []
    for name, make in parts.items():
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_make_part, args=(name, make, sender), name=name)
        process.start()
        sender.close()
        running.append((process, receiver))
    results: dict[str, Any] = {}
    try:
        while len(results) < len(running):
            ready = wait([receiver for _, receiver in running if not receiver.closed], deadline - time.monotonic())
            if not ready:
                late = ", ".join(process.name for process, _ in running if process.name not in results)
                raise LabError(f"{late}: not ready within {PARTS_SECONDS} s")
            for process, receiver in running:
                if receiver in ready:
                    try:
                        results[process.name] = receiver.recv()
                    except EOFError:
                        again = "mend that and run `python -m lab up` again"
                        raise LabError(f"the {process.name} could not be made (see above); {again}") from None
                    receiver.close()
    finally:
        _end_parts([process for process, _ in running if process.name not in results])
    return [results[name] for name in parts]


def _make_part(name: str, make: Callable[[], Any], sender: Connection) -> None:
    try:
        sender.send(make())
    except KeyboardInterrupt:
        interrupt()
        os._exit(130)
    except LabError as error:
        print(f"lab: {name}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _end_parts(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    for process in processes:
        process.join(20)
        if process.exitcode is None:
            process.kill()
            process.join(5)


@contextmanager
def _locked(path: Path = LOCK) -> Iterator[None]:
    """Hold the lab's lock (or the machines'): two commands at once would undo each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError("another `python -m lab` command is running; wait for it") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
