"""Layer-wise, sampled and full-batch inference: the driver script."""
