#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The failover proof at its full size: 200 SIGKILLs of the active, its standby, berthd and keeper
# under 100 streaming clients; some ten minutes on two cores. Needs a release build
# (tests/run.sh, or configs/quickstart.sh) and no GPU.
#
#   tests/failover/proof.sh [--kills 200] [--clients 100] [--seed 1] [--out /tmp/berth-proof]
#
# Exit status 0: nobody was refused, nothing failed, every byte was as undisturbed. OUT has what the
# run said and, on success, summary.json.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kills=200 clients=100 seed=1 out=/tmp/berth-proof
while [ $# -gt 0 ]; do
    case $1 in
    --kills) kills=${2:?a number} ;;
    --clients) clients=${2:?a number} ;;
    --seed) seed=${2:?a number} ;;
    --out) out=${2:?a folder} ;;
    *)
        sed -n '3,11p' "$0" | sed 's/^# \{0,1\}//'
        exit 2
        ;;
    esac
    shift 2
done
mkdir -p "$out"
export BERTH_KILLS=$kills BERTH_CLIENTS=$clients BERTH_SEED=$seed
export BERTH_PROOF_SUMMARY=$out/summary.json
export BERTH_BIN_DIR=${BERTH_BIN_DIR:-$here/build/release/bin}
rm -f "$BERTH_PROOF_SUMMARY"
"$here/build/venv/bin/pytest" -x -s -q -p no:cacheprovider "$here/tests/failover/test_proof.py" 2>&1 |
    tee "$out/proof.log"
