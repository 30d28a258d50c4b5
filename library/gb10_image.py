#!/usr/bin/python
"""Gives Docker an image from the layers it lacks, or takes images away; over the daemon's socket, by content."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10_image
short_description: An image by content, from the layers this node lacks
description:
  - C(load) hands manifest, configuration and the spooled layers to the Docker daemon as one saved image. Layers that
    Docker has are not needed and not sent. Every layer is hashed while it is handed over, and one that is not what its
    digest says ends it.
  - The image comes under a name of its own, is compared by content, and only then takes O(name). Until then O(name) is
    what it was; afterwards the image that had it keeps O(replaced).
  - The spool is removed whatever happens.
  - C(remove) removes the tags O(names), never an image a container was made from. Tags that are gone already are well.
options:
  action: {description: What to do., type: str, choices: [load, remove], required: true}
  node: {description: How the inventory calls this node; for messages., type: str, default: this node}
  name: {description: The image's name for people (load)., type: str}
  id: {description: What this node's image store calls the image (load)., type: str}
  manifest: {description: The image's manifest in base64 (load)., type: str}
  config: {description: The image's configuration in base64 (load)., type: str}
  blobs: {description: "Layers in the spool (load): {path, size, sha256}.", type: list, elements: dict, default: []}
  spool: {description: Directory of the layers (load)., type: path}
  replaced: {description: Tag for the image that had O(name); empty for none., type: str, default: ""}
  trouble: {description: What went wrong while the layers were spooled; for messages., type: str, default: ""}
  names: {description: Tags to remove (remove)., type: list, elements: str, default: []}
  timeout: {description: Seconds for all of it., type: int, default: 3600}
  docker_socket: {description: Socket of the Docker API., type: path, default: /var/run/docker.sock}
author: gb10-cluster
"""
EXAMPLES = r"""
- name: The image is loaded
  gb10_image:
    action: load
    name: vllm-dsv41:latest
    id: "{{ todo.id }}"
    manifest: "{{ manifest }}"
    config: "{{ config }}"
    blobs: "{{ todo.blobs }}"
    spool: "{{ todo.spool }}"
"""
RETURN = r"""
id: {description: The id of the image that has the name now., returned: load, type: str}
sent: {description: Bytes of layers that were handed to Docker., returned: load, type: int}
removed: {description: Tags that were removed., returned: remove, type: list}
"""

import base64
import contextlib
import hashlib
import http.client
import json
import shutil
import socket
import tarfile
import time
import urllib.parse
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

CHUNK = 1 << 20  # bytes
CLEANUP = 60  # s for taking the image's own name away again
INCOMING = "gb10-incoming"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Problem(Exception):
    """What went wrong, as code and one line."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Daemon(http.client.HTTPConnection):
    """One request to Docker over its unix socket, over at ``deadline`` (monotonic seconds) at the latest."""

    def __init__(self, path, deadline):
        super().__init__("docker")
        self.path, self.deadline = path, deadline

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.bound()
        self.sock.connect(self.path)

    def bound(self):
        """Raises TimeoutError when the time is over."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.sock.settimeout(left)


