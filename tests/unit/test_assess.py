"""Judgement of nodes from recorded trees: cases 10 to 16, 18, 19 and 21, findings across nodes, tables."""

from __future__ import annotations

import copy

import pytest
from gb10_node import (
    GIB,
    IMAGE,
    IMAGE_ID,
    RANK_ID,
    TOTAL_KIB,
    WEIGHTS,
    Link,
    container,
    image,
    inspect,
    plan_of,
    running,
    spark,
    twins,
)

from gb10.assess import assess, begun_weights, facts_table, findings_table, missing_weights
from gb10.findings import error, warning
from gb10.layout import Blob, Image

OTHER_ID = "sha256:" + "0b" * 32

# What the report's cluster is judged against, tp8-300k; weights and images come from the controller.
SETTINGS = {
    "fabric_mtu": 9000,
    "weights_path": WEIGHTS,
    "weights_source": "/srv/checkpoint",
    "images_source": "/srv/images",
    "storage_weights_mount": "/data",
}


# Facts by what the tree was made from: most nodes of most tests are healthy and alike.
READ: dict[str, dict] = {}


def facts_of(tmp_path, tree):
    """The node's facts, read once per content."""
    key = repr(tree)
    if key not in READ:
        READ[key] = tree.facts(tmp_path / str(len(READ)))
    return copy.deepcopy(READ[key])


def judge(tmp_path, *trees, settings=None, plan=None):
    """Findings about these nodes, in a plan that has them in this order."""
    facts = {tree.hostname: facts_of(tmp_path, tree) for tree in trees}
    octets = [int(tree.hostname.split("-")[1]) for tree in trees]
    return assess(plan or plan_of(*octets), facts, {**SETTINGS, **(settings or {})})


def codes(findings):
    """``{(level, node, code)}``."""
    return {(f.level, f.node, f.code) for f in findings}


def only(findings):
    """The one finding there is."""
    assert len(findings) == 1, findings
    return findings[0]


def memory(available_gib, **more):
    """meminfo of a GB10 with that much available."""
    return {"MemTotal": TOTAL_KIB, "MemAvailable": int(available_gib * (1 << 20)), "CmaTotal": 0, "CmaFree": 0, **more}


def test_a_healthy_cluster_has_no_findings(tmp_path):
    octets = (153, 147, 157, 158, 161, 162, 166, 148)
    trees = [spark(o, cabled="f0" if o == 158 else "f1", own_index=5 if o == 147 else 3) for o in octets]
    assert judge(tmp_path, *trees) == []


# --- memory (case 10) --------------------------------------------------------------------------------------------


def asks(octet, gmu, reserve=9.0, before=0.0):
    """A plan whose start asks that much."""
    start = {"gpu_memory_utilization": gmu, "before_gib": before, "reserve_gib": reserve}
    return {**plan_of(octet), "memory": {"start": start}}


def test_memory_that_is_not_there_is_refused_with_the_largest_share(tmp_path):
    """Case 10: MemAvailable 100 GiB of 121.69, GMU 0.87."""
    found = only(judge(tmp_path, spark(meminfo=memory(100)), plan=asks(153, 0.87)))
    assert (found.level, found.node, found.code) == ("error", "spark-153", "memory-not-available")
    assert "0.87 of 121.69 GiB wants 105.9 GiB, but 100.0 GiB are available" in found.message
    assert "0.82 is the largest that starts here, 0.74 the largest that also keeps 9 GiB" in found.remedy


@pytest.mark.parametrize(
    ("gmu", "reserve", "expected"),
    [
        (0.75, 8, None),
        (0.75, 9, ("warning", "memory-reserve-low")),
        (0.82, 9, ("warning", "memory-reserve-low")),
        (0.83, 9, ("error", "memory-not-available")),
    ],
)
def test_memory_thresholds(tmp_path, gmu, reserve, expected):
    findings = judge(tmp_path, spark(meminfo=memory(100)), plan=asks(153, gmu, reserve))
    assert {(f.level, f.code) for f in findings} == ({expected} if expected else set())


def test_a_plan_that_asks_nothing_is_not_judged(tmp_path):
    """No GPU, or the pool given in bytes: vLLM checks nothing either."""
    assert judge(tmp_path, spark(meminfo=memory(1)), plan={**plan_of(153), "memory": {"start": None}}) == []


