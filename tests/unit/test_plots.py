"""The pictures of the plan: valid files, the plan's own numbers in them, the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from gb10.memory import plan_memory
from gb10.memory_input import MemoryInput
from gb10.model_config import Plain
from gb10.plots import write

NCCL = {"nccl_max_nchannels": 8, "nccl_buffsize": 1048576}
TP8_300K = MemoryInput(8, 0.80, 300000, engram="memory", **NCCL)
TP8_1M = MemoryInput(8, 0.75, 1048576, engram="disk", flashinfer_autotune=True, **NCCL)
NO_ROOM = MemoryInput(4, 0.80, 300000, engram="memory", flashinfer_autotune=True, **NCCL)
LAB = MemoryInput(
    8,
    0.80,
    300000,
    node_memory_gib=24,
    weights_gib=0.01,
    kv_cache_memory_bytes=301989888,
    accelerator="cpu",
    model=Plain("lab", max_model_len=1048576, heads=8, layers=2, kv_heads=8, head_size=32, dtype_bytes=2),
)
INPUTS = {
    "tp8-300k": TP8_300K,
    "tp8-1m": TP8_1M,
    "no room": NO_ROOM,
    "too high": replace(TP8_300K, gpu_memory_utilization=1.0),
    "empty": replace(TP8_300K, gpu_memory_utilization=0.01),
    "lab": LAB,
    "short": replace(LAB, max_model_len=1, model=replace(LAB.model, max_model_len=1)),
    "a $pool$ & <b>": TP8_300K,
}
NAMES = ["memory-budget.svg", "memory-budget.png", "kv-capacity.svg", "kv-capacity.png"]


@pytest.fixture(scope="module", name="drawn")
def _drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One picture pair a profile, in a directory that did not exist; a warning is an error."""
    folders = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, i in INPUTS.items():
            folders[name] = tmp_path_factory.mktemp("plots") / "new" / "folder"
            assert [path.name for path in write({name: i}, folders[name])] == NAMES
    return folders


def texts(path: Path) -> list[str]:
    """Every piece of text of an SVG."""
    found = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()) for element in found]


@pytest.mark.parametrize("name", INPUTS)
def test_files_are_valid(drawn: dict[str, Path], name: str) -> None:
    assert sorted(path.name for path in drawn[name].iterdir()) == sorted(NAMES)
    for path in drawn[name].glob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 5, "an empty picture"
    for path in drawn[name].glob("*.svg"):
        assert any(name in text for text in texts(path)), path


@pytest.mark.parametrize("name", INPUTS)
def test_the_budget_has_the_numbers_of_the_plan(drawn: dict[str, Path], name: str) -> None:
    """Each figure as often as the plan has it, of both accountings together."""
    found = texts(drawn[name] / "memory-budget.svg")
    wanted: list[str] = []
    for a in plan_memory(INPUTS[name]).accountings:
        gib = [c.gib for c in (*a.components, *a.outside)] + [a.unexplained_gib, a.kv_gib]
        gib.append(a.total_gib - sum(value for value in gib if value > 0))  # what is left to the system
        wanted += [f"{value:.2f}" for value in gib if value >= 0.005]
        wanted.append(f"node {a.total_gib:.2f}")
        if not a.pinned_pool:
            wanted.append(f"budget {a.budget_gib:.2f} ")
        if a.serves:
            wanted += [f"KV cache {a.kv_gib:.2f} GiB, {a.tokens:,} tokens"]
            wanted += [f"{a.requests:.2f} requests of {a.max_model_len:,}"]
        else:
            wanted += [f"holds no request of {a.max_model_len:,}"]
        if a.headroom_gib < a.reserve_gib - 0.005:
            wanted.append(f"{a.reserve_gib - a.headroom_gib:.2f} GiB short of the reserve")
    for text in set(wanted):
        assert found.count(text) == wanted.count(text), text


def test_what_is_over_the_budget_is_said(drawn: dict[str, Path]) -> None:
    for a in plan_memory(NO_ROOM).accountings:
        over = a.used_gib + a.unexplained_gib - a.budget_gib
        assert over > 40
        assert f"{over:.2f} GiB over the budget, no KV cache" in texts(drawn["no room"] / "memory-budget.svg")


@pytest.mark.parametrize("name", INPUTS)
def test_the_capacity_has_the_planned_point_and_the_room(drawn: dict[str, Path], name: str) -> None:
    found = texts(drawn[name] / "kv-capacity.svg")
    for a in plan_memory(INPUTS[name]).accountings:
        floor, ceiling = a.gmu_floor(), a.gmu_ceiling
        assert f"planned: {a.requests:.2f} requests of {a.max_model_len:,}" in found
        assert f" max_num_seqs {a.max_num_seqs}" in found
        if a.pinned_pool:
            assert f"pool {a.kv_gib:.2f} GiB" in found
            assert not [text for text in found if "floor" in text or "ceiling" in text or "shaded" in text]
        elif floor > ceiling:
            assert f"no room: the plan needs GMU more than 1, the reserve allows {ceiling:g}" in found
            assert f"{floor:g} floor" not in found
        else:
            assert f"shaded: GMU {floor:g} to {ceiling:g} serves the plan and keeps the reserve" in found
            assert {f"{floor:g} floor", f"{ceiling:g} ceiling"} <= set(found)


def test_several_profiles_share_a_picture(tmp_path: Path) -> None:
    write({"one": TP8_300K, "two": TP8_1M}, tmp_path)
    for name in ("one", "two"):
        assert {f"{name}, reported", f"{name}, engine"} <= set(texts(tmp_path / "kv-capacity.svg"))


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also in another process, with another hash seed, time zone and matplotlibrc."""
    write({"tp8-300k": TP8_300K}, tmp_path / "here")
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nsvg.fonttype: path\nsavefig.dpi: 30\naxes.facecolor: red\n")
    code = (
        "from pathlib import Path; from gb10.memory_input import MemoryInput; from gb10.plots import write;"
        f"write({{'tp8-300k': MemoryInput(8, 0.80, 300000, **{NCCL!r})}}, Path('there'))"
    )
    env = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, timeout=120)
    for name in NAMES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no profile to draw"):
        write({}, tmp_path)


def test_matplotlib_is_imported_only_to_draw() -> None:
    """`gb10 plan` without plots does not pay for it."""
    code = "import sys, gb10.plots; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
