"""Judging nodes: plan and facts in, findings out. No I/O; limits and known faults are in data/nodes.yml.

``facts`` is one ``gb10`` document of the gb10_facts module (docs/facts.md) per node name. docs/findings.md lists the
codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import data, fabric, images, rails
from gb10.deploy import LABEL_PLAN
from gb10.expected import SETTINGS, Expected, read_expected
from gb10.findings import Finding, error, warning
from gb10.node_memory import measure, node_findings, start_of
from gb10.odd import odd_findings
from gb10.plan import UNPINNED
from gb10.probe import probe_findings
from gb10.relay.index import PARTS
from gb10.tables import facts_table, findings_table
from gb10.weights_files import INCOMING

__all__ = ["SETTINGS", "assess", "facts_table", "findings_table", "missing_weights"]

Document = Mapping[str, Any]

GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """One node before the judges, with all they need: plan, its rank there, facts, what is expected and known."""

    plan: Document
    rank: Document
    facts: Document
    expected: Expected
    known: Document

    @property
    def node(self) -> str:
        """The inventory name."""
        return str(self.rank["node"])

    def part(self, name: str) -> Document:
        """A section of the facts; empty where there is none."""
        return self.facts.get(name) or {}

    def items(self, section: str, name: str) -> list[Document]:
        """A list inside a section of the facts."""
        return list(self.part(section).get(name) or [])

    def error(self, code: str, message: str, remedy: str) -> Finding:
        """An error on this node."""
        return error(code, message, remedy, self.node)

    def warning(self, code: str, message: str, remedy: str) -> Finding:
        """A warning on this node."""
        return warning(code, message, remedy, self.node)

    def curable(self, role: str, code: str, message: str, remedy: str) -> Finding:
        """A warning where ``role`` puts it right, else an error."""
        if self.expected.cures(role):
            return self.warning(code, message, f"The {role} role puts it right.")
        return self.error(code, message, remedy)


def assess(plan: Document, facts: Mapping[str, Document], settings: Mapping[str, Any]) -> list[Finding]:
    """Every finding about the nodes of the plan's ranks, node by node in rank order, then those across nodes.

    ``settings``: those of ``gb10.expected.Expected`` by name, all optional. Nodes without facts are errors.
    """
    expected, findings = read_expected(settings)
    known = data.load("nodes")
    judged: dict[str, Document] = {}
    for rank in plan["ranks"]:
        name = rank["node"]
        if not facts.get(name):
            message = "No facts were read."
            findings.append(
                error("facts-missing", message, "See the node's failure above; all nodes must answer.", name)
            )
            continue
        judged[name] = facts[name]
        case = Case(plan, rank, facts[name], expected, known)
        for judge in JUDGES:
            findings += judge(case)
    return findings + odd_findings(plan, judged, expected, known)


# --- the system --------------------------------------------------------------------------------------------------


def judge_reading(case: Case) -> Iterator[Finding]:
    """Whether everything could be read, and as root."""
    read = case.part("read")
    late = [str(name) for name in read.get("timed_out") or []]
    if late:
        message = f"{', '.join(late)} did not answer within {read.get('seconds')} s."
        remedy = "Look on the node: a hanging mount, Docker or GPU driver needs care before anything is started."
        yield case.error("read-timed-out", message, remedy)
    for name, problem in (read.get("errors") or {}).items():
        yield case.error("read-failed", f"{name} could not be read ({problem}).", "Report this with the node's facts.")
    user = case.part("user")
    if user.get("uid") not in (0, None):
        message = f"Facts were read as {user.get('login')} (uid {user.get('uid')}), not as root."
        yield case.error(
            "not-root", message, "Give the login user sudo on this node (ansible_become_password if it asks)."
        )


def judge_system(case: Case) -> Iterator[Finding]:
    """Distribution, architecture, init."""
    system = case.part("os")
    wanted = case.known["distributions"]
    if not {system.get("id"), *(system.get("id_like") or [])} & set(wanted):
        message = f"The distribution is {system.get('pretty_name') or system.get('id') or 'unknown'}."
        yield case.error("unsupported-distribution", message, f"Supported are {', '.join(wanted)} (DGX OS is Ubuntu).")
    arch = case.facts.get("arch")
    if case.expected.preflight_arch and arch != case.expected.preflight_arch:
        message = f"The architecture is {arch}, not {case.expected.preflight_arch}."
        yield case.error("unsupported-arch", message, "Take the node out of group gb10, or set preflight_arch.")
    if case.facts.get("systemd") == "offline":
        yield case.error("no-systemd", "systemd is not the init of this node.", "Docker and its limits need systemd.")


def judge_kernel(case: Case) -> Iterator[Finding]:
    """Kernels on which RDMA memory cannot be pinned. Over sockets they do no harm."""
    kernel, memory = case.part("kernel"), case.part("memory")
    release, words = str(kernel.get("release")), str(kernel.get("cmdline") or "").split()
    level = case.error if case.expected.nccl_transport == "roce" else case.warning
    faults = case.known["kernel_faults"] if case.expected.kernel_faults is None else case.expected.kernel_faults
    for fault in faults:
        if re.search(fault["release"], release) and fault["cured_by"] not in words:
            message = f"Kernel {release} runs without {fault['cured_by']}: {fault['name']}."
            yield level("kernel-fault", message, fault["remedy"])
            return
    total, free = memory.get("cma_total_kib"), memory.get("cma_free_kib")
    if total is not None and free is not None and free > total + case.known["cma_excess_kib"]:
        message = (
            f"CmaFree is {free // 1024} MiB of CmaTotal {total // 1024} MiB: pages that RDMA cannot pin ({release})."
        )
        yield level("kernel-fault", message, "Boot with kho=off on the kernel command line.")


def judge_memory(case: Case) -> Iterator[Finding]:
    """vLLM's own start-up check, before anything is stopped for it: what the plan asks, against the node's memory."""
    start = start_of(case.plan.get("memory") or {})
    measured = measure(start, case.node, case.facts) if start else None
    if start and measured:
        yield from node_findings(start, measured)


def judge_gpu(case: Case) -> Iterator[Finding]:
    """A GPU that answers, and nobody else on it."""
    gpu = case.part("gpu")
    if case.expected.preflight_require_gpu and not gpu.get("devices"):
        driver = gpu.get("driver")
        message = f"Driver {driver} is loaded but nvidia-smi shows no GPU." if driver else "There is no NVIDIA driver."
        remedy = (
            "Power the node off and on; if that does not help, look at its kernel log for NVRM."
            if driver
            else "Install it."
        )
        yield case.error("gpu-missing", message, remedy)
    own = {container.get("id") for container in ours(case.facts)}
    for process in gpu.get("processes") or []:
        if process.get("container") not in own:
            used = process.get("memory_mib")
            message = f"{process.get('process')} (pid {process.get('pid')}) computes on the GPU" + (
                f" with {used} MiB." if used is not None else "."
            )
            yield case.warning("gpu-busy", message, "Stop it: GPU and memory are meant for the rank alone.")


# --- fabric ------------------------------------------------------------------------------------------------------


def judge_fabric(case: Case) -> Iterator[Finding]:
    """The node's address, its RDMA devices, and what is pinned for it."""
    address = str(case.rank["address"])
    links = case.facts.get("links") or []
    carried = [entry.get("address") for link in links for entry in link.get("addresses") or []]
    pending = case.node in case.expected.fabric_pending
    if carried and address not in carried and not pending:
        local = ", ".join(f"{a} ({fabric.interface_of(case.facts, str(a))})" for a in carried if "." in str(a))
        message = f"No interface has the fabric address {address}; the node has {local}."
        yield case.error(
            "fabric-address-missing", message, "Correct fabric_address, or check that this is the right node."
        )
    if case.expected.nccl_transport != "roce":
        return
    pinned = {name: (case.rank.get("env") or {}).get(key) for name, key in fabric.VARIABLES.items()}
    if not fabric.rails(case.facts) and not fabric.pinned_hcas(pinned) and not pending:
        devices = case.items("rdma", "devices")
        states = ", ".join(
            f"{d['name']} {'/'.join(str(p.get('state')) for p in d.get('ports') or [])}" for d in devices
        )
        message = f"No RDMA device is live ({states or 'there is none'})."
        yield case.error(
            "no-hca", message, "Check cable, switch port and addresses of the twins, or set nccl_transport: socket."
        )
    yield from fabric.pinned_findings(case.node, case.facts, address, pinned)
    yield from fabric.rail_findings(case.node, case.facts)
    yield from rails.twin_findings(case.node, case.facts)
    if not fabric.pin(pinned, "nccl_ib_gid_index"):
        yield from fabric.gid_findings(case.node, case.facts, address)
    wants = any(str(path).startswith("/dev/infiniband") for path in case.rank.get("devices") or [])
    if wants and not case.items("rdma", "char_devices"):
        message = "/dev/infiniband is empty or missing, so NCCL would silently use TCP."
        yield case.error("infiniband-device-missing", message, "Load the drivers: modprobe ib_uverbs rdma_ucm.")


