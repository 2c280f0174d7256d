# Sourced by run.sh and inference.sh: every model on every citation graph and both kinds of split,
# with the settings of PyG's benchmark/citation/run.sh. GraphSAGE and GIN, which PyG does not run
# there, take the defaults of their scripts. SGC was published on features that are not normalised:
# on normalised ones its weight decay leaves the network untrained (42 % on CiteSeer instead of 71 %).

here=$(dirname "$0")
count=0
failures=""

settings() { # model dataset split -> the flags that differ from the script's defaults
    case "$1-$2-$3" in
    gat-PubMed-*) echo "--lr=0.01 --weight_decay=0.001 --output_heads=8" ;;
    cheb-Cora-* | cheb-CiteSeer-random) echo "--num_hops=3" ;;
    cheb-*) echo "--num_hops=2" ;;
    sgc-Cora-*) echo "--K=3 --weight_decay=0.0005 --no_normalize_features" ;;
    sgc-CiteSeer-*) echo "--K=2 --weight_decay=0.005 --no_normalize_features" ;;
    sgc-PubMed-*) echo "--K=2 --weight_decay=0.0005 --no_normalize_features" ;;
    arma-Cora-fixed) echo "--num_stacks=2 --num_layers=1 --shared_weights" ;;
    arma-Cora-random | arma-CiteSeer-*) echo "--num_stacks=3 --num_layers=1 --shared_weights" ;;
    arma-PubMed-fixed) echo "--num_stacks=2 --num_layers=1 --skip_dropout=0" ;;
    arma-PubMed-random) echo "--num_stacks=2 --num_layers=1 --skip_dropout=0.5" ;;
    appnp-*) echo "--alpha=0.1" ;;
    esac
}

dataset_name() { # dataset extra-arguments... -> the data set, or its stand-in where no data is named
    name=$1
    shift
    case " $* " in
    *" --root"* | *" --download"*) echo "$name" ;;
    *) echo "$name-like" | tr "[:upper:]" "[:lower:]" ;;
    esac
}

sweep() { # extra-arguments...
    for dataset in Cora CiteSeer PubMed; do
        for model in gcn sage gat gin cheb sgc arma appnp; do
            for split in fixed random; do
                flags="--dataset=$(dataset_name "$dataset" "$@") --runs=100"
                flags="$flags $(settings $model $dataset $split)"
                [ $split = random ] && flags="$flags --random_splits"
                count=$((count + 1))
                # The flags are words to be split; the user's come last and win.
                # shellcheck disable=SC2086
                "${PYTHON:-python}" "$here/$model.py" $flags "$@" ||
                    failures="$failures
  $model.py $flags $*"
            done
        done
    done
}

finish() {
    if [ -z "$failures" ]; then
        echo "All $count runs ended well."
        exit 0
    fi
    echo "Of $count runs these failed:$failures"
    exit 1
}
