"""Node classification on citation graphs: one script per model over one training module."""