# --- storage -----------------------------------------------------------------------------------------------------


def judge_storage(case: Case) -> Iterator[Finding]:
    """The weights' mount: there, local, writable where files are missing."""
    mount, path = case.expected.storage_weights_mount.rstrip("/"), case.expected.weights_path
    weights = case.part("weights")
    place = weights.get("filesystem") or {}
    where = f"{place.get('target')} ({place.get('fstype')} on {place.get('source')})" if place else "an unknown disk"
    mounted = [str(item["target"]) for item in case.facts.get("mounts") or []]
    if mount and mount not in mounted:
        message = f"{mount} is not a mount point: {path or mount} lies on {where}."
        yield case.curable(
            "storage", "weights-mount-absent", message, f"Mount the disk at {mount}; nothing is created instead."
        )
        return
    if not path:
        return
    if mount and place and place.get("target") != mount:
        message = f"{path} lies on {where}, not on {mount}."
        yield case.warning("weights-elsewhere", message, "Correct weights_path or storage_weights_mount.")
    files = weights.get("files") or []
    if case.expected.engram == "disk":
        yield from judge_engram_place(case, path, place, [str(item["path"]) for item in files])
    if not case.expected.cures("weights") and not any(str(f["path"]).endswith(".safetensors") for f in files):
        yield case.error(
            "weights-absent", f"{path} holds no shard.", "Put the checkpoint there, or set weights_source."
        )
    links = [str(item["path"]) for item in files if item.get("symlink")]
    if links:
        message = f"{len(links)} of {len(files)} weights files are links ({links[0]}): the rank sees {path} only."
        yield case.curable("weights", "weights-symlink", message, "Put whole files there (rsync --copy-links).")
    if "ro" in (place.get("options") or []) and missing_weights(case.facts, case.expected.weights_manifest):
        yield case.error(
            "weights-read-only", f"{where} is mounted read-only and files are missing.", "Mount it writable."
        )


