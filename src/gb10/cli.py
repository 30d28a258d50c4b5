"""The command ``gb10``: what can be known of a cluster, without contacting it but for its weights. See docs/cli.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from gb10 import (
    benchmark_cli,
    checkout,
    compare,
    diff,
    files,
    history_cli,
    image_files,
    nodes_cli,
    oci_build,
    plan,
    planning,
    report,
    run_cli,
    weights_cli,
)
from gb10.findings import Finding, error, errors, line
from gb10.sources import SourceError

Document = dict[str, Any]

GOOD, REFUSED, USAGE = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell reports SIGINT and SIGPIPE

DESCRIPTION = "One DeepSeek-V4.1-Flash endpoint on NVIDIA DGX Spark nodes: planned before anything changes."

PLAN = """\
Makes the plan of a cluster from its inventory and group_vars and prints it: memory in both accountings, KV cache,
ranks, findings. Contacts no node, needs no root. What it says is what playbooks/plan.yml says; the JSON is the same
bytes."""

PLAN_MORE = """\
examples:
  gb10 plan --profile tp8-300k
  gb10 plan --profile tp8-300k -e max_model_len=200000 --format json
  gb10 plan --profile tp8-300k --compare tp8-1m
  gb10 plan -i racks/a.yml -i racks/b.yml --profile tp8-1m        two clusters, each planned on its own
  ansible-playbook playbooks/preflight.yml -e profile=tp8-300k -e facts_file=facts.json
  gb10 plan --profile tp8-300k --against facts.json               with the memory the nodes really have
  gb10 plan --profile tp8-1m --diff facts.json                    what a deploy would change

exit status: 0 without errors; 1 when a finding is an error (one line each on stderr); 2 when what was given cannot be
read."""


class Usage(Exception):
    """What was given cannot be used; the text says what and why in one line."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and where to read more, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{message.rstrip('.')}. See {self.prog} --help.")


@dataclass(frozen=True)
class Planned:
    """One inventory under one profile. No document where there is nothing to plan, which ``findings`` then say."""

    inventory: str
    profile: str
    document: Document | None
    findings: list[Finding]
    inputs: planning.Inputs | None


def parser() -> Parser:
    """The command line."""
    top = Parser(prog="gb10", description=DESCRIPTION, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"gb10 {version()}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    verb = verbs.add_parser(
        "plan",
        help="memory, KV cache, command lines and findings, before anything changes",
        description=PLAN,
        epilog=PLAN_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.set_defaults(run=plan_verb)
    what = verb.add_argument_group("what is planned")
    what.add_argument(
        "-i",
        "--inventory",
        action="append",
        metavar="INVENTORY",
        help="file or directory, as for ansible-playbook, but each given one is a cluster of its own "
        "(default: that of ansible.cfg)",
    )
    what.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="P",
        help="profile to plan; given twice, as --compare (default: the variable profile, as for the playbook)",
    )
    what.add_argument(
        "-e",
        "--extra-vars",
        action="append",
        default=[],
        metavar="VARS",
        help="overrides exactly as for ansible-playbook: KEY=VALUE, JSON or YAML in braces, @FILE",
    )
    what.add_argument(
        "--model-config",
        metavar="CONFIG.JSON",
        help="config.json of the checkpoint, instead of the built-in DeepSeek-V4.1-Flash",
    )
    what.add_argument(
        "--vault-password-file",
        action="append",
        default=[],
        metavar="FILE",
        help="for variables in an Ansible vault",
    )
    how = verb.add_argument_group("what is said")
    how.add_argument("--format", choices=("table", "json"), default="table", help="on stdout (default: table)")
    how.add_argument("-o", "--output", metavar="FILE", help="also write the JSON to FILE")
    how.add_argument("--plot", metavar="DIR", help="draw budget and KV capacity there, PNG and SVG")
    more = verb.add_argument_group("against something else (of one inventory, one of these)")
    one = more.add_mutually_exclusive_group()
    one.add_argument("--compare", metavar="Q", help="side by side with profile Q")
    one.add_argument("--diff", metavar="RUNNING", help="what a deploy changes: of a facts file, or of an earlier plan")
    more.add_argument("--against", metavar="FACTS", help="facts file whose nodes' memory is planned with")
    held = verbs.add_parser(
        "images",
        help="an image that exists comes into images_source",
        description="Puts an image into the OCI layout LAYOUT, made where it is not. See docs/images.md.",
        allow_abbrev=False,
    )
    held.set_defaults(run=images_verb)
    held.add_argument("layout", metavar="LAYOUT", help="directory of the layout")
    held.add_argument(
        "source", metavar="SOURCE", help="OCI layout, archive of docker save, or a name docker holds here"
    )
    held.add_argument("--name", default="", metavar="NAME", help="which image of SOURCE, where it holds several")
    nodes_cli.add(verbs)
    weights_cli.add(verbs)
    history_cli.add(verbs)
    run_cli.add(verbs)
    benchmark_cli.add(verbs)
    return top


