"""The report page: what it says and shows in a real browser, on phone and screen, with nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import benchmark_runs
import pytest
from browser import look, run
from stand_in import MODEL

from gb10 import benchmark_kept, benchmark_plots, report_page

PHONE, DESK = 360, 1280


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("page")
    now, before = (
        benchmark_runs.run(failed=2),
        benchmark_runs.run("20261129T100000Z-00000000", factors=(1.2, 1.21, 1.22)),
    )
    now["deployment"]["options"] = {"speculative-config": '{"method":"dspark","num_speculative_tokens":5}' * 3}
    page = benchmark_kept.render(now, before, folder)
    (folder / "memory-budget.svg").write_bytes((folder / "tps.svg").read_bytes())  # any picture: its place is tested
    page = benchmark_kept.render(now, before, folder)
    return page, look(page, (PHONE, DESK), folder)


def test_nothing_sticks_out_on_phone_and_screen(shown: tuple[Path, list[dict[str, Any]]]) -> None:
    assert [found["width"] for found in shown[1]] == [PHONE, DESK]
    for found in shown[1]:
        assert found["out"] == []
        assert not found["scrolls"]


def test_every_chart_is_shown_and_as_wide_as_a_phone(shown: tuple[Path, list[dict[str, Any]]]) -> None:
    phone, desk = (found["images"] for found in shown[1])
    titles = [chart.title for chart in benchmark_plots.CHARTS]
    assert len(phone) == len(desk) == 6
    for image, title in zip(phone, [*titles, "What fills a node's memory"], strict=True):
        assert image["shown"]
        assert image["alt"].startswith(title)
        assert image["inside"] or 300 <= image["width"] <= PHONE


def test_it_says_what_an_operator_needs(shown: tuple[Path, list[dict[str, Any]]]) -> None:
    for found in shown[1]:
        text = " ".join(found["text"].split())
        for words in (
            "Benchmark of tp8-300k",
            "Max C 2 Serve at most 2 concurrent users within TTFT <= 1000 ms and TPS >= 20 tok/s (mean)",
            "benchmark-failures 8 at once: 6 of 78 requests failed: Internal Server Error (6)",
            "72 of 78",
            "213.2 / 213.2 (+0 %)",  # TTFT at 1 user, ours and the report's
            "13.46 / 13.63 (-1 %)",  # TPS at 8
            "what 50, 90, 99 % of the requests reach or better: for TPS these are low figures.",
            "Run 20261129T100000Z-00000000",
            "better",
            "61.0 %",  # drafts accepted
            "sha256:5e1d",
            "9f2c9f2c",
            "c96dbc7",
            MODEL,
        ):
            assert words in text, words


def test_it_needs_nothing_else(shown: tuple[Path, list[dict[str, Any]]]) -> None:
    text = shown[0].read_text()
    links = re.findall(r'(?:src|href)="([^"]{1,40})', text)
    assert links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text


class Open(HTMLParser):
    """Elements that are open."""

    VOID = {"meta", "img"}

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.held.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.held.pop() == tag


def test_it_is_well_formed_and_hides_no_markup() -> None:
    given = benchmark_runs.run(failed=1)
    given["cluster"] = "<b>&\"'"
    given["levels"][3]["errors"] = {"<script>alert(1)</script>": 3}
    given["deployment"] = given["deployment"] | {"image": "<i>y</i>"}
    given["findings"] = [f | {"message": "<i>x</i>"} for f in given["findings"]]
    text = report_page.page(given, None, {})
    parser = Open()
    parser.feed(text)
    assert parser.held == []
    assert "<i>" not in text
    assert "<b>" not in text
    assert "There is no earlier run of this profile." in text


def test_levels_and_profiles_the_report_does_not_have_are_said() -> None:
    given = benchmark_runs.run()
    given["profile"] = "mine"
    assert "The report has no table of mine." in report_page.page(given, None, {})
    given = benchmark_runs.run()
    given["levels"] = [given["levels"][0] | {"c": 3}]
    given["capacity"]["misses"] = {"3": []}
    assert "No level is one of the report's." in report_page.page(given, None, {})
    given["workload"] = given["workload"] | {"output_tokens": 64}
    assert "latencies do not compare" in report_page.page(given, None, {})


def test_it_prints(shown: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """A few pages of A4, not one that is cut off."""
    out = tmp_path / "page.pdf"
    run("--no-pdf-header-footer", f"--print-to-pdf={out}", f"file://{shown[0]}")
    pages = len(re.findall(rb"/Type\s*/Page\b", out.read_bytes()))
    assert 2 <= pages <= 8
