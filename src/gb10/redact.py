"""Secrets taken out of what is kept: by the names of things, by how secrets look, and by values that are known."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "(hidden)"
# A known value shorter than this would blank ordinary words.
SHORTEST = 6

# Words in the name of something that hold a secret. Tokens that are counted and tokenizers are none.
_NAME = (
    r"token(?!s|iz)|secret|passw|passphrase|_pwd|credential|bearer|cookie|authorization|"
    r"(?:api|private|access|encryption|license)[-_ ]?key"
)
NAME = re.compile(_NAME, re.IGNORECASE)

# How secrets look wherever they stand; the last group of each is what is hidden. Every repeat that could begin at each
# character of a long word is bounded, so that the time grows with the text alone.
_LOOKS = (
    r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----)(.*?)(?=-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z)",
    r"([a-zA-Z][\w+.-]{1,20}://)([^/\s@\"']{1,512})(?=@)",
    r"((?i:\b(?:bearer|basic)\s+))([\w.~+/=-]{8,})",
    # name=value, name: value, "name": "value", --name value
    rf"((?i:(?:{_NAME})[\w.-]{{0,64}})[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"'])([^\"'\n]+)",
    rf"((?i:(?:{_NAME})[\w.-]{{0,64}})[\"']?(?:\s{{0,8}}=\s{{0,8}}|:\s+|:(?=\S)))([^\s\"',;&{{}}\[\]|<>]+)",
    rf"(-(?i:[\w-]{{0,64}}(?:{_NAME})[\w-]{{0,64}})[\"']?,?\s+[\"']?)([^\s\"',-][^\s\"',]*)",
    # Prefixes that issuers give: OpenAI, Hugging Face, NVIDIA, GitHub, GitLab, Slack, AWS, Google, Docker, PyPI, JWT
    r"()\b((?:sk|nvapi|glpat|pypi)-[\w-]{8,}|(?:hf|gh[pousr]|github_pat|dckr_pat)_[\w-]{8,}|xox[abeoprs]-[\w-]{8,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)",
    r"()(\$(?:1|2[aby]|5|6|7|y|gy)\$[./A-Za-z0-9$=,+-]{8,})",  # crypt(3)
)
LOOKS = tuple(re.compile(pattern, re.DOTALL) for pattern in _LOOKS)


def secret_name(name: str) -> bool:
    """Whether something of this name holds a secret."""
    return NAME.search(name) is not None


def forms(value: str) -> set[str]:
    """The forms in which a known secret may be written: as it is, escaped, its lines, in base64."""
    lines = [line for line in value.splitlines() if len(line) >= 2 * SHORTEST]
    found = {value, json.dumps(value)[1:-1], quote(value, safe=""), base64.b64encode(value.encode()).decode(), *lines}
    return {form for form in found if len(form) >= SHORTEST}


def named_text(value: Any, named: bool) -> str | None:
    """What ``known_in`` takes a value for: a secret where it is a text under the name of one."""
    return value if named and isinstance(value, str) else None


def known_in(values: Any, reveal: Callable[[Any, bool], str | None] = named_text, named: bool = False) -> set[str]:
    """Every secret in nested ``values``, in all its forms.

    ``reveal``: of one value, and whether it stands under the name of a secret, the secret it holds.
    """
    if isinstance(values, Mapping):
        parts = ((value, named or secret_name(str(name))) for name, value in values.items())
        return {form for value, inside in parts for form in known_in(value, reveal, inside)}
    if isinstance(values, list | tuple):
        return {form for value in values for form in known_in(value, reveal, named)}
    found = reveal(values, named)
    return forms(found) if found else set()


def scrub_text(text: str, known: Iterable[str] = ()) -> str:
    """The text without secrets."""
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern in LOOKS:
        text = pattern.sub(lambda found: found[1] + HIDDEN, text)
    return text


def scrub(value: Any, known: Iterable[str] = ()) -> Any:
    """A nested value of built-in types without secrets. Numbers and booleans stay: none is a secret."""
    known = tuple(known)
    if isinstance(value, Mapping):
        return {scrub_text(str(key), known): _member(str(key), item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _items(value, known)
    return scrub_text(value, known) if isinstance(value, str) else value


def _member(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if secret_name(name) and value and not isinstance(value, bool | int | float):
        return HIDDEN
    return scrub(value, known)


def _items(values: Iterable[Any], known: tuple[str, ...]) -> list[Any]:
    """Items of a list; in an argument list the word after an option with the name of a secret is one."""
    items: list[Any] = []
    option = False
    for value in values:
        items.append(HIDDEN if option and isinstance(value, str) else scrub(value, known))
        option = isinstance(value, str) and value.startswith("-") and "=" not in value and secret_name(value)
    return items
