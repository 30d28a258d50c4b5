"""Entries signed with an ssh key: who holds the key vouches for the entry and for all before it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gb10.history import Line
from gb10.ledger import Ledger, LedgerError, keep, said

NAMESPACE = "gb10-history"
SECONDS = 30


def sign(ledger: Ledger, line: Line, key: str) -> None:
    """Signs an entry's hash; the key must not ask (give an agent's, or one without passphrase). Raises LedgerError."""
    done = keygen(["-Y", "sign", "-f", str(Path(key).expanduser()), "-n", NAMESPACE], line.hash)
    if done.returncode or b"BEGIN SSH SIGNATURE" not in done.stdout:
        raise LedgerError(f"{key} does not sign: {last(done.stderr)}")
    with said(ledger.folder):
        ledger.signatures.mkdir(exist_ok=True, mode=0o700)
        keep(ledger.signatures / f"{line.hash}.sig", done.stdout)


def faults(ledger: Ledger, lines: Iterable[Line], allowed: Path) -> list[str]:
    """What is wrong with the signatures of begin and end entries, held against a file of allowed signers.

    A run whose begin entry says that it is signed must have both; the signer must be allowed.
    """
    found: list[str] = []
    signed: set[str] = set()
    for line in lines:
        kind = line.entry.get("kind")
        if kind == "begin" and line.entry.get("signed"):
            signed.add(line.run)
        if kind in ("begin", "end") and line.run in signed:
            problem = fault(ledger, line, allowed)
            found += [f"entry {line.sequence} (run {line.run}, {kind}): {problem}"] if problem else []
    return found


def fault(ledger: Ledger, line: Line, allowed: Path) -> str:
    """What is wrong with one entry's signature; empty when it is good."""
    path = ledger.signatures / f"{line.hash}.sig"
    if not path.is_file():
        return "its signature is missing"
    who = keygen(["-Y", "find-principals", "-s", str(path), "-f", str(allowed)], "")
    names = who.stdout.decode(errors="replace").split("\n")[0]
    if who.returncode or not names:
        return "its signer is not among the allowed ones"
    command = ["-Y", "verify", "-f", str(allowed), "-I", names.split(",")[0], "-n", NAMESPACE, "-s", str(path)]
    return "" if keygen(command, line.hash).returncode == 0 else "its signature is not good"


def keygen(words: list[str], given: str) -> subprocess.CompletedProcess[bytes]:
    """ssh-keygen, without anybody to ask."""
    environment = os.environ | {"SSH_ASKPASS_REQUIRE": "never"}
    try:
        return subprocess.run(
            ["ssh-keygen", *words],
            input=given.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env=environment,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise LedgerError(f"ssh-keygen: {problem}") from None


def last(said_: bytes) -> str:
    """The last line of what a program said."""
    lines = said_.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"
