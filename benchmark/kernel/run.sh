#!/bin/sh
# Both scripts on graph classification with the sizes of PyG's benchmark/kernel: hours. Arguments go
# to every call:
#   ./run.sh --root FOLDER              real data (add --download to fetch what is missing)
#   ./run.sh --json kernel.jsonl        without --root and --download: generated stand-ins
#   ./run.sh --json kernel.jsonl --resume      goes on where an interruption has ended it
#   ./run.sh --smoke                    a few graphs and epochs

here=$(dirname "$0")
count=0
failures=""

case " $* " in
*" --root"* | *" --download"*) datasets="MUTAG PROTEINS IMDB-BINARY REDDIT-BINARY" ;;
*) datasets="mutag-like proteins-like" ;;
esac

run() { # script flags... -- extra-arguments...
    count=$((count + 1))
    "${PYTHON:-python}" "$here/$@" || failures="$failures
  $*"
}

# shellcheck disable=SC2086
run main_performance.py --datasets $datasets --epochs 100 --batch_size 128 "$@"
# shellcheck disable=SC2086
run main_performance.py --datasets $datasets --epochs 100 --batch_size 128 --inference "$@"
# shellcheck disable=SC2086
run main.py --datasets $datasets --layers 1 2 3 4 5 --hiddens 16 32 64 128 --folds 10 --epochs 100 --batch_size 128 "$@"

if [ -z "$failures" ]; then
    echo "All $count runs ended well."
    exit 0
fi
echo "Of $count runs these failed:$failures"
exit 1
