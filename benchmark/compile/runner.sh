# Sourced by the run_*.sh scripts: their flags, and what calls the sweep.
#
#   --dry-run         list the cases, run nothing
#   --dynamic=WORDS   of auto, true, false, between commas (default: auto)
#   --resume          go on with an earlier run; an error if there is none in --out
#   --out=FOLDER      where the records go
#   --phase=NUMBERS   of those that the script has, between commas (default: all)
#   --root=FOLDER     real data; without it (or --download) generated stand-ins of their shape
# Every other flag goes to sweep.py: --timeout=600, --threads=1,all, --device=cuda, --smoke ...

here=$(dirname "$0")
out=out/compile
dynamic=auto
phases=""
real=""
failures=""

read_flags() { # the script's arguments; leaves what goes to sweep.py in $flags, quoted for eval
    flags=""
    while [ $# -gt 0 ]; do
        case "$1" in
        --dynamic=*) dynamic=${1#*=} ;;
        --out=*) out=${1#*=} ;;
        --phase=*) phases=",${1#*=}," ;;
        --dynamic | --out | --phase | --root)
            echo "$0: write $1=VALUE" >&2
            exit 2
            ;;
        -h | --help)
            sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"
            sed -n '3,9s/^# \{0,1\}//p' "$here/runner.sh"
            exit 0
            ;;
        *)
            case "$1" in --root=* | --download*) real=yes ;; esac
            flags="$flags '$(printf %s "$1" | sed "s/'/'\\\\''/g")'"
            ;;
        esac
        shift
    done
}

dataset() { # real-name stand-in -> the one that can be had
    if [ -n "$real" ]; then echo "$1"; else echo "$2"; fi
}

phase() { # number title flags-of-sweep.py...
    number=$1
    title=$2
    shift 2
    case "${phases:-,$number,}" in *",$number,"*) ;; *) return 0 ;; esac
    echo "Phase $number: $title"
    # The user's flags come last and win.
    eval "\"\${PYTHON:-python}\" \"\$here/sweep.py\" --out=\"\$out\" --dynamic=\"\$dynamic\" \"\$@\" $flags"
    code=$?
    [ $code -eq 130 ] && exit 130
    [ $code -eq 0 ] || failures="$failures $number"
    return 0
}

finish() {
    [ -z "$failures" ] && exit 0
    echo "These phases did not run:$failures" >&2
    exit 1
}
