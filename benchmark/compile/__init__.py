"""The torch.compile study: GCN, GraphSAGE, GAT, GIN, R-GCN and DistMult in PyG and DGL."""
