#!/bin/sh
# Trains all models on Cora, CiteSeer and PubMed. Arguments go to every call:
#   ./run.sh --root FOLDER --runs 10    real data (add --download to fetch what is missing)
#   ./run.sh --smoke                    without --root and --download: generated stand-ins
. "$(dirname "$0")/sweep.sh"

sweep "$@"
finish
