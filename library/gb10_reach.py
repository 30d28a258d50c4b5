#!/usr/bin/python
"""Proves that this node reaches its peers with packets of the full MTU, none of them fragmented."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_reach
short_description: Pings every peer with don't-fragment packets of the full MTU
description: Fails with one line per peer that does not answer. Changes nothing, works in check mode.
options:
  peers: {description: IPv4 addresses., type: list, elements: str, required: true}
  mtu: {description: MTU in bytes; the payload is 28 bytes less (IPv4 and ICMP headers)., type: int, default: 9000}
  timeout: {description: Seconds a peer has to answer., type: int, default: 5}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: Every node reaches every other at full MTU
  gb10_reach:
    peers: [192.168.1.147, 192.168.1.157]
"""
RETURN = r"""
unreached: {description: Peers that did not answer., returned: always, type: list}
"""

import subprocess

from ansible.module_utils.basic import AnsibleModule

HEADERS = 28  # bytes: 20 of IPv4, 8 of ICMP


def main():
    module = AnsibleModule(
        argument_spec={
            "peers": {"type": "list", "elements": "str", "required": True},
            "mtu": {"type": "int", "default": 9000},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    p = module.params
    ping = module.get_bin_path("ping", required=True)
    command = [
        ping,
        "-n",
        "-q",
        "-M",
        "do",
        "-s",
        str(p["mtu"] - HEADERS),
        "-c",
        "2",
        "-i",
        "0.2",
        "-w",
        str(p["timeout"]),
    ]
    running = {
        peer: subprocess.Popen([*command, peer], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for peer in p["peers"]
    }
    unreached, words = [], []
    for peer, process in running.items():
        output = process.communicate(timeout=p["timeout"] + 10)[0]
        if process.returncode:
            unreached.append(peer)
            words.append(
                next((line for line in output.splitlines() if "too long" in line or "loss" in line), output.strip())
            )
    if unreached:
        what = "; ".join(f"{peer}: {word}" for peer, word in zip(unreached, words, strict=True))
        module.fail_json(
            unreached=unreached,
            msg=f"error [peer-unreached] With MTU {p['mtu']} and no fragmentation: {what}. "
            "Check MTU, cabling and switch; the MTU is fabric_mtu.",
        )
    module.exit_json(changed=False, unreached=[])


if __name__ == "__main__":
    main()
