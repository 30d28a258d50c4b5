#!/usr/bin/python
"""Proves that this node reaches its peers with packets of the full MTU, none of them fragmented."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_reach
short_description: Pings every peer with don't-fragment packets of the full MTU
description: Fails with one line that names every peer and rail without answer. Changes nothing, works in check mode.
options:
  targets:
    description: Each C(name) of the peer and its IPv4 C(address); where given, C(source) is the own address on the
      rail and C(rail) its name.
    type: list
    elements: dict
    required: true
  mtu: {description: MTU in bytes; the payload is 28 bytes less (IPv4 and ICMP headers)., type: int, default: 9000}
  timeout: {description: Seconds a peer has to answer., type: int, default: 5}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: Every node reaches every other at full MTU
  gb10_reach:
    targets:
      - {name: spark-147, rail: 192.168.0.0/24, source: 192.168.0.153, address: 192.168.0.147}
"""
RETURN = r"""
unreached: {description: Targets that did not answer., returned: always, type: list}
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule

HEADERS = 28  # bytes: 20 of IPv4, 8 of ICMP


def command(ping, target, mtu, timeout):
    """Two pings of the full size, never in fragments."""
    argv = [ping, "-n", "-q", "-M", "do", "-s", str(mtu - HEADERS), "-c", "2", "-i", "0.2", "-w", str(timeout)]
    return [*argv, *(["-I", target["source"]] if target.get("source") else []), target["address"]]


def main():
    module = AnsibleModule(
        argument_spec={
            "targets": {"type": "list", "elements": "dict", "required": True},
            "mtu": {"type": "int", "default": 9000},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    p = module.params
    ping = module.get_bin_path("ping", required=True)
    running = [
        (
            target,
            subprocess.Popen(
                command(ping, target, p["mtu"], p["timeout"]),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
        )
        for target in p["targets"]
    ]
    unreached, words = [], []
    for target, process in running:
        output = process.communicate(timeout=p["timeout"] + 10)[0]
        if process.returncode:
            lines = [line for line in output.splitlines() if "too long" in line or "loss" in line]
            where = f"{target['name']} ({target['address']}" + (
                f", rail {target['rail']})" if "rail" in target else ")"
            )
            unreached.append(target)
            words.append(f"{where}: {(lines or [output.strip()])[0]}")
    if unreached:
        module.fail_json(
            unreached=unreached,
            msg=f"error [peer-unreached] With MTU {p['mtu']} and no fragmentation: {'; '.join(words)}. "
            "Check MTU, cabling and switch; the MTU is fabric_mtu.",
        )
    module.exit_json(changed=False, unreached=[])


if __name__ == "__main__":
    main()
