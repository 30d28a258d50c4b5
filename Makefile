# Two commands matter: `make demo` and `make test`. Both set up what they need (root on Debian or Ubuntu).
PROFILE ?= tp8-300k
NODES ?= 8
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
LAB := -i .lab/inventory/hosts.yml
# With fewer nodes the tensor parallel degree follows, as visible overrides; each rank then holds more of the lab model's
# KV cache (eight times 301989888 bytes of group_vars/lab.yml, over the nodes).
FEWER := $(if $(filter-out 8,$(NODES)),-e tensor_parallel=$(NODES) -e '{"serve_nodes": {}}' \
	-e kv_cache_memory_bytes=$(shell expr 2415919104 / $(NODES)))

.PHONY: help setup demo demo-down demo-clean test unit lint plan goldens docs

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: .venv/stamp ## the controller's environment in .venv
.venv/stamp: requirements.txt pyproject.toml lab/setup.sh
	PYTHON=$(PYTHON) lab/setup.sh
	@touch $@

demo: setup ## PROFILE= NODES=: a lab of eight nodes, the main job, the model's answer
	@echo "What $(PROFILE) needs on real nodes (no node is contacted):"
	ansible-playbook -i inventory/hosts.yml playbooks/plan.yml -e profile=$(PROFILE)
	python -m lab up --nodes $(NODES)
	ansible-playbook $(LAB) site.yml -e profile=$(PROFILE) $(FEWER)
	@python -m lab ask

demo-down: setup ## every node, network and daemon of the lab removed; the cache stays
	python -m lab down

demo-clean: setup ## demo-down, and the cache
	python -m lab clean

plan: setup ## PROFILE=: what would run, with numbers; contacts no node
	ansible-playbook playbooks/plan.yml -e profile=$(PROFILE)

goldens: setup ## the plans in tests/golden made anew: read their diff before you commit it
	for p in tp8-300k tp8-1m tp4-300k; do \
		ansible-playbook playbooks/plan.yml -e profile=$$p -e plan_file=tests/golden/$$p.json >/dev/null || exit 1; done

test: setup ## everything: gates, unit tests, role scenarios and the cluster on the lab
	pytest --durations=15 tests/unit tests/gates tests/cluster

unit: setup ## the tests that need no lab, in seconds
	pytest tests/unit

lint: setup ## ruff, mypy, yamllint, ansible-lint, collections
	pytest tests/gates

docs: setup ## roles.md and findings.md from their data
	python docs/generate.py
