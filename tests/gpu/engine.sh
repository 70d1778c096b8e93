#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine's fast path on this machine's GPU: first that it is right, then how fast it is.
#
#   tests/gpu/engine.sh [--bin DIR] [--out DIR] [--parts test,tokens,bench,fp8,small]
#
# DIR holds berth-engine, berth-engine-bench and fast_gpu_test. Results go to --out: one log a part,
# and engine.jsonl with all figures. Exit status: how many parts failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$here/build/release/bin out=/tmp/berth-engine parts=test,tokens,bench,fp8,small
while [ $# -gt 0 ]; do
    case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --parts) parts=$2 ;;
    *)
        sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
        exit 2
        ;;
    esac
    shift 2
done
mkdir -p "$out"
failed=0
part() {
    local name=$1 started=$SECONDS rc=0
    shift
    case ,$parts, in *,$name,*) ;; *) return ;; esac
    echo "== $name"
    "$@" 2>&1 | tee "$out/$name.log" || rc=$?
    echo "== $name: exit status $rc after $((SECONDS - started)) s"
    [ "$rc" -eq 0 ] || failed=$((failed + 1))
}
test_program=$bin/fast_gpu_test
[ -e "$test_program" ] || test_program=$bin/../tests/fast_gpu_test
part test timeout 90 "$test_program" --gtest_brief=1
part tokens timeout 130 python3 "$here/tests/gpu/check_cuda.py" tokens "$bin"
part bench timeout 200 "$bin/berth-engine-bench"
part fp8 timeout 80 "$bin/berth-engine-bench" --fp8 --only check,decode,prefill
part small timeout 40 "$bin/berth-engine-bench" --shape qwen2.5-0.5b --only check,decode
grep -h '^{' "$out"/{bench,fp8,small}.log >"$out/engine.jsonl" 2>/dev/null
exit "$failed"