def judge_engram_place(case: Case, path: str, place: Document, files: list[str]) -> Iterator[Finding]:
    """The shards with the Engram tables on a local disk: each rank reads rows of them at every step."""
    tables = set(case.expected.engram_shards) & set(files) or {file for file in files if file.endswith(".safetensors")}
    mounts = sorted(case.facts.get("mounts") or [], key=lambda mount: len(str(mount["target"])))
    wrong = {**dict.fromkeys(case.known["network_filesystems"], "a network")}
    wrong |= dict.fromkeys(case.known["memory_filesystems"], "memory")
    for name in sorted(tables) or [""]:
        full = f"{path.rstrip('/')}/{name}".rstrip("/")
        under = [m for m in mounts if f"{full}/".startswith(str(m["target"]).rstrip("/") + "/")]
        mount = under[-1] if name and under else place
        kind = wrong.get(str(mount.get("fstype")))
        if kind:
            message = f"{full} lies on {mount.get('target')} ({mount.get('fstype')} on {mount.get('source')}), {kind}."
            cost = "Engram rows cost 5.9 to 7.8 ms a step over a network, 2.8 from local NVMe. "
            remedy = "Put the weights on the node's own NVMe, or serve with engram: memory."
            yield case.error("engram-not-local", f"{message} {cost if kind == 'a network' else ''}".strip(), remedy)
            return


