"""From what an inventory says to the plan document: what the playbook and the command line have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gb10 import plan
from gb10.layout import Image
from gb10.model_config import Checkpoint
from gb10.names import unknown_variables
from gb10.nodes import PER_NODE
from gb10.settings import NAMES

# What is read of every host: what the plan is made from, and where images and weights come from.
SOURCES = ("images_source", "weights_source")
READ = (*PER_NODE, *NAMES, *SOURCES)
# Names that are ours beside the settings and the roles' own variables: a slip near one of them is refused.
OURS = (*READ, "profile", "plan_file", "facts_file", "cluster_name")
# What Ansible itself gives a host, and what a run of ours registers.
FOREIGN = ("ansible_", "gb10")


@dataclass(frozen=True)
class Inputs:
    """All a plan is made from.

    ``hosts``: every host of group gb10 with the variables the plan reads, as built-in types; ``names``: of every
    variable any of them has; ``images``: by name, ``None`` where the controller holds none;
    ``checkpoint``: the model, where it is not the built-in one; ``calibrated``: what this cluster measured.
    """

    profile: str
    hosts: Mapping[str, Mapping[str, Any]]
    names: frozenset[str]
    images: Mapping[str, Image] | None = None
    checkpoint: Checkpoint | None = None
    calibrated: Mapping[str, Any] | None = None


def document(
    inputs: Inputs,
    role_names: Iterable[str],
    prefixes: Iterable[str],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> plan.Document:
    """The plan document, with an error for every misspelt variable.

    ``role_names`` and ``prefixes`` as ``checkout.role_variables`` gives them; ``facts``: per node what ``gb10_facts``
    read there, whose memory is then used instead of the assumed one.
    """
    ids = None if inputs.images is None else {tag: image.config.digest for tag, image in inputs.images.items()}
    made = plan.build(inputs.profile, inputs.hosts, ids, facts, inputs.checkpoint, inputs.calibrated)
    given = [name for name in inputs.names if not name.startswith(FOREIGN)]
    slips = unknown_variables(given, [*OURS, *role_names], [*prefixes, "container_"])
    made["findings"] = [f.as_dict() for f in slips] + made["findings"]
    return made
