"""Graph classification: flat and hierarchical networks, their accuracy, time and memory."""
