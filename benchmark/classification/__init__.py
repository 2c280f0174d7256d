"""What the classification of graphs and of point clouds share: training, and the log of cases."""
