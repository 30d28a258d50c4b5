"""Pure core of gb10-cluster: planning memory, judging nodes, driving ranks, keeping history. No I/O, no Ansible."""