def judge_probe(case: Case) -> Iterator[Finding]:
    """The disk fast enough for Engram, where it was measured and Engram is read from it."""
    if case.expected.engram == "disk":
        yield from probe_findings(case.node, case.facts, len(case.plan["ranks"]))


def missing_weights(facts: Document, manifest: Mapping[str, Any] | None) -> dict[str, int]:
    """Files of the manifest (path -> bytes) that are absent, of another size or a link: path -> bytes still to write.

    What a ``.part`` file of the same path holds already is counted.
    """
    weights = facts.get("weights") or {}
    have = {item["path"]: item["size"] for item in weights.get("files") or [] if not item.get("symlink")}
    parts = {item["path"]: item["size"] or 0 for item in weights.get("partial") or []}
    wanted = {path: int(size) for path, size in (manifest or {}).items() if have.get(path) != int(size)}
    return {path: max(0, size - parts.get(path + ".part", 0)) for path, size in wanted.items()}


def begun_weights(facts: Document) -> int:
    """Bytes of transfers that were broken off and go on: they need no room again."""
    partial = (facts.get("weights") or {}).get("partial") or []
    return sum(item["size"] or 0 for item in partial if str(item["path"]).startswith((f"{PARTS}/", f"{INCOMING}/")))


def judge_space(case: Case) -> Iterator[Finding]:
    """Room for weights and images that are still to come; both may go to the same disk."""
    docker, weights = case.part("docker"), case.part("weights")
    coming: list[tuple[str, int, Document | None]] = [
        (
            "weights",
            max(
                0,
                sum(missing_weights(case.facts, case.expected.weights_manifest).values()) - begun_weights(case.facts),
            ),
            weights.get("filesystem"),
        )
    ]
    coming.append((case.rank["image"], int(case.expected.image_space.get(case.node, 0)), docker.get("filesystem")))
    margin = (
        case.known["free_margin_bytes"] if case.expected.free_margin_bytes is None else case.expected.free_margin_bytes
    )
    targets = {place["target"]: place for _what, size, place in coming if size and place}
    for target, place in targets.items():
        parts = [(what, size) for what, size, where in coming if size and where and where["target"] == target]
        needed, free = sum(size for _what, size in parts), place.get("free_bytes")
        if free is not None and free - needed < margin:
            listed = " and ".join(f"{size / GIB:.1f} GiB of {what}" for what, size in parts)
            message = (
                f"{target} has {free / GIB:.1f} GiB free, "
                f"but {listed} are to come and {margin / GIB:.0f} GiB are to stay free."
            )
            short = (needed + margin - free) / GIB
            yield case.error("disk-too-small", message, f"Free {short:.1f} GiB, or put them on a larger disk.")


# --- Docker ------------------------------------------------------------------------------------------------------


def judge_docker(case: Case) -> Iterator[Finding]:
    """The engine there, answering, and its configuration whole."""
    docker = case.part("docker")
    settings = docker.get("daemon_json") or {}
    if settings.get("error"):
        message = f"{settings.get('path')} is broken: {settings['error']}."
        yield case.error(
            "daemon-json-broken", message, "Repair it by hand; it is kept as it is and Docker is not restarted."
        )
    if "docker" in (case.part("read").get("timed_out") or []) or case.part("user").get("uid") not in (0, None):
        return  # said by judge_reading
    if not docker.get("installed"):
        yield case.curable("docker", "no-docker", "Docker is not installed.", "Install Docker.")
    elif not docker.get("reachable"):
        message = f"Docker does not answer ({docker.get('error')})."
        yield case.curable("docker", "docker-stopped", message, "Start it: systemctl start docker.")
    if case.part("python").get("requests") is False:
        message = f"{case.part('python').get('executable')} lacks the module requests, which drives Docker."
        yield case.curable("docker", "python-requests-missing", message, "Install python3-requests.")