def test_what_nccl_takes_before_the_check_counts(tmp_path):
    """0.82 x 121.69 fits 100 GiB, but not beside 1.26 GiB of NCCL and the CUDA context."""
    found = only(judge(tmp_path, spark(meminfo=memory(100)), plan=asks(153, 0.82, before=1.26)))
    assert found.code == "memory-not-available"
    assert "98.7 once NCCL and the CUDA context have theirs" in found.message
    assert "0.81 is the largest" in found.remedy


def test_a_serving_rank_of_ours_is_not_held_against_the_node(tmp_path):
    rank = running(container())
    assert judge(tmp_path, spark(meminfo=memory(14), docker=rank), plan=asks(153, 0.8)) == []
    stopped = running(container(state="exited"))
    assert codes(judge(tmp_path, spark(meminfo=memory(14), docker=stopped), plan=asks(153, 0.8))) == {
        ("error", "spark-153", "memory-not-available")
    }


# --- across nodes (case 11) --------------------------------------------------------------------------------------


def with_mtu(octet, mtu):
    """A node whose live twins have that MTU."""
    hcas, links = twins(octet)
    for link in links[1:]:
        link.mtu = mtu
    return spark(octet, hcas=hcas, links=links)


def with_active_mtu(octet, active):
    """A node whose live ports negotiated that active MTU."""
    hcas, links = twins(octet)
    for hca in hcas:
        hca.active_mtu = active
    return spark(octet, hcas=hcas, links=links)


CONTAINERD = {
    "/info": {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "DockerRootDir": "/var/lib/docker"}
}


@pytest.mark.parametrize(
    ("odd", "level", "code", "says"),
    [
        (
            spark(166, release="6.14.0-1013-nvidia"),
            "warning",
            "odd-kernel",
            "6.14.0-1013-nvidia; 7 of 8 nodes have 6.17.0-1032",
        ),
        (spark(166, driver="595.84"), "warning", "odd-driver", "595.84; 7 of 8 nodes have 580.178.04"),
        (with_mtu(166, 1500), "error", "odd-mtu", "1500; 7 of 8 nodes have 9000"),
        (with_active_mtu(166, 1024), "warning", "odd-active-mtu", "1024; 7 of 8 nodes have 4096"),
        (spark(166, docker={"/version": {"Version": "29.0.1"}}), "warning", "odd-docker", "29.0.1; 7 of 8"),
        (spark(166, docker=CONTAINERD), "warning", "odd-image-store", "containerd; 7 of 8 nodes have classic"),
    ],
)
def test_the_odd_node_is_named(tmp_path, odd, level, code, says):
    """Case 11: seven nodes alike, one apart."""
    trees = [spark(o) for o in (153, 147, 157, 158, 161, 162, 148)]
    plan = plan_of(153, 147, 157, 158, 161, 162, 148, 166)
    findings = [f for f in judge(tmp_path, *trees, odd, plan=plan) if f.code.startswith("odd-")]
    found = only(findings)
    assert (found.level, found.node, found.code) == (level, "spark-166", code)
    assert says in found.message


def test_one_against_one_names_both(tmp_path):
    found = only(judge(tmp_path, spark(153), spark(147, release="6.14.0-1013-nvidia")))
    assert (found.node, found.code) == ("", "odd-kernel")
    assert "6.17.0-1032-nvidia on spark-153; 6.14.0-1013-nvidia on spark-147" in found.message


def test_the_expected_mtu_decides_even_against_most_nodes(tmp_path):
    findings = judge(tmp_path, spark(153), with_mtu(147, 1500), with_mtu(157, 1500))
    assert codes(findings) == {("error", "spark-147", "odd-mtu"), ("error", "spark-157", "odd-mtu")}


def test_an_mtu_all_nodes_share_is_a_warning_only(tmp_path):
    found = only(judge(tmp_path, with_mtu(153, 1500), with_mtu(147, 1500)))
    assert (found.level, found.node, found.code) == ("warning", "", "unexpected-mtu")


