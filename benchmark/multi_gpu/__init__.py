"""Data-parallel training over several processes: the driver script."""
