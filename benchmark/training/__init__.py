"""Training of sampled mini-batches: the driver script."""
