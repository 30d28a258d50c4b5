"""Ask vLLM's own parser about a command line. Run by the engine's Python.

On stdin: a JSON list of what follows `vllm serve`. Accepted: exit 0 and what it was understood as, as JSON (only what
differs from the defaults). Refused: exit 1 and vLLM's message. Several lists in one list are judged one by one, since
the imports are what takes the time: exit 0 and a list of {"accepted": {...}} or {"refused": "..."}.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from typing import Any

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


class Refused(Exception):
    """vLLM does not take this command line."""


def understood(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """What vLLM makes of ``argv``; raises Refused with its message."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            parsed = parser.parse_args(argv)
            validate_parsed_serve_args(parsed)
    except SystemExit:
        raise Refused(message.getvalue().strip().splitlines()[-1]) from None
    except (TypeError, ValueError) as error:
        raise Refused(str(error)) from None
    return {name: value for name, value in sorted(vars(parsed).items()) if value != parser.get_default(name)}


def main() -> int:
    document = json.load(sys.stdin)
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    if document and isinstance(document[0], list):
        verdicts: list[dict[str, Any]] = []
        for argv in document:
            try:
                verdicts.append({"accepted": understood(parser, argv)})
            except Refused as refusal:
                verdicts.append({"refused": str(refusal)})
        print(json.dumps(verdicts, default=str))
        return 0
    try:
        print(json.dumps(understood(parser, document), default=str))
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