class Docker:
    """The requests that are needed. ``ask`` raises Problem for what the daemon refuses."""

    def __init__(self, path, seconds):
        self.path, self.seconds = path, seconds
        self.deadline = time.monotonic() + seconds

    def ask(self, method, url, missing=None):
        """The answer's JSON; ``missing`` for a 404."""
        daemon = Daemon(self.path, self.deadline)
        try:
            daemon.request(method, url)
            answer = daemon.getresponse()
            body = answer.read()
        except TimeoutError:
            raise Problem("image-timeout", f"Docker did not answer {method} {url} within {self.seconds} s.") from None
        except (OSError, http.client.HTTPException) as problem:
            raise Problem("image-docker", f"Docker does not answer: {problem}.") from None
        finally:
            daemon.close()
        if answer.status == 404 and missing is not None:
            return missing
        if answer.status >= 300:
            raise Problem("image-docker", f"Docker refuses {method} {url}: {told(body)}.")
        return json.loads(body) if body.strip() else {}

    def inspect(self, name):
        """An image, or an empty dict."""
        return self.ask("GET", f"/images/{quoted(name)}/json", missing={})

    def tag(self, name, new):
        """Another name for an image."""
        repository, tag = parts(new)
        self.ask("POST", f"/images/{quoted(name)}/tag?repo={quoted(repository)}&tag={quoted(tag)}")

    def untag(self, name):
        """A name less; its image goes with its last one."""
        return self.ask("DELETE", f"/images/{quoted(name)}", missing=[])

    def load(self, chunks):
        """Streams a saved image. Raises Problem, also those of ``chunks``, after which Docker keeps nothing."""
        daemon = Daemon(self.path, self.deadline)
        try:
            daemon.putrequest("POST", "/images/load?quiet=1")
            daemon.putheader("Content-Type", "application/x-tar")
            daemon.putheader("Transfer-Encoding", "chunked")
            daemon.endheaders()
            try:
                for chunk in filter(None, chunks):  # an empty one would be the end
                    daemon.bound()
                    daemon.send(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
                daemon.send(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError):
                pass  # it gave up early, and says why
            daemon.bound()
            answer = daemon.getresponse()
            body = answer.read()
        except TimeoutError:
            raise Problem("image-timeout", f"Docker did not take the image within {self.seconds} s.") from None
        except (OSError, http.client.HTTPException) as problem:
            raise Problem("image-docker", f"Docker broke off while it took the image: {problem}.") from None
        finally:
            daemon.close()
        problem = told(body) if answer.status >= 300 else error_in(body)
        if problem:
            raise Problem("image-docker", f"Docker does not take the image: {problem}.")


def told(body):
    """A refusal in words."""
    try:
        return str(json.loads(body)["message"]).strip().rstrip(".")
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300] or "without a word"


def error_in(body):
    """The error among the JSON messages of a stream that began well; empty for none."""
    for row in body.splitlines():
        try:
            message = json.loads(row)
        except ValueError:
            continue
        if isinstance(message, dict) and message.get("error"):
            return str(message["error"]).strip().rstrip(".")
    return ""


def quoted(name):
    return urllib.parse.quote(name, safe=":/@")


def parts(name):
    """Repository and tag."""
    head, slash, last = name.rpartition("/")
    base, _colon, tag = last.partition(":")
    return head + slash + base, tag or "latest"


def saved(name, manifest, config, layers, blobs, spool):
    """The bytes of a saved image (OCI layout and docker-archive in one) with only the layers in ``blobs``.

    Raises Problem for a layer that is not what its digest says.
    """
    descriptor = {"mediaType": MANIFEST, "digest": digest(manifest), "size": len(manifest)}
    descriptor["mediaType"] = json.loads(manifest).get("mediaType", MANIFEST)
    # The name Docker's containerd store reads, then the classic store's.
    descriptor["annotations"] = {"io.containerd.image.name": full(name)}
    listed = [{"Config": place(digest(config)), "RepoTags": [name], "Layers": [place(layer) for layer in layers]}]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
    yield from entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    for data in (manifest, config):
        yield from entry(place(digest(data)), data)
    for blob in blobs:
        yield header(place("sha256:" + blob["sha256"]), int(blob["size"]))
        yield from proved(blob, spool)
        yield padding(int(blob["size"]))
    yield from entry("index.json", json.dumps(index).encode())
    yield from entry("manifest.json", json.dumps(listed).encode())
    yield bytes(2 * tarfile.BLOCKSIZE)


def proved(blob, spool):
    """A layer's bytes. Raises Problem at its end if they are others, before Docker has the whole."""
    path, size = spool / blob["path"], int(blob["size"])
    found, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while done < size and (data := stream.read(min(CHUNK, size - done))):
                found.update(data)
                done += len(data)
                if done < size:
                    yield data
    except OSError as problem:
        raise Problem("image-blob", f"layer sha256:{blob['sha256']} cannot be read: {problem.strerror}.") from None
    if done < size:
        raise Problem("image-blob", f"layer sha256:{blob['sha256']} has {done} bytes, not {size}.")
    if found.hexdigest() != blob["sha256"]:
        raise Problem("image-blob", f"layer sha256:{blob['sha256']} arrived as sha256:{found.hexdigest()}.")
    if size:
        yield data


