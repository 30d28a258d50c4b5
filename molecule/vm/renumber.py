"""Boots the machine until the weights' disk has another number than it was formatted under.

Controllers race for their numbers, so one boot may not be enough. Another kernel argument comes with it.
``python molecule/vm/renumber.py`` in the project's directory.
"""

from __future__ import annotations

import re

from lab import vm, vm_image
from lab.run import LabError, run

DISK = "blank"
BOOTS = 5


def said(node: vm.Node, *command: str) -> str:
    """What a command on the machine prints."""
    return run(vm.keys().command(node, *command), timeout=120).stdout


def main() -> None:
    """Raises LabError where all boots gave it the number it had."""
    node, image = vm.named("vm-0"), vm_image.ensure()
    record = said(node, "sudo", "cat", "/var/lib/gb10/originals/originals.json")
    formatted = re.search(rf"/dev/(nvme\d+n1) \(lab-{DISK}\)", record)
    if not formatted:
        raise LabError("no disk was formatted")
    order = sorted(vm.DISKS, reverse=formatted[1] == "nvme0n1")
    for _boot in range(BOOTS):
        vm.restart(node, image, append="kho=off", disks=order)
        rows = said(node, "lsblk", "--nodeps", "--noheadings", "--output", "NAME,SERIAL").splitlines()
        if [formatted[1], f"lab-{DISK}"] not in map(str.split, rows):
            return
    raise LabError(f"lab-{DISK} was {formatted[1]} in each of {BOOTS} boots")


main()
