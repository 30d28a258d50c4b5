"""What a deployment must be able to do beside counting: tool calls, images, answers without reasoning.

Which of them a deployment has is read from its head's command line, so it is the profile's data and nobody else's.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gb10.answer import endpoint_fault, text_of

Body = dict[str, Any]

TOOLS, VISION, REASONING_OFF = "tools", "vision", "reasoning-off"
NAMES = (TOOLS, VISION, REASONING_OFF)

CITY = "Paris"
COLOUR = "red"
SIDE = 56  # pixels of the image: whole patches of 14 and of 28


def wanted(argv: Sequence[str], skipped: Collection[str] = ()) -> list[str]:
    """The checks for an engine with this command line, without the ``skipped`` ones. ValueError for unknown names."""
    unknown = sorted(set(skipped) - set(NAMES))
    if unknown:
        raise ValueError(f"verify_skip names {', '.join(unknown)}; there are {', '.join(NAMES)}")
    has = {
        TOOLS: bool(_value(argv, "--tool-call-parser")),
        VISION: int(_json(argv, "--limit-mm-per-prompt").get("image") or 0) > 0,
        REASONING_OFF: _json(argv, "--default-chat-template-kwargs").get("thinking") is False,
    }
    return [name for name in NAMES if has[name] and name not in skipped]


def bodies(names: Collection[str]) -> dict[str, Body]:
    """Requests by check, model and temperature apart; what the first question shows already asks for none."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "The weather in a city now.", "parameters": city}
    image = "data:image/png;base64," + base64.b64encode(png(SIDE, (255, 0, 0))).decode()
    shown = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": "Which colour is this image? Answer with one word."},
    ]
    every = {
        TOOLS: {
            "messages": [{"role": "user", "content": f"What is the weather in {CITY}? Use the tool."}],
            "tools": [{"type": "function", "function": tool}],
            "tool_choice": "auto",
            "max_tokens": 200,
        },
        VISION: {"messages": [{"role": "user", "content": shown}], "max_tokens": 20},
    }
    return {name: body for name, body in every.items() if name in names}


def fault(asked: Mapping[str, Any], model: str, names: Collection[str]) -> str:
    """Why what ``gb10_endpoint`` brought back is no proof of what the deployment should do; empty when it is one."""
    first = endpoint_fault(dict(asked), model)
    if first:
        return first
    chats = asked.get("chats") or {}
    judges = {TOOLS: _tools, VISION: _vision}
    for name in names:
        found = _reasoning(asked["completion"]["body"]) if name == REASONING_OFF else ""
        if name in judges:
            answer = chats.get(name) or {"status": 0, "body": "not asked"}
            status, body = answer["status"], answer["body"]
            found = judges[name](body) if status == 200 else f"HTTP {status}: {str(body)[:200]}"
        if found:
            return f"{name}: {found}"
    return ""


def _message(body: Any) -> Mapping[str, Any]:
    try:
        return dict(body["choices"][0]["message"])
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def _tools(body: Any) -> str:
    calls = _message(body).get("tool_calls")
    try:
        call = calls[0]["function"]  # type: ignore[index]
        city = json.loads(call["arguments"])["city"]
    except (KeyError, IndexError, TypeError, ValueError):
        said = str(_message(body).get("content"))[:200]
        return f"the answer holds no tool call with its arguments (tool_calls {str(calls)[:200]}, content {said!r})"
    if call.get("name") != "get_weather" or CITY.lower() not in str(city).lower():
        return f"it called {call.get('name')}({str(city)[:80]!r}), not get_weather({CITY!r})"
    return ""


def _vision(body: Any) -> str:
    said = text_of({"completion": {"body": body}})
    return "" if COLOUR in said.lower() else f"a {COLOUR} image was answered with {said[:200]!r}"


def _reasoning(body: Any) -> str:
    message = _message(body)
    thought = str(message.get("reasoning") or message.get("reasoning_content") or "")
    inside = [tag for tag in ("<think>", "</think>") if tag in str(message.get("content"))]
    if thought or inside:
        return f"the answer holds reasoning though it is off: {(thought or inside[0])[:200]!r}"
    return ""


def png(side: int, colour: tuple[int, int, int]) -> bytes:
    """A square image of one colour, in 8-bit RGB."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _value(argv: Sequence[str], option: str) -> str:
    """What follows an option on a command line; empty where it is not there."""
    return str(argv[list(argv).index(option) + 1]) if option in argv[:-1] else ""


def _json(argv: Sequence[str], option: str) -> Mapping[str, Any]:
    """The same, of an option whose value is a JSON object."""
    try:
        found = json.loads(_value(argv, option) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