def test_a_rail_that_is_missing_or_slow_is_named(tmp_path):
    hcas, links = twins(147)
    hcas = [hca for hca in hcas if "P2" not in hca.name]
    hcas[-1].rate = "100 Gb/sec (2X HDR)"
    findings = judge(tmp_path, spark(153), spark(157), spark(147, hcas=hcas, links=links))
    assert codes(findings) == {("warning", "spark-147", "odd-rails"), ("warning", "spark-147", "odd-rate")}


def test_unpinned_images_must_be_the_same_everywhere(tmp_path):
    trees = [spark(153), spark(147), spark(157, docker={"/images/json": [image(OTHER_ID)]})]
    plan = plan_of(153, 147, 157, image_digest="unpinned")
    found = only(judge(tmp_path, *trees, plan=plan))
    assert (found.level, found.node, found.code) == ("error", "spark-157", "odd-image")


# --- kernel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "cmdline", "cma", "faulty"),
    [
        ("7.0.0-1019-nvidia", "quiet", (0, 0), True),
        ("7.0.0-1019-nvidia-64k", "quiet", (0, 0), True),
        ("7.0.0-31-generic", "quiet", (32768, 9_800_000), True),
        ("7.0.0-1019-nvidia", "quiet kho=off", (0, 0), False),
        ("7.0.0-1019-nvidia", "quiet kho=offline", (0, 0), True),
        ("6.17.0-1032-nvidia", "quiet", (32768, 30000), False),
        ("7.1.0-5-generic", "quiet", (0, 940604), True),
        ("7.1.0-5-generic", "quiet", (32768, 33000), False),
    ],
)
def test_kernels_that_cannot_pin_memory_for_rdma(tmp_path, release, cmdline, cma, faulty):
    meminfo = memory(117, CmaTotal=cma[0], CmaFree=cma[1])
    tree = spark(release=release, cmdline=cmdline, meminfo=meminfo)
    findings = judge(tmp_path, tree)
    assert codes(findings) == ({("error", "spark-153", "kernel-fault")} if faulty else set())
    if faulty:
        assert release in findings[0].message
        assert "kho=off" in findings[0].remedy
    over_sockets = judge(tmp_path, tree, settings={"nccl_transport": "socket", "fabric_mtu": 9000})
    assert codes(over_sockets) == ({("warning", "spark-153", "kernel-fault")} if faulty else set())


def test_known_kernels_can_be_overridden(tmp_path):
    assert judge(tmp_path, spark(release="7.0.0-1019-nvidia"), settings={"kernel_faults": []}) == []


# --- fabric (cases 12 to 14, the rest in test_fabric.py) ----------------------------------------------------------


def test_no_live_hca_is_refused_for_roce_only(tmp_path):
    hcas, links = twins(153)
    for hca in hcas:
        hca.state = "1: DOWN"
    tree = spark(hcas=hcas, links=links)
    found = only(judge(tmp_path, tree))
    assert (found.level, found.code) == ("error", "no-hca")
    assert "rocep1s0f1 DOWN" in found.message
    assert judge(tmp_path, tree, settings={"nccl_transport": "socket"}) == []


def test_pins_of_the_plan_are_judged(tmp_path):
    plan = plan_of(153, env={"NCCL_IB_HCA": "rocep1s0f9", "NCCL_IB_GID_INDEX": "1", "NCCL_SOCKET_IFNAME": "eth0"})
    findings = judge(tmp_path, spark(), plan=plan)
    assert {f.code for f in findings} == {"hca-not-found", "interface-not-found"}
    plan = plan_of(153, env={"NCCL_IB_HCA": "detected", "NCCL_IB_GID_INDEX": "1"})
    assert [f.code for f in judge(tmp_path, spark(), plan=plan)] == ["gid-index-wrong"] * 2


def test_a_missing_infiniband_device_is_refused(tmp_path):
    found = only(judge(tmp_path, spark(char_devices=[])))
    assert (found.level, found.code) == ("error", "infiniband-device-missing")
    assert judge(tmp_path, spark(char_devices=[]), plan=plan_of(153, devices=[])) == []


def test_a_node_without_the_fabric_address_is_refused(tmp_path):
    found = only(judge(tmp_path, spark(), plan=plan_of(153, address="192.168.0.99")))
    assert (found.level, found.code) == ("error", "fabric-address-missing")
    assert "192.168.0.153 (enp1s0f1np1)" in found.message


# --- storage (case 15) -------------------------------------------------------------------------------------------

