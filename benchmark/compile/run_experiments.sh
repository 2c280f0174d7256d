#!/bin/sh
# The study: PyG and DGL, every mode, with self-loops and normalisation computed once at load.
# Phases: 1 Cora, GCN and GAT; 2 PubMed, GCN and GAT; 3 arxiv, all four models; 4 collab, all four;
# 5 mag with R-GCN and biokg with DistMult.
. "$(dirname "$0")/runner.sh"

read_flags "$@"
both=--frameworks=pyg,dgl
four=--models=GCN,GraphSAGE,GAT,GIN
variant=--variants=fixes
phase 1 "Cora" $both --models=GCN,GAT $variant --datasets="$(dataset Cora cora-like)"
phase 2 "PubMed" $both --models=GCN,GAT $variant --datasets="$(dataset PubMed pubmed-like)"
phase 3 "arxiv" $both $four $variant --datasets="$(dataset ogbn-arxiv arxiv-like)"
phase 4 "collab" $both $four $variant --datasets="$(dataset ogbl-collab collab-like)"
phase 5 "mag" $both --models=RGCN $variant --datasets="$(dataset ogbn-mag mag-like)"
phase 5 "biokg" $both --models=DistMult $variant --datasets="$(dataset ogbl-biokg biokg-like)"
finish
