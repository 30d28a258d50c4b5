"""The root filesystem of a node: Debian with systemd, sshd and Docker, made from the machine's own package source."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lab.cache import atomic_dir, cache_dir, digest
from lab.dockerd import docker
from lab.run import LabError, run, say, step

REPOSITORY = "gb10-lab-node"
PREFERRED_SUITE = "trixie"
PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    "docker.io",
    "ethtool",
    "iproute2",
    "iperf3",
    "iptables",
    "iputils-ping",
    "kmod",
    "netplan.io",
    "nftables",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "python3-apt",
    "python3-requests",
    "rsync",
    "sudo",
    "systemd",
    "systemd-sysv",
)
BUILD_SECONDS = 1500
# Debian's Docker client became a package of its own after bookworm; Ubuntu's docker.io holds it.
_CLIENT_INSIDE = {"bullseye", "bookworm"}


@dataclass(frozen=True)
class Source:
    """One apt package source: where, which suite and components, and the keyring that signs it ("" = apt's)."""

    uri: str
    suite: str
    components: tuple[str, ...]
    keyring: str = ""


def ensure() -> str:
    """Return the tag of the node image, made and imported into the Docker engine if it is not there."""
    source = choose_source(read_sources(Path("/etc/apt")), host_release())
    architecture = run(["dpkg", "--print-architecture"], timeout=10).stdout.strip()
    packages = packages_for(source.suite)
    setup = Path(__file__).with_name("node_setup.sh")
    key = digest(source.suite, architecture, " ".join(packages), " ".join(source.components), setup)
    tag = f"{REPOSITORY}:{key}"
    archive = cache_dir() / f"node-{key}" / "root.tar"
    if not archive.exists():
        with step(f"node image {source.suite} {architecture} built"):
            _build(source, packages, setup, archive.parent)
    if not docker("image", "ls", "--quiet", tag):
        with step(f"node image {tag} imported"):
            changes = ('CMD ["/sbin/lab-init"]', "ENV container=docker")
            options = [option for change in changes for option in ("--change", change)]
            docker("import", *options, str(archive), tag, timeout=300)
    return tag


def forget() -> None:
    """Remove every node image from the Docker engine."""
    for identity in docker("image", "ls", "--quiet", REPOSITORY).split():
        docker("image", "rm", "--force", identity, check=False)


def packages_for(suite: str) -> tuple[str, ...]:
    """Return the packages of a node of ``suite``: the same everywhere but for the Docker client."""
    client = () if suite in _CLIENT_INSIDE or host_release()["ID"] == "ubuntu" else ("docker-cli",)
    return tuple(sorted((*PACKAGES, *client)))


def host_release() -> dict[str, str]:
    """Return the fields of /etc/os-release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines if "=" in line)}


def choose_source(sources: list[Source], release: dict[str, str]) -> Source:
    """Return what to build from: PREFERRED_SUITE where the machine's source serves it, else its own suite.

    Raises:
        LabError: apt has no source for the machine's own suite.
    """
    own = release.get("VERSION_CODENAME", "")
    matching = [source for source in sources if source.suite == own and "main" in source.components]
    if not matching:
        found = ", ".join(sorted({source.suite for source in sources})) or "none"
        raise LabError(
            f"apt has no source for this machine's suite {own!r} (found: {found}); add it to /etc/apt/sources.list"
        )
    first = matching[0]
    if release.get("ID") == "ubuntu":
        return replace(first, components=("main", "universe"))
    preferred = replace(first, suite=PREFERRED_SUITE, components=("main",))
    if own != PREFERRED_SUITE and not serves(preferred):
        say(f"this machine's package source has no {PREFERRED_SUITE}: nodes are made from {own}")
        return replace(first, components=("main",))
    return preferred


def serves(source: Source) -> bool:
    """Return whether the package source has the suite, asked with apt's own settings (proxies, certificates)."""
    helper = "/usr/lib/apt/apt-helper"
    with tempfile.TemporaryDirectory() as directory:
        url = f"{source.uri.rstrip('/')}/dists/{source.suite}/InRelease"
        result = run([helper, "download-file", url, f"{directory}/InRelease"], timeout=60, check=False)
    return result.returncode == 0


def read_sources(apt: Path) -> list[Source]:
    """Return the binary package sources under an /etc/apt directory, one-line and deb822 files alike."""
    sources: list[Source] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        if path.suffix == ".list":
            sources.extend(parse_one_line(path.read_text()))
        elif path.suffix == ".sources":
            sources.extend(parse_deb822(path.read_text()))
    return sources


def parse_one_line(text: str) -> Iterator[Source]:
    """Yield the sources of a one-line file: ``deb [signed-by=KEYRING] URI SUITE COMPONENT...``."""
    for line in text.splitlines():
        match = re.fullmatch(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<rest>.+)", line.partition("#")[0].strip())
        if not match:
            continue
        uri, suite, *components = match["rest"].split()
        options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
        yield Source(uri, suite, tuple(components), options.get("signed-by", "").partition(",")[0])


def parse_deb822(text: str) -> Iterator[Source]:
    """Yield the sources of a deb822 file: paragraphs of ``Field: value`` with continuation lines and comments.

    A key written into the file itself (Signed-By with a block) is left to the machine's default keyrings.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        signed = fields.get("signed-by", "").split()
        keyring = signed[0] if signed and signed[0].startswith("/") else ""
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, tuple(fields.get("components", "").split()), keyring)


def _build(source: Source, packages: tuple[str, ...], setup: Path, destination: Path) -> None:
    with atomic_dir(destination) as work:
        bootstrap(source, packages, work / "root.tar", "--variant=minbase", f"--customize-hook={setup}")


def bootstrap(
    source: Source, packages: tuple[str, ...], archive: Path, *options: str, env: dict[str, str] | None = None
) -> None:
    """Make the tar (or directory) of a root filesystem with mmdebstrap; its log stays beside it.

    Mounts are made in a mount namespace of their own, so that none outlives a failure.
    """
    scratch = archive.with_name("scratch")
    scratch.mkdir()
    argv = ["unshare", "--mount", "--propagation", "private", "mmdebstrap", "--mode=root", *options]
    argv += [f"--include={','.join(packages)}", f"--components={','.join(source.components)}", *_apt_options()]
    if source.keyring:
        argv.append(f"--keyring={source.keyring}")
    argv += [source.suite, str(archive), source.uri]
    run(argv, timeout=BUILD_SECONDS, env={"TMPDIR": str(scratch), **(env or {})}, log=archive.with_name("build.log"))
    shutil.rmtree(scratch)


def _apt_options() -> list[str]:
    """Return mmdebstrap options that carry over the machine's own proxies, certificates and date checks."""
    wanted = re.compile(r'Acquire::(https?::(Proxy|CAInfo|CAPath)\S*|Check-Valid-Until|Check-Date|Retries) ".+";')
    dump = run(["apt-config", "dump"], timeout=30).stdout.splitlines()
    return [f"--aptopt={line}" for line in dump if wanted.match(line)]