ROOT_ONLY = ["/dev/nvme0n1p2 / ext4 rw 0 0"]


def test_an_absent_mount_is_refused_and_nothing_is_made(tmp_path):
    """Case 15: the directory resolves to /."""
    facts = spark(mounts=ROOT_ONLY, weights_dir=False).facts(tmp_path)
    found = only(assess(plan_of(153), {"spark-153": facts}, SETTINGS))
    assert (found.level, found.node, found.code) == ("error", "spark-153", "weights-mount-absent")
    assert f"/data is not a mount point: {WEIGHTS} lies on / (ext4 on /dev/nvme0n1p2)" in found.message
    assert not (tmp_path / "spark-153" / "data").exists()


def test_a_mount_our_role_makes_is_a_warning(tmp_path):
    mounts = {"storage_mounts": [{"path": "/data/", "uuid": "9a-11", "fstype": "ext4"}]}
    assert only(judge(tmp_path, spark(mounts=ROOT_ONLY), settings=mounts)).level == "warning"
    assert judge(tmp_path, spark(mounts=ROOT_ONLY), settings={"storage_weights_mount": ""}) == []


@pytest.mark.parametrize(
    ("mounts", "settings", "expected"),
    [
        (["srv:/w /data nfs4 rw 0 0"], {"engram": "disk"}, ("error", "engram-not-local")),
        (["none /data tmpfs rw 0 0"], {"engram": "disk"}, ("error", "engram-not-local")),
        (["srv:/w /data nfs4 rw 0 0"], {"engram": "memory"}, None),
        (["/dev/b /data ext4 ro 0 0"], {"weights_manifest": {"a.safetensors": 5}}, ("error", "weights-read-only")),
        (["/dev/b /data ext4 ro 0 0"], {"weights_manifest": {}}, None),
        (["/dev/b /data ext4 rw 0 0", f"/dev/c {WEIGHTS} ext4 rw 0 0"], {}, ("warning", "weights-elsewhere")),
        (["/dev/b /data ext4 rw 0 0"], {"weights_source": ""}, ("error", "weights-absent")),
    ],
)
def test_the_weights_disk(tmp_path, mounts, settings, expected):
    findings = judge(tmp_path, spark(mounts=ROOT_ONLY + mounts), settings=settings)
    assert {(f.level, f.code) for f in findings} == ({expected} if expected else set())


@pytest.mark.parametrize(
    ("mounts", "shards", "named"),
    [
        ([], [], ""),
        ([f"srv:/w {WEIGHTS}/b.safetensors nfs4 rw 0 0"], [], "b.safetensors"),
        ([f"srv:/w {WEIGHTS}/b.safetensors nfs4 rw 0 0"], ["b.safetensors"], "b.safetensors"),
        ([f"srv:/w {WEIGHTS}/b.safetensors nfs4 rw 0 0"], ["a.safetensors"], ""),
        ([f"srv:/w {WEIGHTS}/b.safetensors nfs4 rw 0 0"], ["c.safetensors"], "b.safetensors"),
        ([f"srv:/w {WEIGHTS}/more nfs4 rw 0 0"], [], ""),
    ],
)
def test_the_shards_with_engram_tables_lie_on_a_local_disk(tmp_path, mounts, shards, named):
    """Their own mounts count; which they are the index says, else all are meant."""
    tree = spark(
        mounts=[*ROOT_ONLY, "/dev/b /data ext4 rw 0 0", *mounts], files={"a.safetensors": 4, "b.safetensors": 4}
    )
    findings = judge(tmp_path, tree, settings={"engram": "disk", "engram_shards": shards})
    assert [f.code for f in findings] == (["engram-not-local"] if named else [])
    assert all(
        f"{WEIGHTS}/{named} lies on {WEIGHTS}/{named} (nfs4 on srv:/w), a network." in f.message for f in findings
    )


def test_links_are_no_weights(tmp_path):
    tree = spark(files={"a.safetensors": "../blobs/x", "b.safetensors": 4})
    found = only(judge(tmp_path, tree))
    assert (found.level, found.code) == ("warning", "weights-symlink")
    assert "1 of 2" in found.message
    assert only(judge(tmp_path, tree, settings={"weights_source": ""})).level == "error"


