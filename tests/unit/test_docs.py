"""Documents: every finding code listed, generated pages up to date, and nothing named that is not there."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from support import ROOT

from gb10.nodes import PER_NODE

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def generator() -> ModuleType:
    """docs/generate.py, which is no package."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- finding codes: the list against the source ----------------------------------------------------------------------

# Which run says what a file finds. Files of a role say it in that role.
STAGES = {
    "plan": "sources layout plan nodes names environment settings memory_findings memory_input model_config planned"
    " gb10_plan gb10_profile checkout inventory files api_key",
    "images": "image_build patches gb10_image_build gb10_image",
    "preflight": "disks todo prepared probe rails netplan lossless firewall fabric_todo node_memory assess odd fabric"
    " expected images gb10_assess gb10_image_check anchors kept_key",
    "fabric": "gb10_reach gb10_netplan",
    "fabric_test": "fabric_test fabric_matrix gb10_fabric gb10_bandwidth",
    "all_reduce": "all_reduce gb10_all_reduce",
    "weights": "gb10_weights weights_files weights_stage weights_hub weights_todo weights_report gb10_weights_plan"
    " gb10_hub",
    "unprepare": "undo",
    "sparkrun": "sparkrun gb10_sparkrun",
    "serve": "lock deployments gb10_lock gb10_keep_logs gb10_engine_report engine_report",
    "recover": "recovery",
    "rollback": "gb10_rollback",
    "drift": "gb10_drift",
    "change_history": "gb10_history",
    "benchmark": "slo benchmark_settings benchmark_run benchmark_compare benchmark_container gb10_benchmark",
    "gb10 history": "stories",
    "gb10 images": "cli",
    "gb10 weights": "weights_cli weights_manifest",
}
# Said elsewhere than their file tells.
ELSEWHERE = {
    "prune-unknown": "preflight",
    "original-unkept": "prepare",
    "file-unwritten": "prepare",
    "facts-file-unwritable": "preflight",
    "facts-file-unusable": "gb10 plan",
    "checkout-missing": "gb10 plan",
}
STAGE_OF = {name: stage for stage, names in STAGES.items() for name in names.split()}
# Calls whose code is no literal because they pass on what another call gave: nothing new is said there.
PASSED_ON = {
    ("assess", "error", "code"),
    ("assess", "warning", "code"),
    ("assess", "self.error", "code"),
    ("assess", "self.warning", "code"),
    ("memory_findings", "make", "code"),
    ("memory_findings", "Finding", "f.code"),
    ("memory_findings", "warning", "texts[d.what][0]"),
    ("odd", "level", "trait.code"),
    ("odd", "warning", "trait.code.replace('odd-', 'unexpected-')"),
    ("findings", "Finding", "code"),
    ("report", "Finding", "**"),
    ("gb10_plan", "Finding", "**"),
    ("node", "Problem", "said['code']"),
    ("cli", "Finding", "**"),
    ("benchmark_text", "Finding", "**"),
    ("weights_cli", "error", "problem.code"),
}
# Said by the plan too, where it is given the nodes' facts.
WITH_FACTS = {"memory-not-available", "memory-reserve-low"}

Said = tuple[str, str]  # level, code


