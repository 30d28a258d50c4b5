"""Images by content: what an image must hold, which nodes hold it, what of it each node lacks, what nobody needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gb10.findings import Finding, error, warning
from gb10.layout import Blob, Image
from gb10.plan import UNPINNED

Document = Mapping[str, Any]

# What a node calls its processor (uname) in the words of images (Go's GOARCH).
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
# An image whose name another one takes keeps this tag of its repository: nothing of ours is ever without a name.
REPLACED = "was"


def judge(
    image: Image,
    files: Mapping[str, str],
    paths: Mapping[str, str],
    stock: Collection[str],
    known: Mapping[str, Mapping[str, str]],
) -> list[Finding]:
    """Findings on one image.

    ``files``: sha256 (hex) by absolute path, as far as the image holds them; ``paths``: patch file to its path;
    ``stock``: patch files that must be stock vLLM here; ``known``: per patch file its sha256 ``patched`` and ``stock``.
    """
    findings = []
    if image.entrypoint:
        message = f"{image.name} has ENTRYPOINT {list(image.entrypoint)}, which would swallow the rank's command."
        findings.append(error("entrypoint-not-empty", message, "Build it with ENTRYPOINT []."))
    for name, path in paths.items():
        wanted = "stock" if name in stock else "patched"
        findings += _file(image.name, name, path, wanted, files.get(path), known.get(name, {}))
    return findings


def _file(image: str, name: str, path: str, wanted: str, digest: str | None, known: Mapping[str, str]) -> list[Finding]:
    if digest is None:
        return [error("patch-missing", f"{image} has no {path}.", "Build the image with all seven files.")]
    if wanted not in known:
        message = f"{name} of {image} is {digest[:12]}; whether that is {wanted} is not known."
        return [warning("patch-unpinned", message, f"Give images_patch_sha256.{name}.{wanted}.")]
    if digest == known[wanted]:
        return []
    other = "patched" if wanted == "stock" else "stock"
    is_what = other if digest == known.get(other) else f"neither ({digest[:12]})"
    return [error("patch-wrong", f"{name} of {image} must be {wanted} but is {is_what}.", "Build the image again.")]


# --- nodes -----------------------------------------------------------------------------------------------------------


def held(facts: Document) -> list[Document]:
    """The images a node holds."""
    return list((facts.get("docker") or {}).get("images") or [])


def tagged(facts: Document, tag: str) -> Document | None:
    """The image that carries ``tag``."""
    return next((image for image in held(facts) if tag in (image.get("tags") or [])), None)


def state(facts: Document, tag: str, pinned: str, image: Image | None) -> str:
    """``tag`` on a node: absent, same, differs, or unpinned (there, with nothing to compare it with).

    ``pinned``: the plan's id of it; ``image``: the controller's, if it holds it, which adds the id in the other store.
    """
    found = tagged(facts, tag)
    if found is None:
        return "absent"
    if pinned == UNPINNED:
        return "unpinned"
    return "same" if found.get("id") in (pinned, *(image.ids if image else ())) else "differs"


def id_on(facts: Document, pinned: str, image: Image | None) -> str:
    """What a node's image store calls the plan's image."""
    containerd = (facts.get("docker") or {}).get("image_store") == "containerd"
    return image.manifest.digest if image and containerd else pinned


def ids_on(ranks: Iterable[Document], facts: Mapping[str, Document], source: Mapping[str, Image]) -> dict[str, str]:
    """``id_on`` of every rank's node that has facts."""
    planned = [(r["node"], r["image_digest"], source.get(r["image"])) for r in ranks if r["node"] in facts]
    return {node: id_on(facts[node], pinned, image) for node, pinned, image in planned}


def lacking(facts: Document, image: Image, source: Iterable[Image]) -> list[Blob]:
    """The layers a node lacks, each once.

    The classic store keeps a layer by what lies below it, so what counts is the longest common beginning with an image
    there. The containerd store keeps blobs; which ones is certain for images that are the controller's (``source``).
    """
    if (facts.get("docker") or {}).get("image_store") == "containerd":
        ids = {found.get("id") for found in held(facts)}
        there = {layer.digest for other in source if other.manifest.digest in ids for layer in other.layers}
        missing = [layer for layer in image.layers if layer.digest not in there]
    else:
        common = max((_common(image.diff_ids, found.get("layers") or []) for found in held(facts)), default=0)
        missing = list(image.layers[common:])
    return list(dict.fromkeys(missing))