def test_missing_weights_by_size_link_and_part(tmp_path):
    """Case 17's facts: a short file is missing, a .part file is no shard but counts for the space."""
    manifest = {"whole": 10, "short": 100, "link": 10, "absent": 50, "begun": 40}
    facts = spark(files={"whole": 10, "short": 76, "link": "whole", "begun.part": 30, "extra": 1}).facts(tmp_path)
    assert missing_weights(facts, manifest) == {"short": 100, "link": 10, "absent": 50, "begun": 10}
    assert missing_weights(facts, None) == {}


def test_what_a_broken_off_transfer_left_is_counted(tmp_path):
    facts = spark(files={".gb10-part/ab": 30, ".gb10-download/x": 20, ".cache/y": 5, "b.part": 7}).facts(tmp_path)
    assert begun_weights(facts) == 50


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        ({"/": (900, 400), "/data": (3600, 500)}, {}, "/data has 500.0 GiB free, but 495.0 GiB of weights are to come"),
        ({"/": (900, 400), "/data": (3600, 505)}, {}, None),
        ({"/": (900, 43), "/data": (3600, 600)}, {"image_space": {"spark-153": 34 * GIB}}, "/ has 43.0 GiB free"),
        ({"/": (900, 45), "/data": (3600, 600)}, {"image_space": {"spark-153": 34 * GIB}}, None),
        ({"/": (900, 1), "/data": (3600, 600)}, {}, None),
    ],
)
def test_room_for_what_is_still_to_come(tmp_path, space, settings, expected):
    space = {path: (total * GIB, free * GIB) for path, (total, free) in space.items()}
    tree = spark(space=space, docker={"/images/json": []})
    manifest = {"weights_manifest": {"a.safetensors": 495 * GIB}}
    findings = judge(tmp_path, tree, settings={**manifest, **settings})
    assert [f.code for f in findings] == (["disk-too-small"] if expected else [])
    if expected:
        assert expected in findings[0].message


