# Two commands matter: `make demo` and `make test`. Both set up what they need (root on Debian or Ubuntu).
PROFILE ?= tp8-300k
NODES ?= 8
INVENTORY ?= .lab/inventory/hosts.yml
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
LAB := -i .lab/inventory/hosts.yml
VM := -i .lab/vm/inventory/hosts.yml
# With fewer nodes the tensor parallel degree follows, as visible overrides; each rank then holds more of the lab model's
# KV cache (eight times 301989888 bytes of group_vars/lab.yml, over the nodes).
FEWER := $(if $(filter-out 8,$(NODES)),-e tensor_parallel=$(NODES) -e '{"serve_nodes": {}}' \
	-e kv_cache_memory_bytes=$(shell expr 2415919104 / $(NODES)))

.PHONY: help setup demo demo-down demo-clean test test-sparkrun vm vm-pair unit lint plan bench-plan bench-converge bench-fanout bench-client bench-history check-nodes soak goldens docs

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

bench-plan: setup ## times of gb10 plan: 8 nodes, 512 nodes, against the start of Ansible alone
	python bench/plan.py

bench-converge: setup ## INVENTORY=: what a prepare with nothing to change costs: ssh round trips, time against a ping
	python bench/converge.py -i $(INVENTORY) --profile $(PROFILE)

bench-fanout: setup ## a source and seven receivers behind shaped links: ratios of one run; needs root and rsync
	python -m bench.fanout

bench-client: setup ## our benchmark's figures of the lab's endpoint against llmeter's, medians of one run; installs llmeter
	python -m bench.client

bench-history: setup ## what recording costs of a run, and how long verify takes over 10,000 runs
	python bench/history.py

soak: setup ## ROUNDS=: random kills on a lab that serves, one recover each (make demo first)
	python -m lab.soak --rounds $(or $(ROUNDS),20)

check-nodes: setup ## INVENTORY=: the state of the nodes against what is declared for them, lab or real
	pytest tests/nodes --hosts=ansible://gb10 --ansible-inventory=$(INVENTORY)

goldens: setup ## the plans in tests/golden made anew: read their diff before you commit it
	for p in tp8-300k tp8-1m tp4-300k; do \
		gb10 plan -i inventory/hosts.yml --profile $$p -o tests/golden/$$p.json >/dev/null || exit 1; done

test: setup ## everything: gates, unit tests, role scenarios and the cluster on the lab
	pytest --durations=15 tests/unit tests/gates tests/cluster --ignore=tests/cluster/test_e_sparkrun.py

test-sparkrun: setup ## what `make test` leaves out for its time: the ranks by the real sparkrun, on the lab
	pytest tests/cluster/test_e_sparkrun.py

vm: setup ## preparation and back on a virtual machine: real kernel, disks, limits, RDMA devices, boots
	molecule test -s vm

vm-pair: setup ## two virtual machines, prepared, and ib_write_bw between them: matrix and picture in .lab/vm-pair.*
	python -m lab vm up --nodes 2
	ansible-playbook $(VM) playbooks/prepare.yml -e profile=tp8-300k -e storage_format_allowed=true
	ansible-playbook $(VM) playbooks/fabric_test.yml -e fabric_test_file=.lab/vm-pair.json -e fabric_test_picture=.lab/vm-pair.png
	python -m lab vm down

unit: setup ## the tests that need no lab, in seconds
	pytest tests/unit

lint: setup ## ruff, mypy, yamllint, ansible-lint, collections
	pytest tests/gates

docs: setup ## roles.md and findings.md from their data
	python docs/generate.py
