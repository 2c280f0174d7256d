"""Classification of point clouds: PointCNN, PointNet++, EdgeCNN, MPNN and SplineCNN."""
