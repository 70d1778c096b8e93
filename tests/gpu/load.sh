#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times loads of one checkpoint onto a GPU: warm, cold, quantised, from an image, and beside safetensors
# and fastsafetensors. No node is needed.
#
#   tests/gpu/load.sh --model FOLDER [--bin FOLDER] [--out FOLDER] [--rounds N]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/release/bin out=. rounds=5 model=
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=${2:?a folder} ;;
    --bin) bin=${2:?a folder} ;;
    --out) out=${2:?a folder} ;;
    --rounds) rounds=${2:?a number} ;;
    *)
        sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
        exit 2
        ;;
    esac
    shift 2
done
[ -n "$model" ] || { echo "load.sh: --model is missing" >&2; exit 2; }

mkdir -p "$out"
for bench in load-warm quantise load-image load-cold; do
    echo "== $bench"
    "$bin/berth" bench "$bench" --checkpoint "$model" --device cuda --rounds "$rounds" --json |
        tee -a "$out/load.jsonl"
done
echo "== two ranks on one device"
"$bin/berth-loader" --model "$model" --device cuda --tp 2 --ranks all --verify | tee "$out/ranks.txt"
echo "== beside it"
python3 "$root/tests/gpu/load_beside.py" "$model" | tee -a "$out/beside.jsonl"
python3 "$root/tests/gpu/load_beside.py" "$model" --rounds 1 --cold | tee -a "$out/beside.jsonl"
