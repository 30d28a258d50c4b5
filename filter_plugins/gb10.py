"""Adapters from Jinja to the pure core; each is one call."""

from __future__ import annotations

from gb10 import answer, deploy, report, todo
from gb10.data import load


class FilterModule:
    """Filters of gb10-cluster."""

    def filters(self):
        return {
            "gb10_containers": deploy.containers,
            "gb10_data": load,
            "gb10_node_record": deploy.node_record,
            "gb10_docker_todo": todo.docker_todo,
            "gb10_endpoint_fault": answer.endpoint_fault,
            "gb10_restart_reasons": lambda plan, hosts, names, key: deploy.restart_reasons(
                plan, states(hosts, names, key)
            ),
            "gb10_status_table": lambda hosts, names, key: report.status_table(states(hosts, names, key), names),
        }


def states(hosts, names, key):
    """Per host what it registered under ``key`` as its rank; None where it could not be asked."""
    return {name: (hosts[name].get(key) or {}).get("rank") for name in names}
