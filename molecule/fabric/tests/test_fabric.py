"""What the role proved, proved again by hand: full MTU on every rail, who may connect where, and that it lasts."""

import subprocess
import time

import pytest
import yaml

HEAD, PEER = "spark-153", "spark-147"
testinfra_hosts = [f"ansible://{HEAD}"]
# Addresses of the two nodes: fabric, and on the first rail.
FABRIC, RAIL = {HEAD: "10.77.1.153", PEER: "10.77.1.147"}, {HEAD: "10.77.1.70", PEER: "10.77.1.71"}
LISTEN = """
import socket, sys, time
sockets = [socket.create_server(("0.0.0.0", int(port))) for port in sys.argv[1:]]
time.sleep(120)
"""
CONNECT = """
import socket, sys
source, target, port = sys.argv[1:]
socket.create_connection((target, int(port)), 3, source_address=(source, 0) if source else None)
"""


def inside(node, *command, **more):
    """Not through ssh: what is looked at must not depend on what is tested."""
    return subprocess.run(
        ["docker", "exec", node, *command], capture_output=True, text=True, timeout=60, check=False, **more
    )


def connects(node, source, target, port):
    """From a node, or from this machine with an empty name."""
    command = ["python3", "-c", CONNECT, source, target, str(port)]
    done = inside(node, *command) if node else subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@pytest.fixture(name="listeners", scope="module")
def _listeners():
    command = ["docker", "exec", HEAD, "timeout", "120", "python3", "-c", LISTEN, "8000", "29501", "40000", "9100"]
    process = subprocess.Popen(command)
    for _ in range(100):
        if "9C40" in inside(HEAD, "cat", "/proc/net/tcp").stdout:  # port 40000
            break
        time.sleep(0.1)
    yield
    inside(HEAD, "pkill", "-f", "create_server")
    process.wait(timeout=30)


@pytest.mark.parametrize("target", ["10.77.1.161", "10.77.1.74", "10.77.1.104"])
def test_a_peer_answers_at_full_mtu_on_every_rail(host, target):
    assert host.run(f"ping -n -c 1 -W 5 -M do -s 8972 {target}").rc == 0
    assert host.run(f"ping -n -c 1 -W 5 -M do -s 8973 {target}").rc != 0


@pytest.mark.parametrize(
    ("node", "source", "target", "port", "open_"),
    [
        ("", "", FABRIC[HEAD], 8000, True),  # fabric_api_sources
        (PEER, FABRIC[PEER], FABRIC[HEAD], 8000, True),  # a node
        (PEER, RAIL[PEER], RAIL[HEAD], 8000, False),  # an address nobody named
        (HEAD, "", "127.0.0.1", 8000, True),
        (HEAD, FABRIC[HEAD], FABRIC[HEAD], 8000, True),
        (PEER, FABRIC[PEER], FABRIC[HEAD], 29501, True),
        ("", "", FABRIC[HEAD], 29501, False),
        (PEER, FABRIC[PEER], FABRIC[HEAD], 40000, True),  # where ranks listen
        ("", "", FABRIC[HEAD], 40000, False),
        (PEER, RAIL[PEER], RAIL[HEAD], 40000, False),
        ("", "", FABRIC[HEAD], 9100, True),  # not ours
        (PEER, RAIL[PEER], RAIL[HEAD], 9100, True),
        ("", "", FABRIC[HEAD], 22, True),
        (PEER, RAIL[PEER], RAIL[HEAD], 22, True),
    ],
)
def test_who_may_connect(listeners, node, source, target, port, open_):
    assert connects(node, source, target, port) == open_


def test_the_node_itself_reaches_out(host):
    """Its own connections start at ports in the guarded range."""
    done = inside(HEAD, "python3", "-c", CONNECT, "", "10.77.1.1", "22")
    assert done.returncode == 0 or "refused" in done.stderr  # an answer came, as the case may be


def test_rules_of_others_are_untouched(host):
    with host.sudo():
        assert "DOCKER-USER" in host.check_output("iptables -S")


def test_netplan_file_is_roots_alone_and_netplan_takes_it(host):
    with host.sudo():
        file = host.file("/etc/netplan/60-gb10-fabric.yaml")
        assert (file.mode, file.user) == (0o600, "root")
        told = yaml.safe_load(host.check_output("netplan get network.ethernets"))
    assert told["rail0"]["addresses"] == ["10.77.1.70/27"]
    assert told["rail1"]["mtu"] == 9000


def test_it_lasts_over_a_restart(host):
    node = "spark-148"
    subprocess.run(["docker", "restart", node], check=True, capture_output=True, timeout=120)
    for _ in range(120):
        if inside(node, "nft", "list", "table", "inet", "gb10").returncode == 0:
            break
        time.sleep(0.5)
    assert inside(node, "nft", "list", "table", "inet", "gb10").returncode == 0
    for _ in range(120):  # the next test needs its ssh
        if inside(node, "systemctl", "is-active", "ssh", "docker", "multi-user.target").returncode == 0:
            break
        time.sleep(0.5)