def judge_image(case: Case) -> Iterator[Finding]:
    """The rank's image by content, never by its tag alone."""
    tag, pinned = case.rank["image"], str(case.rank.get("image_digest") or UNPINNED)
    source = case.expected.images.get(tag)
    state, image = images.state(case.facts, tag, pinned, source), images.tagged(case.facts, tag) or {}
    if not case.part("docker").get("reachable"):
        return
    if state in ("absent", "differs") and source:
        arch = case.facts.get("arch")
        if images.ARCHITECTURES.get(str(arch), arch) != source.architecture:
            message = f"{tag} in images_source is for {source.architecture}, the node is {arch}."
            yield case.error("image-platform", message, "Bring the image for the nodes' architecture.")
            return
    if state == "absent":
        if not case.expected.cures("images"):
            yield case.error("image-missing", f"{tag} is not on the node.", "Load it, or set images_source.")
    elif state == "differs":
        message = f"{tag} is {str(image.get('id'))[:19]} here, but the plan has {pinned[:19]}."
        yield case.curable(
            "images", "image-tag-differs", message, "Load the right image: the tag alone proves nothing."
        )
    elif image.get("entrypoint"):
        message = f"{tag} has the entrypoint {list(image['entrypoint'])}: the rank's command would be appended to it."
        yield case.error("entrypoint-not-empty", message, "Rebuild the image with ENTRYPOINT [].")


def ours(facts: Document) -> list[Document]:
    """Our rank container on this node, if any."""
    return [c for c in (facts.get("docker") or {}).get("containers") or [] if c.get("ours")]


def judge_containers(case: Case) -> Iterator[Finding]:
    """Ranks somebody started by hand."""
    tag, image = case.rank["image"], (images.tagged(case.facts, case.rank["image"]) or {}).get("id")
    for container in case.items("docker", "containers"):
        name, state = container.get("name"), container.get("state")
        if container.get("ours"):
            if LABEL_PLAN not in (container.get("labels") or {}):
                message = f"{name} ({state}) was not started by this project: it has no label {LABEL_PLAN}."
                yield case.warning("rank-by-hand", message, "It is stopped and replaced when the ranks start.")
        elif state == "running" and (container.get("image") == tag or (image and container.get("image_id") == image)):
            message = f"Container {name} runs {tag}: it holds memory, and may hold the rendezvous of another boot."
            yield case.error("foreign-rank", message, f"Stop it: docker stop {name}.")


def judge_ports(case: Case) -> Iterator[Finding]:
    """The head's ports: free, or held by our own rank, which is stopped first."""
    if case.rank["rank"] != 0:
        return
    own = {container.get("id") for container in ours(case.facts)}
    uses = {case.expected.api_port: "api_port", case.expected.master_port: "master_port"}
    for item in case.facts.get("listeners") or []:
        use = uses.get(item.get("port"))
        if use is None or (item.get("container") and item["container"] in own):
            continue
        who = f"{item['process'] or 'a process'} (pid {item['pid']})" if item.get("pid") else "an unknown process"
        names = {c.get("id"): c.get("name") for c in case.items("docker", "containers")}
        if item.get("container"):
            who += f" in container {names.get(item['container'], item['container'][:12])}"
        message = f"Port {item['port']} ({use}) is held by {who} on {item['address']}."
        yield case.error("port-taken", message, f"Stop that process, or choose another {use}.")


JUDGES: tuple[Callable[[Case], Iterable[Finding]], ...] = (
    judge_reading,
    judge_system,
    judge_kernel,
    judge_memory,
    judge_gpu,
    judge_fabric,
    judge_storage,
    judge_probe,
    judge_space,
    judge_docker,
    judge_image,
    judge_containers,
    judge_ports,
)
