"""One rank's rows of the Engram tables in a file of their own, with a receipt that says of what it was made.

Runs on the nodes (standard library only). The file is safetensors again: the tensors keep their names, and their first
dimension is cut to the rank's rows. The receipt beside it holds rank, tensor_parallel, rows by layer, the sha256 of
every shard that was read, and size, times, inode and sha256 of the file itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from . import whole
from .relay.index import checked
from .relay.problem import Problem
from .relay.receipt import mark
from .weights_files import CHUNK, room, sha256_of, standing

NAME = re.compile(r"engram-rank\d+-of-\d+\.(safetensors|json|part)")
HEADER = 100 << 20  # bytes of a header; safetensors itself takes no longer one
# Bytes of an element, of the types tables are stored in (safetensors' own names).
WIDTH = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True)
class Piece:
    """A tensor of which this rank needs rows ``[start, end)``; ``offset``: of row 0 in the shard, in bytes."""

    name: str
    shard: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    start: int
    end: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape[1:]) * WIDTH[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of the rows that are needed."""
        return (self.end - self.start) * self.row_bytes


def header(path: Path) -> tuple[dict[str, Any], int]:
    """Tensors of a safetensors file, and where their bytes begin. Raises Problem."""
    try:
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > HEADER:
                raise ValueError(f"a header of {length} bytes")
            tensors = json.loads(stream.read(length))
            if not isinstance(tensors, dict):
                raise ValueError("a header that is no object")
    except (OSError, ValueError, struct.error) as problem:
        raise wrong(f"{path} is no safetensors file ({problem})") from None
    tensors.pop("__metadata__", None)
    return tensors, 8 + length


def wrong(what: str) -> Problem:
    """Why the tables cannot be staged."""
    return Problem("engram-stage", f"{what}. Correct the checkpoint or model_config, or weights_engram_stage: false.")


def pieces(
    folder: Path, files: Sequence[Mapping[str, Any]], rows: Mapping[str, Sequence[int]], pattern: str
) -> list[Piece]:
    """What of the checkpoint the rank needs. Raises Problem where a layer's tables are not there or too short."""
    found, compiled = [], re.compile(pattern)
    for shard in (path for path, _size, _sha256 in checked(files) if path.endswith(".safetensors")):
        tensors, begin = header(folder / shard)
        for name, about in sorted(tensors.items()):
            match = compiled.search(name)
            if not match or match[1] not in rows:
                continue
            start, end = (int(n) for n in rows[match[1]])
            try:
                shape, dtype = tuple(map(int, about["shape"])), str(about["dtype"])
                piece = Piece(name, shard, dtype, shape, begin + int(about["data_offsets"][0]), start, end)
                stored = int(about["data_offsets"][1]) - int(about["data_offsets"][0])
                if len(shape) < 2 or stored != shape[0] * piece.row_bytes:
                    raise ValueError(f"{dtype} {shape} in {stored} bytes")
            except (KeyError, TypeError, ValueError, IndexError) as problem:
                raise wrong(f"{name} in {shard} is no table ({problem})") from None
            if shape[0] < end:
                raise wrong(f"{name} in {shard} has {shape[0]} rows, this rank needs those up to {end}")
            found.append(piece)
    layers = {match[1] for piece in found if (match := compiled.search(piece.name))}
    if lacking := sorted(set(rows) - layers, key=int):
        raise wrong(f"no shard of {folder} holds Engram tables of layer {', '.join(lacking)}")
    return found


def names(wanted: Mapping[str, Any]) -> tuple[Path, Path]:
    """The file and its receipt."""
    stem = f"engram-rank{int(wanted['rank'])}-of-{int(wanted['tensor_parallel'])}"
    folder = Path(wanted["folder"])
    if not folder.is_absolute():
        raise wrong(f"weights_engram_stage_path is {str(folder)!r}, no absolute path")
    return folder / f"{stem}.safetensors", folder / f"{stem}.json"


def made_of(files: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], shards: Sequence[str]) -> dict[str, Any]:
    """What decides what is in the file: when any of it changes the rows are staged again."""
    sums = {path: sha256 for path, _size, sha256 in checked(files)}
    return {
        "rank": int(wanted["rank"]),
        "tensor_parallel": int(wanted["tensor_parallel"]),
        "rows": {str(layer): [int(n) for n in span] for layer, span in wanted["rows"].items()},
        "shards": {shard: sums.get(shard, "") for shard in shards},
    }


