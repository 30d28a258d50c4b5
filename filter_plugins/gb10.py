"""Adapters from Jinja to the pure core; each is one call."""

from __future__ import annotations

from functools import wraps

from ansible.errors import AnsibleFilterError

from gb10 import (
    checkout,
    checks,
    deploy,
    deployments,
    fabric_todo,
    images,
    lock,
    managed,
    memory_filters,
    prepared,
    probe,
    todo,
    undo,
)
from gb10.data import load
from gb10.findings import line


class FilterModule:
    """Filters of gb10-cluster."""

    def filters(self):
        return {
            "gb10_containers": deploy.containers,
            "gb10_data": load,
            "gb10_image_spread": images.spread,
            "gb10_node_record": deploy.node_record,
            "gb10_idle": managed.idle,
            "gb10_look": look,
            "gb10_probe_result": probe.probe_result,
            "gb10_serving": todo.serving,
            "gb10_storage_todo": storage_todo,
            "gb10_undo_todo": undo.undo_todo,
            "gb10_endpoint_of": deployments.endpoint,
            "gb10_image_of": deployments.image_of,
            "gb10_needs": deployments.needs,
            "gb10_lacking": lacking,
            "gb10_on_record": deployments.on_record,
            "gb10_wanted": deployments.wanted,
            "gb10_lock_node": lock.node,
            "gb10_checks": refusing(checks.wanted),
            "gb10_check_bodies": checks.bodies,
            "gb10_check_fault": checks.fault,
            "gb10_restart_reasons": lambda plan, hosts, names, key: deploy.restart_reasons(
                plan, states(hosts, names, key)
            ),
            "gb10_memory": refusing(memory_filters.memory),
            "gb10_kv_blocks": refusing(memory_filters.kv_blocks),
            "gb10_kv_tokens": refusing(memory_filters.kv_tokens),
            "gb10_gmu_floor": refusing(memory_filters.floor),
            "gb10_gmu_ceiling": refusing(memory_filters.ceiling),
            "gb10_nccl_memory": refusing(memory_filters.nccl_memory),
        }


def refusing(function):
    """The function with its ValueErrors as Ansible's: one line instead of a traceback."""

    @wraps(function)
    def adapter(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except ValueError as bad:
            raise AnsibleFilterError(str(bad)) from None

    return adapter


def states(hosts, names, key):
    """Per host what it registered under ``key`` as its rank; None where it could not be asked."""
    return {name: (hosts[name].get(key) or {}).get("rank") for name in names}


def lacking(deployment, hosts, names, key, reasons, key_act, check):
    """What stands against a deployment on the hosts, one line a finding."""
    said = {name: hosts[name].get(key) or {} for name in names}
    return [line(one) for one in deployments.lacking(deployment, said, bool(reasons), key_act, check)]


def look(host):
    """Options of gb10_facts: what must be read of a node to tell what it lacks."""
    found = prepared.look(checkout.node_variables(host, prepared.NAMES))
    variables = checkout.node_variables(host, (*fabric_todo.VARIABLES, "nccl_env_file"))
    paths = [*fabric_todo.fabric_paths(variables), str(variables["nccl_env_file"])]
    return found | {"files": sorted({*found["files"], *managed.with_parents(paths)})}


def storage_todo(facts, host):
    """What the storage role has left to do, once disks were formatted or mounted."""
    wanted, _bad = prepared.read_prepared(checkout.node_variables(host, prepared.NAMES))
    return todo.storage_todo(facts, wanted)