def version() -> str:
    """Of the installed package."""
    try:
        return metadata.version("gb10-cluster")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def plan_verb(args: argparse.Namespace) -> int:
    """``gb10 plan``."""
    for option, value in vars(args).items():  # of a script whose variable is not set
        if option != "extra_vars" and (value == "" or (isinstance(value, list) and "" in value)):
            raise Usage(f"--{option.replace('_', '-')} is given but empty.")
    root = checkout.root()
    profiles = [*(args.profile or [""]), *([args.compare] if args.compare else [])]
    sources = args.inventory or default_inventories(root)
    check_usage(args, profiles, sources)
    earlier = files.read(args.diff) if args.diff else None
    facts = files.facts_of(args.against, files.read(args.against)) if args.against else None
    planned = read_plans(args, root, sources, profiles, facts)
    say_findings(planned, args, len(sources), len(profiles))
    made, text = answer(planned, args.diff, earlier, len(sources))
    if made is None:
        return REFUSED
    if args.output:
        files.write_plan(args.output, made)
    if args.plot:
        plot(args.plot, planned, facts)
    print(files.text(made) if args.format == "json" else text + "\n", end="")
    return REFUSED if any(errors(one.findings) for one in planned) else GOOD


def images_verb(args: argparse.Namespace) -> int:
    """``gb10 images``."""
    try:
        oci_build.start(Path(args.layout))
        image = oci_build.bring_base(args.source, args.name, Path(args.layout))
        image_files.image_files(args.layout, image, [])
        oci_build.put_names(Path(args.layout), [image])
    except (oci_build.BaseWrong, image_files.LayerWrong, OSError) as problem:
        raise SourceError(error("build-base", f"{problem}.", "See docs/images.md.")) from None
    print(f"{image.name}: manifest {image.manifest.digest}, configuration {image.config.digest}")
    return GOOD


def default_inventories(root: Path) -> list[str]:
    """Those of the checkout's ansible.cfg, unless the environment has another."""
    os.environ.setdefault("ANSIBLE_CONFIG", str(root / "ansible.cfg"))
    from ansible.constants import DEFAULT_HOST_LIST  # reads the configuration: not before it is known where it is

    return list(DEFAULT_HOST_LIST)


def check_usage(args: argparse.Namespace, profiles: Sequence[str], sources: Sequence[str]) -> None:
    """Refuses (Usage) what does not go together."""
    single = {"--compare": len(profiles) > 1, "--diff": args.diff, "--against": args.against, "--plot": args.plot}
    if len(sources) > 1 and any(single.values()):
        option = next(option for option, given in single.items() if given)
        raise Usage(f"{option} takes one inventory, not {len(sources)}.")
    if len(profiles) > 2:
        raise Usage(f"two profiles can be compared, not {len(profiles)}.")
    if len(profiles) > 1 and args.diff:
        raise Usage("--diff takes one profile.")


def say_findings(planned: Sequence[Planned], args: argparse.Namespace, sources: int, profiles: int) -> None:
    """Errors on stderr; warnings too, unless they stand in the table of a plan."""
    tabled = args.format == "table" and profiles == 1 and not args.diff
    for one in planned:
        where = f"{one.inventory}: " if sources > 1 else f"{one.profile}: " if profiles > 1 and one.profile else ""
        for finding in one.findings:
            if finding.level == "error" or not tabled:
                print(where + line(finding), file=sys.stderr)