def literal(node: ast.expr | None) -> str:
    """The text of a constant, else empty."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def said_by_call(call: ast.Call) -> set[Said] | None:
    """What one call finds; None where its code cannot be read, an empty set where it is no finding."""
    callee, args = ast.unparse(call.func), call.args
    name = callee.rpartition(".")[2]
    if callee == "Trait":
        codes: set[Said] = set()
        fatal = any(k.arg == "fatal" for k in call.keywords)
        codes.add(("error" if fatal else "warning", literal(args[0])))
        if len(args) > 4:  # what is wanted is known: all nodes may differ from it
            codes.add(("warning", literal(args[0]).replace("odd-", "unexpected-")))
        return codes
    if callee == "_headroom_finding":
        return {(ast.unparse(args[2]), literal(args[3]))}
    if name == "curable":
        code, always = literal(args[1]), literal(args[0]) == "docker"  # that role puts it right on every node
        return {("warning", code)} | (set() if always else {("error", code)})
    if callee == "make" and isinstance(args[0], ast.JoinedStr):
        base = literal(args[0].values[0])
        return {("error", base), ("warning", f"{base}-engine")}
    if callee == "Problem":  # what stops a relay
        return {("error", literal(args[0]))} if literal(args[0]) else None
    if callee in ("error", "warning", "case.error", "case.warning", "self.error", "self.warning"):
        return {(name, literal(args[0]))} if literal(args[0]) else None
    if callee in ("level", "make"):  # error or warning, as a setting or an accounting decides
        return {("error", literal(args[0])), ("warning", literal(args[0]))} if literal(args[0]) else None
    return None if callee == "Finding" else set()


def code_argument(call: ast.Call) -> str:
    """The expression that stands for the code."""
    if not call.args:
        return "**"
    return ast.unparse(call.args[2 if ast.unparse(call.func) == "Finding" else 0])


def in_python(path: Path) -> Iterator[tuple[str, str]]:
    """(level, code) of every finding in a file; what cannot be read fails."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            said = said_by_call(node)
            if said is None:
                where = (path.stem, ast.unparse(node.func), code_argument(node))
                assert where in PASSED_ON, f"{path.name}:{node.lineno}: which code? {where}"
                said = set()
            yield from said
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "texts":
            assert isinstance(node.value, ast.Dict)
            for value in node.value.values:
                assert isinstance(value, ast.Tuple)
                yield "warning", literal(value.elts[0])
        elif literal(node if isinstance(node, ast.Constant) else None):
            yield from in_text(literal(node))  # type: ignore[arg-type]


def in_text(text: str) -> Iterator[Said]:
    """Codes written out: ``error [code] ...``."""
    for level, code in re.findall(r"\b(error|warning) \[([a-z0-9-]+)\] ", text):
        if code != "code":  # docstrings
            yield level, code


def found() -> dict[str, tuple[set[str], set[str]]]:
    """Every code of the source with its levels and who says it."""
    codes: dict[str, tuple[set[str], set[str]]] = {}
    places: list[tuple[str, Iterator[Said]]] = []
    for folder in ("src/gb10", "action_plugins", "library", "callback_plugins", "filter_plugins"):
        places += [(STAGE_OF.get(p.stem, p.stem), in_python(p)) for p in sorted((ROOT / folder).glob("*.py"))]
    places += [("gb10_relay", in_python(p)) for p in sorted((ROOT / "src/gb10/relay").glob("*.py"))]
    for path in [*sorted((ROOT / "roles").rglob("*.yml")), *sorted((ROOT / "playbooks").glob("*.yml"))]:
        where = path.relative_to(ROOT).parts
        places.append((where[1] if where[0] == "roles" else path.stem, in_text(path.read_text())))
    for place, said in places:
        for level, code in said:
            levels, by = codes.setdefault(code, (set(), set()))
            levels.add(level)
            by.add(ELSEWHERE.get(code, place))
            if code in WITH_FACTS:
                by.add("plan")
    return codes


