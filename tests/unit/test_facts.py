"""gb10_facts: what it reads from a recorded node, from this machine, and from what does not answer."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time

import pytest
from gb10_node import (
    GIB,
    IMAGE,
    IMAGE_ID,
    KERNEL,
    RANK_ID,
    REPOSITORY,
    V2,
    WEIGHTS,
    Disk,
    container,
    gb10_facts,
    image,
    inspect,
    running,
    spark,
)


def test_a_recorded_node_reads_whole(tmp_path):
    facts = spark(gpu_apps="77, python3, 2048\n", processes={77: ("python3", "0::/user.slice", [])}).facts(
        tmp_path, sysctls=["vm.min_free_kbytes", "vm.absent"]
    )
    assert facts["schema"] == 1
    assert (facts["hostname"], facts["arch"], facts["systemd"]) == ("spark-153", "aarch64", "running")
    assert facts["kernel"]["release"] == KERNEL
    assert facts["os"] == {
        "id": "ubuntu",
        "id_like": ["debian"],
        "version_id": "24.04",
        "pretty_name": "Ubuntu 24.04.3 LTS",
        "dgx_release": "7.4.0",
    }
    assert facts["memory"]["total_kib"] == 127601788
    assert facts["gpu"]["driver"] == "580.178.04"
    assert facts["gpu"]["devices"][0]["name"] == "NVIDIA GB10"
    assert facts["gpu"]["processes"] == [{"pid": 77, "process": "python3", "memory_mib": 2048, "container": None}]
    assert facts["sysctls"] == {"vm.min_free_kbytes": "67584", "vm.absent": None}
    assert facts["limits"]["memlock"] == {"soft": -1, "hard": -1}
    assert facts["limits"]["nofile"] == {"soft": 1024, "hard": 1048576}
    assert facts["limits"]["stack"] == {"soft": 8388608, "hard": -1}
    assert facts["user"] == {"uid": 0, "login": "nvidia", "groups": ["nvidia", "sudo"]}
    assert facts["python"]["requests"] is True
    assert facts["default_route"] is None
    assert facts["read"]["timed_out"] == []
    assert facts["read"]["errors"] == {}


def test_rdma_ports_and_gid_tables(tmp_path):
    rdma = spark(own_index=5).facts(tmp_path)["rdma"]
    devices = {device["name"]: device for device in rdma["devices"]}
    assert list(devices) == ["roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"]
    assert devices["rocep1s0f1"]["netdev"] == "enp1s0f1np1"
    port = devices["rocep1s0f1"]["ports"][0]
    assert (port["state"], port["link_layer"], port["rate_gbps"], port["active_mtu"]) == (
        "ACTIVE",
        "Ethernet",
        200,
        4096,
    )
    assert [gid["index"] for gid in port["gids"]] == [0, 1, 2, 3, 4, 5]
    assert port["gids"][5] == {
        "index": 5,
        "gid": "0000:0000:0000:0000:0000:ffff:c0a8:0099",
        "type": V2,
        "netdev": "enp1s0f1np1",
    }
    down = devices["rocep1s0f0"]["ports"][0]
    assert (down["state"], down["gids"]) == ("DOWN", [])
    assert rdma["char_devices"] == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]


def test_links_carry_state_and_addresses(tmp_path):
    links = {link["name"]: link for link in spark().facts(tmp_path)["links"]}
    assert links["enp1s0f1np1"]["mtu"] == 9000
    assert {"family": "inet", "address": "192.168.0.153", "prefix": 24} in links["enp1s0f1np1"]["addresses"]
    assert (links["enp1s0f0np0"]["operstate"], links["enp1s0f0np0"]["speed_mbps"]) == ("down", None)


def test_the_default_route_is_read(tmp_path):
    facts = spark(route=[{"dst": "default", "gateway": "192.168.1.1", "dev": "enP7s7"}]).facts(tmp_path)
    assert facts["default_route"] == {"interface": "enP7s7", "gateway": "192.168.1.1"}


def test_disks_have_signatures_and_real_sizes(tmp_path):
    empty, marked = Disk("nvme1n1"), Disk("nvme2n1", serial="X2", signatures=["LVM2_member"], holders=["dm-0"])
    system, fresh, held = spark(disks=[empty, marked]).facts(tmp_path)["block_devices"]
    assert (system["name"], system["size_bytes"], system["rotational"]) == ("nvme0n1", 7814037168 * 512, False)
    assert (system["table"], system["logical_block_bytes"], system["signatures"]) == ("gpt", 512, None)
    assert system["ids"] == ["nvme-SAMSUNG_MZALC4T0HBL1_S7FXNX0Y"]
    assert [part["mountpoints"] for part in system["partitions"]] == [["/"], ["/data"]]
    assert system["partitions"][1] == {
        "name": "nvme0n1p3",
        "size_bytes": 7000000000 * 512,
        "fstype": "ext4",
        "uuid": "9a-11",
        "label": None,
        "holders": [],
        "mountpoints": ["/data"],
    }
    assert (fresh["serial"], fresh["signatures"], fresh["holders"]) == ("S7NEW001", [], [])
    assert (held["signatures"], held["holders"]) == (None, ["dm-0"])  # in use: nothing is asked


def test_files_are_told_by_sum_and_never_by_content(tmp_path):
    asked = ["/etc/os-release", "/etc/docker", "/etc/absent", "/proc/self/mounts"]
    root = spark().write(tmp_path / "node")
    (root / "etc/os-release").chmod(0o640)
    files = gb10_facts.gather(root=str(root), files=asked)["files"]
    assert list(files) == asked
    told = files["/etc/os-release"]
    assert told["sha256"] == hashlib.sha256((root / "etc/os-release").read_bytes()).hexdigest()
    assert (told["exists"], told["kind"], told["mode"], told["owner"]) == (True, "file", "0640", "root")
    assert isinstance(told["modified"], int)
    assert (files["/etc/docker"]["kind"], files["/etc/docker"]["sha256"]) == ("directory", None)
    assert files["/etc/absent"] == {"exists": False} | dict.fromkeys(
        ("kind", "sha256", "mode", "owner", "group", "modified")
    )
    (root / "etc/link").symlink_to("os-release")
    assert gb10_facts.gather(root=str(root), files=["/etc/link"])["files"]["/etc/link"]["kind"] == "link"


def test_units_users_packages_and_fstab(tmp_path):
    system = {
        "/gb10/systemctl-show.txt": "Id=docker.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
        "ActiveEnterTimestamp=@1796039276\nNeedDaemonReload=yes\n\nId=x.service\nLoadState=not-found\nActiveState=inactive\n"
        "UnitFileState=\nActiveEnterTimestamp=\n",
        "/var/lib/dpkg/status": "Package: fio\nStatus: deinstall ok config-files\nVersion: 3.33\n\n"
        "Package: earlyoom\nStatus: install ok installed\nPriority: optional\nVersion: 1.7-1\nDescription: x\n",
        "/var/lib/systemd/linger/nvidia": "",
        "/etc/fstab": "# comment\nUUID=9a-11 /data ext4 noatime,nofail 0 2\n\n",
    }
    names = {
        "units": ["docker.service", "x.service"],
        "users": ["nvidia", "nobody-here"],
        "packages": ["fio", "earlyoom"],
    }
    facts = spark(system=system).facts(tmp_path, **names)
    loaded = {"load": "loaded", "enabled": "enabled", "active": "active", "since": 1796039276, "stale": True}
    absent = {"load": "not-found", "enabled": None, "active": "inactive", "since": None, "stale": False}
    assert facts["units"] == {"docker.service": loaded, "x.service": absent}
    assert facts["users"]["nvidia"] == {"uid": 1000, "groups": ["nvidia", "sudo"], "linger": True}
    assert facts["users"]["nobody-here"] == {"uid": None, "groups": [], "linger": False}
    assert facts["packages"] == {"fio": None, "earlyoom": "1.7-1"}
    line = {"source": "UUID=9a-11", "target": "/data", "fstype": "ext4", "options": ["noatime", "nofail"]}
    assert facts["fstab"] == [line]


def test_mounts_leave_out_what_holds_no_data(tmp_path):
    assert [mount["target"] for mount in spark().facts(tmp_path)["mounts"]] == ["/", "/data"]


@pytest.mark.parametrize(
    ("mounts", "path", "target"),
    [
        (["/dev/a / ext4 rw 0 0", "/dev/b /data ext4 rw 0 0"], WEIGHTS, "/data"),
        (["/dev/a / ext4 rw 0 0"], WEIGHTS, "/"),
        (["/dev/a / ext4 rw 0 0", "/dev/b /data2 ext4 rw 0 0"], WEIGHTS, "/"),
        (["/dev/a / ext4 rw 0 0", "systemd-1 /data autofs rw 0 0", "srv:/x /data nfs4 rw 0 0"], WEIGHTS, "/data"),
        (["/dev/a / ext4 rw 0 0", r"/dev/b /my\040data ext4 rw 0 0"], "/my data/x", "/my data"),
    ],
)
def test_the_mount_a_path_lies_on(mounts, path, target):
    assert gb10_facts.mount_of(gb10_facts.parse_mounts("\n".join(mounts)), path)["target"] == target


def test_weights_are_listed_apart_from_what_is_being_written(tmp_path):
    weights = spark(
        files={
            "model-00001-of-00048.safetensors": 5_000_000_000,
            "model-00002-of-00048.safetensors.part": 24_000_000,
            ".model-00003-of-00048.safetensors.Ab3dEf": 7,
            ".cache/huggingface/download/x.lock": 0,
            "inference/config.json": 12,
            ".gitattributes": 3,
            "model-00004-of-00048.safetensors": "../blobs/absent",
            "README.md": "inference/config.json",
        }
    ).facts(tmp_path)["weights"]
    assert weights["exists"] is True
    assert weights["filesystem"]["target"] == "/data"
    assert weights["filesystem"]["free_bytes"] == 3000 * GIB
    assert weights["files"] == [
        {"path": ".gitattributes", "size": 3, "symlink": False},
        {"path": "README.md", "size": 12, "symlink": True},
        {"path": "model-00001-of-00048.safetensors", "size": 5_000_000_000, "symlink": False},
        {"path": "model-00004-of-00048.safetensors", "size": None, "symlink": True},
        {"path": "inference/config.json", "size": 12, "symlink": False},
    ]
    assert [item["path"] for item in weights["partial"]] == [
        ".model-00003-of-00048.safetensors.Ab3dEf",
        "model-00002-of-00048.safetensors.part",
        ".cache/huggingface/download/x.lock",
    ]


def test_an_absent_weights_directory_is_read_and_not_made(tmp_path):
    tree = spark(weights_dir=False, mounts=["/dev/nvme0n1p2 / ext4 rw 0 0"])
    weights = tree.facts(tmp_path)["weights"]
    assert (weights["exists"], weights["files"], weights["filesystem"]["target"]) == (False, [], "/")
    assert not (tmp_path / "spark-153" / "data").exists()


def test_docker_with_its_images_and_containers(tmp_path):
    answers = running(
        container(),
        container(
            "registry", labels={}, Id="dd" * 32, Ports=[{"PublicPort": 5000}, {"PublicPort": 5000}, {"PrivatePort": 1}]
        ),
        **{
            "/images/json": [
                image(),
                image("sha256:" + "b2" * 32, ("<none>:<none>",)),
                image("sha256:" + "c3" * 32, ("a:1",)),
            ],
            f"/images/{IMAGE}/json": inspect(["vllm", "serve"]),
            f"/containers/{RANK_ID}/json": {
                "State": {"StartedAt": "2026-09-01T10:00:00Z", "ExitCode": 0},
                "HostConfig": {"RestartPolicy": {"Name": "no"}},
            },
        },
    )
    docker = spark(docker=answers, daemon_json='{"default-ulimits": {"nofile": {"Hard": 9}}}').facts(tmp_path)["docker"]
    assert (docker["installed"], docker["reachable"], docker["version"]) == (True, True, "28.5.1")
    assert (docker["storage_driver"], docker["image_store"], docker["cgroup_version"]) == ("overlay2", "classic", 2)
    assert docker["filesystem"]["target"] == "/"
    assert docker["runtimes"] == ["nvidia", "runc"]
    assert docker["default_ulimits"] == {"nofile": {"Hard": 9}}
    assert [(i["id"][:9], i["tags"], i["inspected"], i["entrypoint"]) for i in docker["images"]] == [
        ("sha256:a1", [IMAGE], True, ["vllm", "serve"]),
        ("sha256:b2", [], False, []),
        ("sha256:c3", ["a:1"], False, []),
    ]
    rank, other = docker["containers"]
    assert (rank["ours"], rank["state"], rank["started_at"]) == (True, "running", "2026-09-01T10:00:00Z")
    assert (rank["restart_policy"], rank["network_mode"], rank["labels"]["gb10.rank"]) == ("no", "host", "0")
    assert (other["ours"], other["name"], other["started_at"], other["ports"]) == (False, "registry", None, [5000])


def test_the_containerd_image_store_is_told_apart_and_has_its_own_root(tmp_path):
    info = {
        "Driver": "overlayfs",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
        "DockerRootDir": "/data/docker",
    }
    docker = spark(docker={"/info": info}).facts(tmp_path)["docker"]
    assert docker["image_store"] == "containerd"
    assert docker["filesystem"]["target"] == "/"


@pytest.mark.parametrize(
    ("text", "exists", "parsed", "error"),
    [
        (None, False, None, None),
        ("", True, None, None),
        ('{"log-driver": "json-file"}', True, {"log-driver": "json-file"}, None),
        ('{"a": 1,}', True, None, "Illegal trailing comma|Expecting property name"),
        ("[]", True, None, "not a JSON object"),
    ],
)
def test_daemon_json(tmp_path, text, exists, parsed, error):
    settings = spark(daemon_json=text).facts(tmp_path)["docker"]["daemon_json"]
    assert (settings["exists"], settings["parsed"]) == (exists, parsed)
    if error:
        assert re.search(error, settings["error"])
        assert settings["text"] == text
    else:
        assert (settings["error"], settings["text"]) == (None, None)


def test_listeners_name_process_and_container(tmp_path):
    inside = f"0::/system.slice/docker-{RANK_ID}.scope"
    facts = spark(
        tcp=[("00000000", 8000, 4711), ("0100007F", 29501, 4712), ("00000000", 22, 4713)],
        processes={
            9: ("sshd", "0::/", [4713]),
            800: ("vllm", inside, [1, 4711]),
            900: ("python3", "0::/user.slice", [4712]),
        },
    ).facts(tmp_path)
    assert facts["listeners"] == [
        {"port": 8000, "address": "0.0.0.0", "pid": 800, "process": "vllm", "container": RANK_ID},
        {"port": 29501, "address": "127.0.0.1", "pid": 900, "process": "python3", "container": None},
    ]


def test_only_sockets_that_listen_count():
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F40 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 11 1 0 20 4\n"
        "   1: 00000000000000000000000001000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000"
        " 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0\n"
    )
    assert gb10_facts.parse_listeners(table, {8000}) == [(8000, "::1", "12")]
    assert gb10_facts.parse_listeners(table, {8001}) == []


OUTER = "0a" * 32


@pytest.mark.parametrize(
    ("cgroup", "first", "expected"),
    [
        (f"0::/system.slice/docker-{RANK_ID}.scope", "0::/init.scope", RANK_ID),
        (f"4:memory:/docker/{RANK_ID}\n1:name=systemd:/docker/{RANK_ID}", "4:memory:/", RANK_ID),
        # A node that is itself a container, on a host with cgroup v1.
        (f"4:memory:/docker/{OUTER}/docker/{RANK_ID}", f"4:memory:/docker/{OUTER}", RANK_ID),
        (f"4:memory:/docker/{OUTER}/system.slice/ssh.service", f"4:memory:/docker/{OUTER}/init.scope", None),
        ("0::/user.slice/user-1000.slice", "0::/init.scope", None),
        ("", "", None),
    ],
)
def test_the_container_of_a_process(tmp_path, cgroup, first, expected):
    root = spark(processes={1: ("systemd", first, []), 800: ("vllm", cgroup, [])}).write(tmp_path / "node")
    assert gb10_facts.container_of(gb10_facts.Node(str(root)), 800) == expected


def test_a_listener_of_this_machine_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = gb10_facts.gather(ports=[port])
    assert facts["listeners"] == [
        {
            "port": port,
            "address": "127.0.0.1",
            "pid": os.getpid(),
            "process": facts["listeners"][0]["process"],
            "container": None,
        }
    ]
    assert facts["kernel"]["release"] == os.uname().release
    assert any(link["name"] == "lo" and link["addresses"][0]["address"] == "127.0.0.1" for link in facts["links"])


def test_an_empty_tree_gives_the_whole_schema_and_no_error(tmp_path):
    (tmp_path / "empty").mkdir()
    empty = gb10_facts.gather(root=str(tmp_path / "empty"), weights_path=WEIGHTS, ports=[8000])
    full = spark().facts(tmp_path)
    assert shape(empty) == shape(full)
    assert empty["read"]["errors"] == {}
    assert (empty["rdma"]["devices"], empty["docker"]["installed"], empty["memory"]["total_kib"]) == ([], False, None)


def shape(facts):
    """Section names and the keys inside those that are dicts, fixed ones only."""
    return {k: sorted(v) if isinstance(v, dict) and k not in ("sysctls", "limits") else None for k, v in facts.items()}


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        ("gb10/ip-addr.json", "{"),
        ("gb10/ip-addr.json", "{}"),
        ("gb10/lsblk.json", "[]"),
        ("gb10/docker.json", "null"),
        ("gb10/nvidia-smi-gpu.csv", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("gb10/ibv-devinfo.txt", "No IB devices found"),
        ("proc/meminfo", "\0\0"),
        ("proc/self/mounts", "x\n"),
        ("proc/net/tcp", "header\nshort line\n"),
    ],
)
def test_garbage_reads_as_nothing(tmp_path, name, garbage):
    root = spark().write(tmp_path / "node")
    (root / name).write_text(garbage)
    facts = gb10_facts.gather(root=str(root), weights_path=WEIGHTS, ports=[8000])
    assert facts["read"]["errors"] == {}
    assert shape(facts) == shape(spark().facts(tmp_path))


def test_a_section_that_hangs_or_breaks_leaves_the_others_alone():
    held = threading.Event()

    def broken():
        raise ValueError("odd")

    begun = time.monotonic()
    results, late, problems = gb10_facts.run_bounded({"a": lambda: 1, "b": held.wait, "c": broken}, 0.3)
    held.set()
    assert time.monotonic() - begun < 10
    assert results["a"] == 1
    assert late == ["b"]
    assert problems == {"c": "ValueError: odd"}


class Api(http.server.BaseHTTPRequestHandler):
    """A Docker API that answers /version, refuses /info, sends nonsense for images, and never answers /hang."""

    def do_GET(self):
        if self.path == "/hang":
            self.server.held.wait(20)
            return
        status, body = {
            "/version": (200, b'{"Version": "29.0.0", "ApiVersion": "1.52"}'),
            "/images/json": (200, b"<html>"),
        }.get(self.path, (500, b"{}"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Nothing is logged."""

    def address_string(self):
        return "unix"


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves a unix socket, a thread per request."""

    daemon_threads = True


@pytest.fixture
def api(tmp_path):
    """The path of a unix socket on which ``Api`` answers."""
    path = str(tmp_path / "docker.sock")
    with UnixServer(path, Api) as server:
        server.held = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.held.set()
        server.shutdown()


MOUNTS = (r"disk\x2d0.mount", "disk1.mount")


def mounts(*states):
    return "\n\n".join(f"Id={name}\nActiveState={state}" for name, state in zip(MOUNTS, states, strict=False)) + "\n"


@pytest.mark.parametrize(
    ("state", "held", "error"),
    [
        ("active", mounts("inactive"), None),  # it runs all the same
        ("activating", mounts("inactive"), None),
        ("inactive", mounts("active"), None),  # stopped by hand: its socket starts it, and what it holds is known
        ("failed", mounts("active", "active"), None),
        ("inactive", mounts("activating"), None),
        ("inactive", "", None),
        ("inactive", mounts("active", "inactive"), "docker.service is inactive: it requires disk1.mount"),
        ("failed", mounts("failed"), f"docker.service is failed: it requires {MOUNTS[0]}"),
        ("inactive", mounts("failed", "inactive"), f"docker.service is inactive: it requires {MOUNTS[0]}, disk1.mount"),
    ],
)
@pytest.mark.parametrize("load", ["loaded", "not-found", ""])  # not-found: another unit runs it; empty: no systemd
def test_docker_that_waits_for_a_disk_is_not_asked(tmp_path, load, state, held, error):
    root = spark().write(tmp_path)
    unit = f'LoadState={load}\nActiveState={state}\nRequires="disk\\\\x2d0.mount" sysinit.target disk1.mount\n'
    (root / gb10_facts.RECORDED / "docker-unit.txt").write_text(unit if load else "")
    (root / gb10_facts.RECORDED / "docker-mounts.txt").write_text(held)
    docker = gb10_facts.gather(root=str(root))["docker"]
    assert docker["error"] == (error if load == "loaded" else None)
    assert docker["reachable"] == (docker["error"] is None)


def test_the_docker_api_over_its_socket(api):
    assert gb10_facts.docker_get(api, "/version", 5) == ({"Version": "29.0.0", "ApiVersion": "1.52"}, "")
    assert gb10_facts.docker_get(api, "/info", 5) == (None, "HTTP 500")
    answer, problem = gb10_facts.docker_get(api, "/images/json", 5)
    assert answer is None
    assert "Expecting value" in problem
    assert gb10_facts.docker_get(api, "/hang", 0.2) == (None, "timed out")
    assert gb10_facts.docker_get(api + ".absent", "/version", 5)[0] is None


def test_half_an_answer_of_docker_is_no_failure(api):
    docker = gb10_facts.gather(docker_socket=api, timeout=10)["docker"]
    assert (docker["reachable"], docker["version"], docker["image_store"], docker["images"]) == (
        True,
        "29.0.0",
        None,
        [],
    )


def ansible(tmp_path, options, *arguments):
    """Run the module as Ansible does, free of other configuration: exit code and result."""
    config = tmp_path / "ansible.cfg"
    config.write_text(f"[defaults]\ncallback_result_format = json\nmodule_utils = {REPOSITORY / 'src'}\n")
    python = f"ansible_python_interpreter={sys.executable}"
    module = ["-M", str(REPOSITORY / "library"), "-m", "gb10_facts", "-a", json.dumps(options)]
    where = ["localhost", "-i", "localhost,", "-c", "local", "-e", python]
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "adhoc", *where, *module, *arguments],
        env={**os.environ, "ANSIBLE_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    text = done.stdout[done.stdout.index("=> {") + 3 :]
    return done.returncode, json.loads(text)


def test_as_an_ansible_module_in_check_mode(tmp_path):
    root = spark().write(tmp_path / "node")
    before = sorted(str(path) for path in root.rglob("*"))
    options = {"root": str(root), "weights_path": WEIGHTS, "ports": [8000], "images": [IMAGE]}
    code, result = ansible(tmp_path, options, "--check")
    assert code == 0, result
    assert result["changed"] is False
    assert result["gb10"]["docker"]["images"][0]["id"] == IMAGE_ID
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_a_root_that_is_no_directory_is_refused(tmp_path):
    code, result = ansible(tmp_path, {"root": str(tmp_path / "absent")})
    assert code != 0
    assert "is no directory; give / or a recorded tree" in result["msg"]


def test_every_fact_is_documented(tmp_path):
    """docs/facts.md names every key the module returns."""
    text = (REPOSITORY / "docs" / "facts.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", text))
    facts = spark(
        docker=running(container()),
        files={"a.safetensors": 1, "b.part": 1},
        tcp=[("00000000", 8000, 5)],
        gpu_apps="7, x, 1\n",
        route=[{"dev": "enP7s7"}],
    ).facts(tmp_path)
    assert sorted(keys(facts) - named) == []


def keys(value, skip=("sysctls", "labels", "default_ulimits", "parsed", "interfaces")):
    """Every key anywhere in the document, except where others choose the keys."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found.add(key)
            if key not in skip:
                found |= keys(inner)
    elif isinstance(value, list):
        for item in value:
            found |= keys(item)
    return found


def test_paths_of_this_machine_are_nowhere_in_recorded_facts(tmp_path):
    assert str(tmp_path) not in json.dumps(spark(files={"a.safetensors": 1}).facts(tmp_path))
