#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one runner of what is measured on a GPU: prepared binaries, a checkpoint made here, the chosen
# benches one after another within a time, and all they say under one folder.
#
#   tests/gpu/run.sh [--bin DIR] [--out DIR] [--seconds 570] [--model DIR]
#                    [--only colocate,cycles,failover,endings,ranks,node,engine,load,grant]
#                    [--shape qwen3-8b] [--trace FILE] [--colocate "WORDS"]
#
# --only      which, in this order; colocate alone if none is named
# --seconds   of all together: what is left when a bench begins is its limit, and berth bench colocate
#             leaves out the phases that would exceed it
# --model     a checkpoint's folder; made (random weights of the shape) if it is not there
# --trace     for berth bench colocate: FILE instead of the excerpt in tests/traces
# --colocate, --cycles, --failover, --node, --engine, --load, --grant
#             more words for that part, quoted as in a shell where a word has blanks:
#             --colocate "--busy 70 --engine-args '--max-batch 32' --phases online-alone,gate"
#             --cycles "--cycles 200 --seed 2", --failover "--kills 30 --engine-args=--batch-invariant",
#             --node "--only preempt,start --rounds 50", --engine "--parts bench"
#
# Takes on an H200, about: the checkpoint 22 s, colocate 345 s at its default, failover 420 s,
# endings 60 s, node 120 s, engine 250 s, load 200 s. Exit status: how many parts failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$here/build/release/bin out=/tmp/berth-gpu-results only=colocate seconds=570
model=/tmp/berth-model shape=qwen3-8b trace=$here/tests/traces/azure-llm-2023-conv-500.csv
parts=(colocate cycles failover endings ranks node engine load grant)
declare -A words=()
usage() {
    sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
    exit 2
}
refuse() {
    echo "run.sh: $*" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage
    case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --only) only=$2 ;;
    --seconds) seconds=$2 ;;
    --model) model=$2 ;;
    --shape) shape=$2 ;;
    --trace) trace=$2 ;;
    --colocate | --cycles | --failover | --node | --engine | --load | --grant) words[${1#--}]=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ -e "$trace" ] || refuse "--trace: there is no file '$trace'"
bin=$(cd "$bin" && pwd) || exit 2
mkdir -p "$out"
out=$(cd "$out" && pwd)
for name in ${only//,/ }; do
    [[ " ${parts[*]} " == *" $name "* ]] || refuse "--only: '$name' is none of ${parts[*]}"
done
# more NAME: its own words, one by one, into the array `more`; xargs knows quotes.
more() {
    more=()
    [ -n "${words[$1]:-}" ] || return 0
    printf '%s' "${words[$1]}" | xargs true 2>/dev/null ||
        refuse "--$1: a quote without its end in: ${words[$1]}"
    mapfile -d '' -t more < <(printf '%s' "${words[$1]}" | xargs printf '%s\0')
}
for name in "${!words[@]}"; do more "$name"; done

# libtorch of this machine's Python, where the binaries' own is not here.
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__) + "/lib")' 2>/dev/null)
[ -n "$torch" ] && export LD_LIBRARY_PATH=$torch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Everything that is started below carries this folder's name in its environment.
work=$(mktemp -d /tmp/berth-run.XXXX)
export TMPDIR=$work
end_what_is_left() {
    local pid
    for pid in $(grep -lsz "^TMPDIR=$work\$" /proc/[0-9]*/environ | cut -d / -f 3); do
        [ "$pid" = $$ ] || [ "$pid" = "$BASHPID" ] || kill -9 "$pid" 2>/dev/null
    done
    rm -rf "$work"
}
trap end_what_is_left EXIT

failed=0
left() { echo $((seconds - SECONDS)); }
# part NAME COMMAND...: within the time that is left.
part() {
    local name=$1 began=$SECONDS rc=0
    shift
    if [ "$(left)" -lt 20 ]; then
        echo "== $name: left out, $(left) s are left"
        failed=$((failed + 1))
        return
    fi
    echo "== $name, within $(left) s"
    timeout --kill-after 20 "$(left)" "$@" 2>&1 | tee "$out/$name.log" || rc=$?
    echo "== $name: exit status $rc after $((SECONDS - began)) s" | tee -a "$out/times.txt"
    [ "$rc" -eq 0 ] || failed=$((failed + 1))
}

{
    date -u
    nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv
    nproc
} 2>/dev/null | tee "$out/machine.txt"
case ,$only, in
*,colocate,* | *,cycles,* | *,failover,* | *,node,* | *,load,*)
    [ -e "$model/.complete" ] ||
        part checkpoint python3 "$here/configs/make_model.py" random "$model" --shape "$shape" --words
    sync # its write-back would be measured with whatever comes first
    ;;
esac
for name in ${only//,/ }; do
    more "$name"
    case $name in
    colocate)
        part colocate "$bin/berth" bench colocate --json --model "$model" --out "$out/colocate" \
            --trace "$trace" --time-limit $(($(left) - 20)) "${more[@]}"
        ;;
    cycles) # a check of up to 40 s and the end of the node come after the limit
        part cycles "$bin/berth" bench cycles --json --model "$model" --out "$out/cycles" \
            --time-limit $(($(left) - 60)) "${more[@]}"
        ;;
    failover)
        part failover python3 "$here/tests/gpu/failover.py" --model "$model" --bin "$bin" \
            --out "$out/failover" --seconds $(($(left) - 30)) "${more[@]}"
        ;;
    endings) part endings python3 "$here/tests/gpu/endings.py" --out "$out/endings.jsonl" ;;
    ranks) # two on one GPU through Gloo; where there are more GPUs, also one on each through NCCL
        [ -e "$model-ranks/.complete" ] ||
            part ranks-checkpoint python3 "$here/configs/make_model.py" random "$model-ranks" \
                --shape qwen3-0.6b --words
        gpus=$(nvidia-smi -L | wc -l)
        for devices in $(seq 1 $((gpus > 1 ? 2 : 1))); do
            part "ranks-$devices" python3 "$here/tests/gpu/ranks.py" --model "$model-ranks" \
                --bin "$bin" --devices "$devices" --out "$out/ranks-$devices.jsonl"
        done
        ;;
    node)
        part node "$here/tests/gpu/node.sh" --model "$model" --bin "$bin" --out "$out/node" \
            "${more[@]}"
        ;;
    engine) part engine "$here/tests/gpu/engine.sh" --bin "$bin" --out "$out/engine" "${more[@]}" ;;
    load)
        part load "$here/tests/gpu/load.sh" --model "$model" --bin "$bin" --out "$out/load" \
            "${more[@]}"
        ;;
    grant) part grant "$bin/berth" bench grant --json --device cuda "${more[@]}" ;;
    esac
done
echo "== all: $SECONDS s, $failed failed, results in $out"
exit "$failed"