def test_every_code_is_listed_with_its_levels_and_who_says_it() -> None:
    listed = yaml.safe_load((ROOT / "docs/findings.yml").read_text())
    codes = [finding["code"] for finding in listed]
    assert len(codes) == len(set(codes))
    assert {f["code"]: (set(f["levels"]), set(f["said_by"])) for f in listed} == found()


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    for finding in yaml.safe_load((ROOT / "docs/findings.yml").read_text()):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", finding["code"])
        assert finding["meaning"].endswith("."), finding["code"]
        assert finding["remedy"].endswith("."), finding["code"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('error("a-b", m, r)', {("error", "a-b")}),
        ('case.warning("a-b", m, r)', {("warning", "a-b")}),
        ('case.curable("storage", "a-b", m, r)', {("error", "a-b"), ("warning", "a-b")}),
        ('case.curable("docker", "a-b", m, r)', {("warning", "a-b")}),
        ('make(f"a-b{suffix}", m, r)', {("error", "a-b"), ("warning", "a-b-engine")}),
        ('Trait("odd-a", w, read, r, wanted)', {("warning", "odd-a"), ("warning", "unexpected-a")}),
        ('Trait("odd-a", w, read, r, fatal=True)', {("error", "odd-a")}),
        ('Problem("a-b", t)', {("error", "a-b")}),
        ("Problem(code, t)", None),
        ("error(code, m, r)", None),
        ("warning(name + suffix, m, r)", None),
        ("Finding(level, node, code, m, r)", None),
        ('print("a-b")', set()),
    ],
)
def test_the_scan_reads_calls(source: str, said: set[Said] | None) -> None:
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert said_by_call(call) == said


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", generator().PAGES, ids=lambda page: page.name)
def test_generated_page_is_up_to_date(page: Path) -> None:
    assert page.read_text() == next(render() for path, render in generator().PAGES.items() if path == page), (
        "run make docs"
    )


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code of one language; of "" what has none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [text for kind, text in fenced if kind == language]


def named(page: Path) -> list[str]:
    """Everything in backticks, without fenced code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


# The first folder of a path decides whether it is one of the repository's; a pattern or place-holder names no file.
OURS = "|".join(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name != "history")
# Written by a run, or by the operator.
MADE = {"inventory/known_hosts", "group_vars/gb10.yml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_are_there(page: Path) -> None:
    paths = re.findall(rf"(?<![\w/.-])((?:{OURS})/[\w./*<>-]*\w/?|site\.yml)", page.read_text())
    for path in paths:
        if "<" not in path and "*" not in path and path not in MADE:
            assert (ROOT / path).exists(), path
    for path in re.findall(r"\bplaybooks/\w+\.yml", page.read_text()):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_named_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    words = named(page) + blocks(page, "")
    said = [target for text in words for target in re.findall(r"^make ([a-z-]+)", text, re.M)]
    assert set(said) <= targets


def variables() -> set[str]:
    """Every variable of group_vars, of the roles and of hosts."""
    names = set(PER_NODE)
    for path in [*ROOT.glob("group_vars/**/*.yml"), *ROOT.glob("roles/*/defaults/main.yml")]:
        names |= set(yaml.safe_load(path.read_text()) or {})
    return names


# Names of docs/facts.md that carry a role's prefix: an option of the module, and a key.
NO_VARIABLES = {"docker_socket", "storage_driver"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_role_variables_named_are_there(page: Path) -> None:
    prefixes = tuple(f"{path.name}_" for path in (ROOT / "roles").iterdir())
    words = {word for text in named(page) for word in re.findall(r"(?<![\w./-])[a-z]\w+(?![\w/-]|\.\w)", text)}
    assert {word for word in words if word.startswith(prefixes)} - NO_VARIABLES <= variables()


# --- what operations.md tells to type --------------------------------------------------------------------------------


def test_the_manifest_line_writes_a_manifest(tmp_path: Path) -> None:
    (line,) = [text for text in blocks(ROOT / "docs/operations.md", "") if "gb10 weights manifest" in text]
    (tmp_path / "config.json").write_text("{}")
    command = [word.replace("DIRECTORY", str(tmp_path)) for word in line.splitlines()[0].partition("#")[0].split()]
    subprocess.run([Path(sys.executable).parent / command[0], *command[1:]], cwd=ROOT, check=True, timeout=60)
    held = json.loads((tmp_path / "manifest.json").read_text())
    assert [(entry["path"], entry["size"]) for entry in held["files"]] == [("config.json", 2)]