@pytest.mark.parametrize(("begun", "enough"), [(0, False), (400, True)])
def test_what_a_broken_off_transfer_left_needs_no_room_again(tmp_path, begun, enough):
    files = {f".gb10-part/{n}": 100 * GIB for n in range(begun // 100)}
    tree = spark(
        space={"/": (900 * GIB, 400 * GIB), "/data": (3600 * GIB, 110 * GIB)}, files=files | {"x.safetensors": 4}
    )
    findings = judge(tmp_path, tree, settings={"weights_manifest": {"a.safetensors": 495 * GIB}})
    assert ("disk-too-small" in [f.code for f in findings]) is not enough


def test_weights_and_image_on_one_disk_are_added_up(tmp_path):
    tree = spark(mounts=ROOT_ONLY, space={"/": (900 * GIB, 530 * GIB)}, docker={"/images/json": []})
    settings = {
        "storage_weights_mount": "",
        "weights_manifest": {"a.safetensors": 495 * GIB},
        "image_space": {"spark-153": 34 * GIB},
    }
    found = only(judge(tmp_path, tree, settings=settings))
    assert "495.0 GiB of weights and 34.0 GiB of vllm-dsv41:latest are to come" in found.message
    assert "Free 9.0 GiB" in found.remedy


# --- images (case 16) --------------------------------------------------------------------------------------------


def containerd(**answers):
    """Docker answers of a containerd image store whose image id is another digest."""
    return {**CONTAINERD, "/images/json": [image(OTHER_ID)], **answers}


def source(manifest, architecture="arm64"):
    """The rank image as the controller holds it."""
    held = [Blob(digest, 1, "") for digest in (manifest, IMAGE_ID)]
    return Image(IMAGE, *held, (), (), architecture, ())


@pytest.mark.parametrize(
    ("docker", "settings", "expected"),
    [
        ({"/images/json": [image(OTHER_ID)]}, {}, ("warning", "image-tag-differs")),
        ({"/images/json": [image(OTHER_ID)]}, {"images_source": ""}, ("error", "image-tag-differs")),
        ({"/images/json": []}, {}, None),
        ({"/images/json": []}, {"images_source": ""}, ("error", "image-missing")),
        ({f"/images/{IMAGE}/json": inspect(["vllm", "serve"])}, {}, ("error", "entrypoint-not-empty")),
        ({f"/images/{IMAGE}/json": inspect([])}, {}, None),
        # A wrong image is replaced: its entrypoint goes with it.
        (
            {"/images/json": [image(OTHER_ID)], f"/images/{IMAGE}/json": inspect(["x"])},
            {},
            ("warning", "image-tag-differs"),
        ),
        (containerd(), {}, ("warning", "image-tag-differs")),
        (containerd(), {"images": {IMAGE: source(OTHER_ID)}}, None),
        (containerd(), {"images": {IMAGE: source("sha256:" + "9" * 64)}}, ("warning", "image-tag-differs")),
        # An image for another processor is said before anything moves; on a node that has the right one it moves not.
        ({"/images/json": []}, {"images": {IMAGE: source(OTHER_ID, "amd64")}}, ("error", "image-platform")),
        ({}, {"images": {IMAGE: source(OTHER_ID, "amd64")}}, None),
    ],
)
def test_an_image_is_judged_by_content(tmp_path, docker, settings, expected):
    """Case 16: on node 3 the tag has other content."""
    trees = [spark(153), spark(147), spark(157), spark(158, docker=docker)]
    findings = [f for f in judge(tmp_path, *trees, settings=settings) if f.code != "odd-image-store"]
    findings = [f for f in findings if f.code != "weights-absent"]
    assert codes(findings) == ({(expected[0], "spark-158", expected[1])} if expected else set())
    if expected == ("warning", "image-tag-differs") and "/info" not in docker:
        assert OTHER_ID[:19] in findings[0].message
        assert IMAGE_ID[:19] in findings[0].message


# --- Docker (case 19) --------------------------------------------------------------------------------------------


def test_a_broken_daemon_json_is_refused_and_kept(tmp_path):
    """Case 19."""
    facts = {
        t.hostname: t.facts(tmp_path) for t in (spark(153), spark(147, daemon_json='{"data-root": "/data/docker",\n'))
    }
    found = only(assess(plan_of(153, 147), facts, SETTINGS))
    assert (found.level, found.node, found.code) == ("error", "spark-147", "daemon-json-broken")
    assert (tmp_path / "spark-147/etc/docker/daemon.json").read_text() == '{"data-root": "/data/docker",\n'


def test_foreign_keys_of_daemon_json_arrive_as_facts(tmp_path):
    settings = spark(daemon_json='{"registry-mirrors": ["x"], "default-ulimits": {"memlock": {"Hard": -1}}}').facts(
        tmp_path
    )
    assert settings["docker"]["daemon_json"]["parsed"]["registry-mirrors"] == ["x"]
    assert settings["docker"]["default_ulimits"]["memlock"]["Hard"] == -1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"docker": None, "daemon_json": None}, {("warning", "no-docker")}),
        ({"docker": {"/version": None}}, {("warning", "docker-stopped")}),
        ({"requests": False}, {("warning", "python-requests-missing")}),
        ({"docker": None, "requests": False}, {("warning", "no-docker"), ("warning", "python-requests-missing")}),
    ],
)
def test_what_the_docker_role_puts_right_is_a_warning(tmp_path, changes, expected):
    assert {(f.level, f.code) for f in judge(tmp_path, spark(**changes))} == expected


# --- ranks and ports (cases 18, 21) ------------------------------------------------------------------------------


def test_limits_of_login_sessions_prove_nothing(tmp_path):
    """Case 18: limits are facts; no finding rests on them."""
    facts = spark().facts(tmp_path)
    assert facts["limits"]["memlock"]["hard"] == -1
    for limits in ({}, {"memlock": {"soft": 8 << 20, "hard": 8 << 20}, "nofile": {"soft": 1024, "hard": 20000}}):
        assert assess(plan_of(153), {"spark-153": {**facts, "limits": limits}}, SETTINGS) == []


INSIDE = f"0::/system.slice/docker-{RANK_ID}.scope"