def lacking(
    folder: Path,
    files: Sequence[Mapping[str, Any]],
    wanted: Mapping[str, Any],
    coming: int,
    reserve: int,
    keep: bool = True,
) -> str:
    """Why the rows must be staged; empty where they are there and right.

    A file whose size, times and inode are those of the receipt is believed, any other is read. ``coming``: bytes of
    weights still to come to the same disk; ``keep``: a receipt may be renewed. Raises Problem where there is no room.
    """
    path, receipt = names(wanted)
    why = _lacking(path, receipt, files, wanted, keep)
    if why:
        here = Path(wanted["folder"])
        needed = int(wanted["bytes"])
        room(here, needed + (coming if same_disk(here, folder) else 0), reserve, "Engram rows")
    return why


def _lacking(
    path: Path, receipt: Path, files: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], keep: bool
) -> str:
    try:
        held = json.loads(receipt.read_text())
        now = mark(path.stat())
        if made_of(files, wanted, list(held["shards"])) != {key: held[key] for key in made_of(files, wanted, [])}:
            return "rank, tensor_parallel, rows or a shard changed"
        if held["mark"] == now:
            return ""
        if now[0] != held["mark"][0] or sha256_of(path) != held["sha256"]:
            return "the staged file is another"
        if keep:
            whole.write(receipt, json.dumps(held | {"mark": now}, sort_keys=True).encode())
        return ""
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return "not staged yet"


def same_disk(one: Path, other: Path) -> bool:
    """Whether both are, or would be, on one file system."""
    return standing(one).stat().st_dev == standing(other).stat().st_dev


def stage(folder: Path, files: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Writes file and receipt, removes those of other ranks, returns the receipt. What stood there stands until then.

    The shards must have been verified. Raises Problem.
    """
    found = pieces(folder, files, wanted["rows"], str(wanted["pattern"]))
    path, receipt = names(wanted)
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        try:
            with part.open("xb", buffering=0) as stream:
                digest = write(stream, folder, found, wanted)
                os.fsync(stream.fileno())
                about = made_of(files, wanted, sorted({piece.shard for piece in found}))
                part.replace(path)
                held = about | {"mark": mark(os.fstat(stream.fileno())), "sha256": digest, "file": str(path)}
        finally:
            part.unlink(missing_ok=True)
        whole.write(receipt, json.dumps(held, sort_keys=True).encode())
        for other in path.parent.iterdir():
            if NAME.fullmatch(other.name) and other not in (path, receipt):
                other.unlink()
    except OSError as problem:
        raise Problem(
            "engram-unwritable", f"{path}: {problem.strerror or problem}. What stood there stands; run again."
        ) from None
    return held


def write(stream: BinaryIO, folder: Path, found: Sequence[Piece], wanted: Mapping[str, Any]) -> str:
    """The header, then every piece; returns the sha256 of all. Raises OSError."""
    tensors: dict[str, Any] = {}
    offset = 0
    for piece in found:
        shape = [piece.end - piece.start, *piece.shape[1:]]
        tensors[piece.name] = {"dtype": piece.dtype, "shape": shape, "data_offsets": [offset, offset + piece.bytes]}
        offset += piece.bytes
    about = {
        "rank": str(wanted["rank"]),
        "tensor_parallel": str(wanted["tensor_parallel"]),
        "rows": json.dumps(wanted["rows"], sort_keys=True),
    }
    text = json.dumps({"__metadata__": about, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def put(data: bytes | memoryview) -> None:
        digest.update(data)
        done = 0
        while done < len(data):
            done += stream.write(data[done:]) or 0

    put(struct.pack("<Q", len(text)) + text)
    for piece in found:
        with (folder / piece.shard).open("rb", buffering=0) as reader:
            reader.seek(piece.offset + piece.start * piece.row_bytes)
            left = piece.bytes
            while left:
                data = reader.read(min(CHUNK, left))
                if not data:
                    raise wrong(f"{piece.shard} ends inside {piece.name}")
                put(data)
                left -= len(data)
    return digest.hexdigest()
