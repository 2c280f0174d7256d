#!/bin/sh
# A graph too large for full batches: GCN and GAT on products, neighbours sampled around batches of
# 1,024 nodes. The time to sample, to transfer and to compute is measured apart.
# Phases: 1 GCN; 2 GAT.
. "$(dirname "$0")/runner.sh"

read_flags "$@"
data=--datasets="$(dataset ogbn-products products-like)"
batches="--sampled --batch-size=1024 --num-neighbors=15,10,5"
for model in GCN GAT; do
    [ $model = GCN ] && number=1 || number=2
    # shellcheck disable=SC2086
    phase $number "$model" --frameworks=pyg,dgl --models=$model --variants=fixes $batches "$data"
done
finish