@pytest.mark.parametrize(
    ("processes", "docker", "expected", "says"),
    [
        ({800: ("vllm", INSIDE, [4711])}, running(container()), None, ""),
        ({800: ("nginx", "0::/system.slice/nginx.service", [4711])}, {}, "port-taken", "nginx (pid 800) on 0.0.0.0"),
        (
            {800: ("python3", INSIDE, [4711])},
            running(container("other", Image="x", ImageID="y")),
            "port-taken",
            "in container other",
        ),
        ({}, {}, "port-taken", "an unknown process"),
    ],
)
def test_the_api_port_is_free_or_our_own(tmp_path, processes, docker, expected, says):
    """Case 21: our own rank is handled, a foreign process is named."""
    tree = spark(153, tcp=[("00000000", 8000, 4711)], processes=processes, docker=docker)
    findings = judge(tmp_path, spark(153, tcp=tree.tcp, processes=processes, docker=docker))
    assert codes(findings) == ({("error", "spark-153", expected)} if expected else set())
    if expected:
        assert "Port 8000 (api_port)" in findings[0].message
        assert says in findings[0].message


def test_ports_are_judged_on_the_head_and_by_their_settings(tmp_path):
    taken = {"tcp": [("0100007F", 29501, 1), ("00000000", 8000, 2)]}
    assert judge(tmp_path, spark(153), spark(147, **taken)) == []
    found = only(judge(tmp_path, spark(153, **taken), settings={"api_port": "8080"}))
    assert "Port 29501 (master_port) is held by an unknown process on 127.0.0.1" in found.message


def test_yesterdays_rank_is_no_obstacle(tmp_path):
    """Case 21: it is stopped with all others before the first start."""
    trees = [spark(153), spark(147, docker=running(container()))]
    assert judge(tmp_path, *trees) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (container(labels={}), {("warning", "rank-by-hand")}),
        (container("vllm_node", labels={}), {("error", "foreign-rank")}),
        (container("vllm_node", labels={}, Image=IMAGE_ID, ImageID=IMAGE_ID), {("error", "foreign-rank")}),
        (container("vllm_node", "exited", labels={}), set()),
        (container("registry", labels={}, Image="registry:2", ImageID=OTHER_ID), set()),
    ],
)
def test_ranks_started_by_hand(tmp_path, found, expected):
    assert {(f.level, f.code) for f in judge(tmp_path, spark(docker=running(found)))} == expected


def test_a_foreign_process_on_the_gpu_is_named(tmp_path):
    apps = "800, vllm, 90000\n901, /usr/bin/python3, [N/A]\n"
    processes = {800: ("vllm", INSIDE, []), 901: ("python3", "0::/user.slice", [])}
    found = only(judge(tmp_path, spark(gpu_apps=apps, processes=processes, docker=running(container()))))
    assert (found.level, found.code) == ("warning", "gpu-busy")
    assert "/usr/bin/python3 (pid 901)" in found.message


# --- the system --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"uid": 1000}, {}, "not-root"),
        ({"os_release": {"ID": "fedora", "PRETTY_NAME": "Fedora 42"}}, {}, "unsupported-distribution"),
        ({"os_release": {"ID": "pop", "ID_LIKE": "ubuntu debian"}}, {}, None),
        ({"os_release": {}}, {}, "unsupported-distribution"),
        ({"machine": "x86_64"}, {}, "unsupported-arch"),
        ({"machine": "x86_64"}, {"preflight_arch": ""}, None),
        ({"gpus": "", "driver": ""}, {}, "gpu-missing"),
        ({"gpus": ""}, {}, "gpu-missing"),
        ({"gpus": "", "driver": ""}, {"preflight_require_gpu": "false"}, None),
    ],
)
def test_systems_we_do_not_serve_on(tmp_path, changes, settings, expected):
    findings = judge(tmp_path, spark(**changes), settings=settings)
    assert codes(findings) == ({("error", "spark-153", expected)} if expected else set())


def test_a_lab_node_without_gpu_and_rdma_passes(tmp_path):
    tree = spark(
        hcas=[],
        char_devices=[],
        links=[Link("eth0", ["10.77.1.153/24"])],
        gpus="",
        driver="",
        machine="x86_64",
        os_release={"ID": "debian", "PRETTY_NAME": "Debian GNU/Linux 13 (trixie)"},
        meminfo=memory(12),
    )
    settings = {
        "nccl_transport": "socket",
        "preflight_require_gpu": False,
        "preflight_arch": "",
    }
    plan = plan_of(153, address="10.77.1.153", devices=[])
    assert judge(tmp_path, tree, settings=settings, plan=plan) == []


