"""Alive is not right (cases 26 and 27)."""

from __future__ import annotations

from typing import Any

import pytest

from gb10.answer import completion_fault, endpoint_fault, models_fault


def said(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


@pytest.mark.parametrize(
    "text",
    ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10", "From 1 to 10: 1 2 3 4 5 6 7 8 9 10. Done!"],
)
def test_counting_is_right(text: str) -> None:
    assert completion_fault(200, said(text)) == ""


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, said("1 2 3 4 5 6 7 8 9"), "does not count"),
        (200, said("10 9 8 7 6 5 4 3 2 1"), "does not count"),
        (200, said("12345678910"), "does not count"),
        (200, said("the the the the the the"), "repeated token"),
        (200, said("1 1 1 1 1 1 1 1 1 1"), "repeated token"),
        (200, said(""), "empty"),
        (200, said(None), "empty"),
        (200, {"choices": []}, "no answer"),
        (200, "<html>", "no answer"),
        (500, {"error": "dead"}, "HTTP 500"),
    ],
)
def test_anything_else_is_named(status: int, body: Any, words: str) -> None:
    assert words in completion_fault(status, body)


def test_another_served_name_is_named_with_both() -> None:
    fault = models_fault(200, {"data": [{"id": "deepseek-v4.1-flash"}]}, "/data/models/x")
    assert "deepseek-v4.1-flash" in fault
    assert "/data/models/x" in fault


def test_health_and_models_alone_prove_nothing() -> None:
    models = {"status": 200, "body": {"data": [{"id": "m"}]}}
    assert (
        endpoint_fault({"models": models, "completion": {"status": 200, "body": said("1 2 3 4 5 6 7 8 9 10")}}, "m")
        == ""
    )
    assert "timed out" in endpoint_fault({"models": models, "completion": {"status": 0, "body": "timed out"}}, "m")
    assert "nothing answers" in endpoint_fault({"models": {"status": 0, "body": "refused"}, "completion": {}}, "m")
    assert endpoint_fault({"failed": True, "msg": "module broke"}, "m")
