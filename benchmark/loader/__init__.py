"""Throughput of neighbour sampling: the driver script."""
