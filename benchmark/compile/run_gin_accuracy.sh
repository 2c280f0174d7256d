#!/bin/sh
# Does compiling change what a long training reaches? GIN on arxiv, trained in every mode.
# Phases: 1 for 20 epochs; 2 for 300 epochs.
. "$(dirname "$0")/runner.sh"

read_flags "$@"
data=--datasets="$(dataset ogbn-arxiv arxiv-like)"
phase 1 "GIN, 20 epochs" --models=GIN --variants=fixes --epochs=20 "$data"
phase 2 "GIN, 300 epochs" --models=GIN --variants=fixes --epochs=300 --timeout=36000 "$data"
finish