def answer(planned: Sequence[Planned], running: str, earlier: Document | None, sources: int) -> tuple[object, str]:
    """What is asked for, for JSON and as text; ``None`` where there is nothing to say it of. Raises SourceError."""
    if sources > 1:
        text = report.clusters_text([(one.inventory, one.document, one.findings) for one in planned])
        return [{"inventory": one.inventory, "plan": one.document} for one in planned], text
    documents = [one.document for one in planned if one.document is not None]
    if len(documents) < len(planned):
        return None, ""
    if len(documents) > 1:
        lines, names = compare.lines(*documents), [document["profile"] for document in documents]
        return compare.as_dict(lines, *names), compare.text(lines, *names)
    if earlier is None or planned[0].inputs is None:
        return documents[0], report.plan_text(documents[0])
    if not documents[0]["ranks"]:
        return None, ""
    found = difference(documents[0], running, earlier, planned[0].inputs)
    return found.as_dict(), diff.text(found)


def read_plans(
    args: argparse.Namespace, root: Path, sources: Sequence[str], profiles: list[str], facts: Document | None
) -> list[Planned]:
    """Every inventory under every profile. Raises Usage and SourceError."""
    os.environ.setdefault("ANSIBLE_CONFIG", str(root / "ansible.cfg"))
    from gb10 import inventory  # imports Ansible, which reads its configuration

    planned = []
    try:
        given = list(args.extra_vars)
        if args.model_config is not None:
            given.append(json.dumps({"model_config": str(Path(args.model_config).absolute())}))
        reader = inventory.Reader(root, given, args.vault_password_file)
        override = reader.overrides.get("profile")
        if profiles[0] and override is not None and [str(override)] != profiles:
            raise Usage(f"--profile {profiles[0]} and -e profile={override} contradict each other: give one.")
        if "plan_file" in reader.overrides:
            raise Usage("-e plan_file is the playbook's: give -o FILE.")
        for source in sources:
            for profile in profiles:
                inputs, findings = reader.read(source, profile)
                document = None
                if inputs is not None:
                    if facts is not None:
                        files.require(args.against, facts, serving(inputs))
                    document = planning.document(inputs, *checkout.role_variables(root), facts=facts)
                    findings = [Finding(**f) for f in document["findings"]]
                planned.append(Planned(source, profile, document, findings, inputs))
    except inventory.BadInventory as bad:
        raise Usage(str(bad)) from None
    return planned


def serving(inputs: planning.Inputs) -> list[str]:
    """Names of the hosts that serve: those of serve_nodes, else all."""
    subset = next(iter(inputs.hosts.values())).get("serve_nodes")
    return [*subset] if isinstance(subset, dict) and subset else [*inputs.hosts]


def difference(document: Document, path: str, earlier: Document, inputs: planning.Inputs) -> diff.Difference:
    """The plan against RUNNING. Raises SourceError."""
    try:
        if "ranks" in earlier:
            files.ranks_of(path, earlier)
            return diff.against_plan(document, earlier)
        nodes = files.facts_of(path, earlier)
        files.require(path, nodes, [rank["node"] for rank in document["ranks"]])
        return diff.against_facts(document, nodes, inputs.hosts, inputs.images or {})
    except (AttributeError, KeyError, TypeError, ValueError):  # deep in it: another form than what writes it
        raise files.unusable(path, "something in it has not the form it should have") from None


def plot(directory: str, planned: Sequence[Planned], facts: Document | None) -> None:
    """Pictures of every plan whose memory could be planned. Raises Usage."""
    from gb10 import plots  # matplotlib takes a second to import

    inputs = {}
    for one in planned:
        memory = (
            plan.planned_memory(one.inputs.hosts, facts, one.inputs.checkpoint, one.inputs.calibrated)
            if one.inputs
            else None
        )
        if one.document and memory is not None:
            inputs[str(one.document["profile"])] = memory[0]
    if not inputs:
        raise Usage("--plot: there is no memory plan to draw.")
    try:
        for path in plots.write(inputs, Path(directory).expanduser()):
            print(path, file=sys.stderr)
    except OSError as problem:
        raise Usage(f"--plot {directory}: {problem.strerror or problem}.") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the command; the exit status."""
    try:
        args = parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = args.run
        status = run(args)
        print(end="", flush=True)
        return status
    except Usage as bad:
        print(f"gb10: {bad}", file=sys.stderr)
        return USAGE
    except SourceError as problem:
        print(line(problem.finding), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("gb10: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as problem:
        # Who read us has gone, or the disk is full: what is still buffered must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):
            return PIPE_CLOSED
        print(f"gb10: {problem.filename or 'standard output'}: {problem.strerror}.", file=sys.stderr)
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
