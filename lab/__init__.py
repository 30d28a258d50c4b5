"""A lab of nodes on one machine: containers that stand in for the cluster's GB10 nodes."""