def check_spool(blobs, spool):
    """Every layer is there, whole, and a file. Raises Problem."""
    for blob in blobs:
        path = spool / blob["path"]
        if path.is_symlink() or not path.is_file():
            raise Problem("image-blob", f"layer sha256:{blob['sha256']} did not arrive.")
        if path.stat().st_size != int(blob["size"]):
            raise Problem(
                "image-blob", f"layer sha256:{blob['sha256']} has {path.stat().st_size} bytes, not {blob['size']}."
            )


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def place(digest_):
    return "blobs/" + digest_.replace(":", "/")


def full(name):
    """A name with the registry Docker leaves out."""
    first, slash, _rest = name.partition("/")
    if slash and (set(first) & set(".:") or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def entry(name, data):
    """A small file of a tar."""
    yield header(name, len(data)) + data + padding(len(data))


def header(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size):
    return bytes(-size % tarfile.BLOCKSIZE)


def load(docker, p):
    """The image under its name. Raises Problem; the name is then what it was."""
    manifest, config = base64.b64decode(p["manifest"]), base64.b64decode(p["config"])
    spool, name = Path(p["spool"]), p["name"]
    layers = [layer["digest"] for layer in json.loads(manifest)["layers"]]
    incoming = f"{parts(name)[0]}:{INCOMING}"
    check_spool(p["blobs"], spool)
    try:
        docker.load(saved(incoming, manifest, config, layers, p["blobs"], spool))
        found = docker.inspect(incoming)
        if found.get("Id") not in (p["id"], digest(manifest), digest(config)):
            raise Problem("image-digest", f"Docker made {found.get('Id')} of it, not {p['id']}.")
        old = docker.inspect(name)
        if p["replaced"] and old and old["Id"] != found["Id"]:
            docker.tag(name, p["replaced"])
        docker.tag(incoming, name)
    finally:  # with time of its own: the containerd store names also what it could not unpack
        with contextlib.suppress(Problem):
            Docker(docker.path, CLEANUP).untag(incoming)
    if found["Id"] != p["id"]:
        raise Problem("image-store", "its image store changed since preflight, and ids with it; the image is there.")
    return {"id": docker.inspect(name).get("Id"), "sent": sum(int(b["size"]) for b in p["blobs"])}


def remove(docker, p):
    """Tags less."""
    return {"removed": [name for name in p["names"] if docker.untag(name)]}


def main():
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["load", "remove"], "required": True},
            "node": {"type": "str", "default": "this node"},
            "name": {"type": "str"},
            "id": {"type": "str"},
            "manifest": {"type": "str"},
            "config": {"type": "str"},
            "blobs": {"type": "list", "elements": "dict", "default": []},
            "spool": {"type": "path"},
            "replaced": {"type": "str", "default": ""},
            "trouble": {"type": "str", "default": ""},
            "names": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 3600},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
        },
        required_if=[("action", "load", ["name", "id", "manifest", "config", "spool"])],
        supports_check_mode=True,
    )
    p = module.params
    if module.check_mode:
        module.exit_json(changed=p["action"] == "load" or bool(p["names"]), removed=p["names"])
    docker = Docker(p["docker_socket"], p["timeout"])
    try:
        done = load(docker, p) if p["action"] == "load" else remove(docker, p)
    except Problem as fault:
        remedy = "Look at the node, and run again."
        said = f" Before that: {p['trouble']}." if p["trouble"] and fault.code == "image-blob" else ""
        module.fail_json(msg=f"error [{fault.code}] {p['node']}: {p['name'] or 'images'}: {fault}{said} {remedy}")
    finally:
        if p["action"] == "load":
            shutil.rmtree(p["spool"], ignore_errors=True)
    module.exit_json(changed=p["action"] == "load" or bool(done["removed"]), **done)


if __name__ == "__main__":
    main()
