"""What the loader, training, inference and multi-GPU benchmarks share: settings, cases, records."""
