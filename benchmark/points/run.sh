#!/bin/sh
# Trains all models on point clouds. Arguments go to every call:
#   ./run.sh --dataset ModelNet10 --root FOLDER --epochs 200    real data, as PyG's scripts train
#   ./run.sh --json points.jsonl                                generated clouds, a record for each
#   ./run.sh --inference --profile                              forward passes, and a trace of each

here=$(dirname "$0")
failures=""

for model in mpnn point_net edge_cnn spline_cnn point_cnn; do
    "${PYTHON:-python}" "$here/$model.py" "$@" || failures="$failures $model.py"
done

if [ -z "$failures" ]; then
    echo "All 5 scripts ended well."
    exit 0
fi
echo "Of 5 scripts these failed:$failures"
exit 1