def _growth(layer: Blob) -> int:
    """How many times its size a layer takes unpacked. Of a compressed one nobody says: 3 is assumed."""
    return 1 if layer.media_type.endswith(".tar") else 3


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


def to_bring(ranks: Iterable[Document], facts: Mapping[str, Document], source: Mapping[str, Image]) -> dict[str, Any]:
    """Per node that lacks its rank's image: what the images role does there.

    ``{tag, id, replaced, spool, manifest, config, blobs[{path, size, sha256}], bytes, space, copied[blob]}``; paths are
    those under ``blobs`` of the layout and under ``spool``. ``bytes`` come over the wire; ``space`` is the most they
    take while they are loaded: spooled, in Docker's hands, unpacked. ``replaced``: the tag that an image of this name
    keeps; ``spool``: a directory on the disk that holds the images. ``copied``: what the controller brings: to one node
    all that anybody lacks, to the others nothing, for they have it from there.
    """
    found: dict[str, Any] = {}
    for rank in ranks:
        node, tag, image = rank["node"], rank["image"], source.get(rank["image"])
        if image is None or node not in facts or state(facts[node], tag, rank["image_digest"], image) == "same":
            continue
        docker = facts[node].get("docker") or {}
        blobs = lacking(facts[node], image, source.values())
        old = tagged(facts[node], tag)
        found[node] = {
            "tag": tag,
            "id": id_on(facts[node], rank["image_digest"], image),
            "replaced": f"{repository(tag)}:{REPLACED}-{short(old['id'])}" if old else "",
            "spool": f"{docker.get('containerd_root') or docker.get('data_root') or '/var/lib/docker'}/gb10-spool",
            "manifest": image.manifest.path,
            "config": image.config.path,
            "blobs": [{"path": b.path, "size": b.size, "sha256": b.digest.partition(":")[2]} for b in blobs],
            "bytes": sum(b.size for b in blobs),
            "space": sum(b.size * (2 + _growth(b)) for b in blobs),
            "copied": [],
        }
    every = {blob["sha256"]: blob for item in found.values() for blob in item["blobs"]}
    if every:
        first = max(found.values(), key=lambda item: int(item["bytes"]))  # the one with the least beside its own
        first["copied"] = list(every.values())
        first["space"] += sum(blob["size"] for blob in every.values()) - first["bytes"]
    return found


def spread(bringing: Document) -> dict[str, Any]:
    """Of what ``to_bring`` says: ``{source, from, files, wants}``, the role spread's variables.

    ``source`` is the node the controller brings layers to, empty where no layer is missing.
    """
    source = next((node for node, item in bringing.items() if item["copied"]), "")
    wants = {node: [blob["path"] for blob in item["blobs"]] for node, item in bringing.items() if node != source}
    return {
        "source": source,
        "from": bringing[source]["spool"] if source else "",
        "files": bringing[source]["copied"] if source else [],
        "wants": {node: paths for node, paths in wants.items() if paths},
    }


def repository(tag: str) -> str:
    """A name without its tag (``host:5000/a/b:c`` -> ``host:5000/a/b``)."""
    head, slash, last = tag.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def short(identity: str) -> str:
    """An id as people see it."""
    return identity.partition(":")[2][:12]


def to_remove(facts: Document, named: Collection[str]) -> list[str]:
    """Tags of our repositories that no profile names (``named``: all that do), on images no container was made from."""
    ours = {repository(tag) for tag in named}
    used = {container.get("image_id") for container in (facts.get("docker") or {}).get("containers") or []}
    return sorted(
        tag
        for image in held(facts)
        if image.get("id") not in used
        for tag in image.get("tags") or []
        if repository(tag) in ours and tag not in named
    )