def test_what_did_not_answer_is_named(tmp_path):
    facts = spark().facts(tmp_path)
    facts["read"] = {"seconds": 15.0, "timed_out": ["docker", "weights"], "errors": {"gpu": "KeyError: 'x'"}}
    facts["docker"] = {**facts["docker"], "installed": False, "reachable": False}
    findings = assess(plan_of(153), {"spark-153": facts}, SETTINGS)
    assert [(f.level, f.code) for f in findings] == [("error", "read-timed-out"), ("error", "read-failed")]
    assert "docker, weights did not answer within 15.0 s" in findings[0].message


def test_a_node_without_facts_is_an_error_and_others_are_judged(tmp_path):
    facts = {"spark-153": spark(uid=1000).facts(tmp_path)}
    findings = assess(plan_of(153, 147), facts, SETTINGS)
    assert codes(findings) == {("error", "spark-147", "facts-missing"), ("error", "spark-153", "not-root")}


def test_empty_facts_are_judged_without_a_failure(tmp_path):
    (tmp_path / "spark-153").mkdir()
    tree = spark(153)
    tree.write = lambda root: root
    findings = assess(plan_of(153), {"spark-153": tree.facts(tmp_path)}, SETTINGS)
    assert {"no-docker", "no-hca", "gpu-missing", "weights-mount-absent"} <= {f.code for f in findings}


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"api_port": "eighty"}, "setting-invalid", "api_port is 'eighty' but must be a plain integer"),
        ({"gpu_memory_utilisation": 0.8}, "setting-unknown", "gpu_memory_utilisation"),
        ({"weights_manifest": [1]}, "setting-invalid", "must be a mapping"),
        ({"engram": None}, None, ""),
    ],
)
def test_settings_are_parsed_readably(tmp_path, settings, code, says):
    findings = judge(tmp_path, spark(), settings=settings)
    assert [f.code for f in findings] == ([code] if code else [])
    if code:
        assert says in findings[0].message


def test_every_finding_says_where_how_much_and_what_to_do(tmp_path):
    """Over a thoroughly broken cluster: a node or the cluster, a sentence, a remedy."""
    hcas, links = twins(147)
    for hca in hcas:
        hca.state = "1: DOWN"
    broken = spark(
        147,
        hcas=hcas,
        links=links,
        uid=1,
        mounts=ROOT_ONLY,
        daemon_json="{",
        meminfo=memory(20),
        gpus="",
        machine="riscv64",
    )
    findings = judge(tmp_path, spark(153), broken)
    assert len(findings) >= 7
    for finding in findings:
        assert finding.message[0].isupper() or finding.message[0] in "/g"
        assert finding.message.endswith(".")
        assert finding.remedy.endswith((".", ")"))


# --- tables ------------------------------------------------------------------------------------------------------


def test_the_facts_table_marks_the_odd_one(tmp_path):
    trees = [spark(153, docker=running(container())), spark(147), spark(157, release="7.0.0-1019-nvidia")]
    lines = facts_table({tree.hostname: tree.facts(tmp_path) for tree in trees}).splitlines()
    assert lines[0].split()[:3] == ["node", "kernel", "driver"]
    odd = [line for line in lines[1:] if " *" in line and line.startswith("spark")]
    assert [line.split()[0] for line in odd] == ["spark-157"]
    assert "7.0.0-1019-nvidia *" in odd[0]
    head = next(line for line in lines if line.startswith("spark-153"))
    for part in ("117.0/121.7", "28.5.1 classic", "roce 2x200 mtu 9000/4096", "3000", "rank 0 of tp8-300k: running"):
        assert part in head
    assert lines[-1] == "* differs from most nodes"


def test_the_facts_table_of_empty_facts():
    assert "socket" in facts_table({"a": {}})
    assert facts_table({}).startswith("node")


def test_the_findings_table_lists_errors_first():
    table = findings_table([warning("w", "Warm.", "Cool it.", "n1"), error("e", "Broken.", "Mend it.")])
    lines = table.splitlines()
    assert lines[1].split() == ["error", "(cluster)", "e", "Broken.", "Mend", "it."]
    assert lines[2].split()[:3] == ["warning", "n1", "w"]
    assert findings_table([]) == "No findings."
