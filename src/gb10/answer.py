"""Judging what the endpoint answers: alive is not right."""

from __future__ import annotations

import re
from typing import Any

# The report's own check [report A]: a garbled engine repeats one token, a wrong one cannot count.
QUESTION = "Count from 1 to 10."
MAX_TOKENS = 50


def completion_fault(status: int, body: Any) -> str:
    """Why a chat completion of ``QUESTION`` is no proof of health; empty when it is one.

    The answer must hold the numbers 1 to 10 as whole words, one after the other.
    """
    if status != 200:
        return f"the completion was answered with HTTP {status}: {str(body)[:200]}"
    try:
        answer = body["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return f"the completion has no answer in it: {str(body)[:200]}"
    if not isinstance(answer, str) or not answer.strip():
        return "the completion is empty"
    numbers = [int(n) for n in re.findall(r"\b\d+\b", answer)]
    wanted = list(range(1, 11))
    if not any(numbers[i : i + 10] == wanted for i in range(len(numbers))):
        tokens = answer.split()
        if len(tokens) >= 5 and len(set(tokens)) == 1:
            return f"the answer is one repeated token ({tokens[0]!r}): the known garble of a wrong build"
        return f"the answer does not count from 1 to 10: {answer[:200]!r}"
    return ""


def models_fault(status: int, body: Any, served_model_name: str) -> str:
    """Why ``/v1/models`` does not list the served name; empty when it does."""
    if status == 401:
        return "the endpoint asks for another API key"
    if status != 200:
        return f"/v1/models answered HTTP {status}"
    try:
        names = [str(model["id"]) for model in body["data"]]
    except (KeyError, TypeError):
        return f"/v1/models answered no list: {str(body)[:200]}"
    if served_model_name not in names:
        return f"the endpoint serves {', '.join(names) or 'nothing'}, not {served_model_name}"
    return ""


def endpoint_fault(asked: dict[str, Any], served_model_name: str) -> str:
    """Why what ``gb10_endpoint`` brought back is no proof of a working endpoint; empty when it is one."""
    if asked.get("failed") or "models" not in asked:
        return f"the endpoint could not be asked: {str(asked.get('msg', ''))[:200]}"
    models, completion = asked["models"], asked["completion"]
    if models["status"] == 0:
        return f"nothing answers: {models['body']}"
    return models_fault(models["status"], models["body"], served_model_name) or completion_fault(
        completion["status"], completion["body"]
    )


def text_of(asked: dict[str, Any]) -> str:
    """The answer's text, empty when there is none."""
    try:
        return str(asked["completion"]["body"]["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError):
        return ""
