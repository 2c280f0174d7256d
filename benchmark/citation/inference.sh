#!/bin/sh
# Times the forward passes of all models on Cora, CiteSeer and PubMed, then profiles them. Arguments
# go to every call, as in run.sh. Traces are written to the current folder.
. "$(dirname "$0")/sweep.sh"

sweep --inference "$@"
sweep --inference --profile "$@"
finish
