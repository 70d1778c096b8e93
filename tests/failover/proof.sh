#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The failover proof at its full size, some twenty minutes on two cores:
#
#   kills      200 SIGKILLs of the active, its standby, berthd and keeper under 100 streaming clients
#   rollouts   20 rollouts under 10,000 requests of 20 clients; over a surge and over a standby,
#              half each
#
#   tests/failover/proof.sh [--parts kills,rollouts] [--kills 200] [--clients 100] [--seed 1]
#                           [--rollouts 20] [--requests 10000] [--out /tmp/berth-proof]
#
# Needs a release build (tests/run.sh, or configs/quickstart.sh) and no GPU. Exit status 0: nobody was
# refused, nothing failed, every byte was as undisturbed. OUT has what each part said, and on success
# its summary.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
parts=kills,rollouts kills=200 clients=100 seed=1 rollouts=20 requests=10000 out=/tmp/berth-proof
while [ $# -gt 0 ]; do
    case $1 in
    --parts) parts=${2:?kills, rollouts or both} ;;
    --kills) kills=${2:?a number} ;;
    --clients) clients=${2:?a number} ;;
    --seed) seed=${2:?a number} ;;
    --rollouts) rollouts=${2:?a number} ;;
    --requests) requests=${2:?a number} ;;
    --out) out=${2:?a folder} ;;
    *)
        sed -n '3,14p' "$0" | sed 's/^# \{0,1\}//'
        exit 2
        ;;
    esac
    shift 2
done
mkdir -p "$out"
export BERTH_SEED=$seed BERTH_BIN_DIR=${BERTH_BIN_DIR:-$here/build/release/bin}

# part NAME FILE: one test file, as far as it is asked for.
part() {
    case ,$parts, in
    *,"$1",*) ;;
    *) return 0 ;;
    esac
    "$here/build/venv/bin/pytest" -x -s -q -p no:cacheprovider "$here/tests/failover/$2" 2>&1 |
        tee "$out/$1.log"
}

rm -f "$out"/{kills,rollouts}.json
BERTH_KILLS=$kills BERTH_CLIENTS=$clients BERTH_PROOF_SUMMARY=$out/kills.json part kills test_proof.py
BERTH_ROLLOUTS=$((rollouts / 2)) BERTH_REQUESTS=$((requests / 2)) BERTH_CLIENTS=20 \
    BERTH_ROLLOUTS_SUMMARY=$out/rollouts.json part rollouts test_rollouts_proof.py
