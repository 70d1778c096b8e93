#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node on this machine's GPU with a real model shape, and the benches of docs/benchmarks.md on it.
#
#   tests/gpu/node.sh --model DIR [--bin DIR] [--out DIR] [--grant 44Gi] [--rounds N]
#                     [--only attach,preempt,start,daemon,recover]   (or BERTH_NODE_BENCHES)
#                     [--compute Gate|MPS]   (or BERTH_COMPUTE)
#
# --only mps (with --compute MPS) stops the batch engine's process in the middle of its work and has
# it evicted: its work must be ended before it is killed, and online must answer on.
#
# DIR is a checkpoint, e.g. made by: configs/make_model.py random DIR --shape qwen3-8b
# Results (one JSON object per line) and logs go to --out.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$here/build/release/bin out=/tmp/berth-bench grant=44Gi rounds=20 model=
only=${BERTH_NODE_BENCHES:-attach,preempt,start,daemon,recover} compute=${BERTH_COMPUTE:-Gate}
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=$2 ;;
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --grant) grant=$2 ;;
    --rounds) rounds=$2 ;;
    --only) only=$2 ;;
    --compute) compute=$2 ;;
    *)
        sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
        exit 2
        ;;
    esac
    shift 2
done
[ -n "$model" ] || { echo "--model is missing" >&2; exit 2; }
node=$(mktemp -d /tmp/berth-gpu.XXXX)
mkdir -p "$out" "$node/run"
export BERTH_ADMIN=$node/run/admin.sock PATH=$bin:$PATH
cat >"$node/node.yaml" <<YAML
apiVersion: berth/v1
kind: Node
metadata: {name: gpu}
spec: {socket: $node/run/berthd.sock, stateDir: $node/state, devices: auto, policies: [policies.yaml]}
YAML
cat >"$node/policies.yaml" <<YAML
apiVersion: berth/v1
kind: Model
metadata: {name: model}
spec: {path: $model, pin: true}
---
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: bench}
spec:
  preemption: {reclaimDeadline: ${BERTH_DEADLINE:-20s}, gracePeriod: 200ms, kvOnOffload: ${BERTH_KV:-Auto}}
  resume: {after: {onlineIdle: 0s}}
  sharing: {compute: $compute, batchShareWhenBusy: "$([ "$compute" = MPS ] && echo 50% || echo 0%)"}
---
apiVersion: berth/v1
kind: Instance
metadata: {name: chat}
spec:
  model: model
  priorityClassName: online
  resources: {requests: {memory: 8Gi}, limits: {memory: 8Gi}}
  engine: {driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, model]}
---
apiVersion: berth/v1
kind: Instance
metadata: {name: nightly}
spec:
  model: model
  priorityClassName: batch
  resources: {requests: {memory: 0}, limits: {memory: $grant}}
  engine: {driver: berth, command: [berth-engine, --batch-input, $node/in.jsonl, --batch-output, $node/out.jsonl, --served-model-name, model]}
---
apiVersion: berth/v1
kind: Instance
metadata: {name: server}
spec:
  model: model
  priorityClassName: batch
  resources: {requests: {memory: 0}, limits: {memory: 8Gi}}
  engine: {driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, model]}
YAML
for number in $(seq 20000); do
    printf '{"custom_id": "l%d", "method": "POST", "url": "/v1/completions", "body": {"model": "model", "prompt": "line %d of many, and then", "max_tokens": 512, "temperature": 0}}\n' "$number" "$number"
done >"$node/in.jsonl"
finish() {
    cp "$node/berthd.log" "$node"/state/engines/*.log "$node"/state/*.log "$out/" 2>/dev/null
    pkill -f "$node/node.yaml"
    pkill -9 berth-engine
    pkill berth-keeper
    rm -rf "$node"
}
trap finish EXIT
berthd --config "$node/node.yaml" >"$node/berthd.log" 2>&1 &
for _ in $(seq 500); do
    curl -fs --unix-socket "$BERTH_ADMIN" http://node/readyz >/dev/null && break
    sleep 0.02
done
berth load model --wait
for name in chat nightly server; do
    for _ in $(seq 600); do
        berth get instances $name -o json | grep -q '"state": *"Running"' && break
        sleep 0.1
    done
done
berth status
berth describe instance chat
berth doctor
nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv
endpoint=$(berth get instances chat -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)["endpoint"])')
ask() {
    curl -fsS "$endpoint/v1/completions" -H 'Content-Type: application/json' -d \
        '{"model": "model", "prompt": "Hello", "max_tokens": 16, "temperature": 0}'
    echo
}
ask
if [ -e "$bin/libberth.so.1" ]; then
    python3 "$here/tests/gpu/check_cuda.py" offender "$bin/libberth.so.1" "$node/run/berthd.sock" model
    echo "offender: exit status $?"
    ask
fi
: >"$out/bench.jsonl"
bench() {
    case ,$only, in *,$1,*) berth bench "$@" --json | tee -a "$out/bench.jsonl" ;; esac
}
bench attach --model model --rounds 100
for mode in Pause Offload Evict; do
    bench preempt --instance nightly --mode $mode --rounds "$([ $mode = Evict ] && echo 5 || echo "$rounds")"
done
bench start --instance nightly --rounds 10
case ,$only, in
*,start,*)
    # A server's first token, with nobody beside it.
    berth preempt nightly --mode Pause
    bench start --instance server --rounds 20
    berth describe instance server
    grep -h 'phase=' "$node/state/engines/server.log" | tail -n 30
    berth doctor
    cat "$node/state/berth-zygote.log"
    berth resume nightly
    ;;
esac
field() { # of an instance
    berth get instances "$1" -o json | python3 -c "import json, sys; print(json.load(sys.stdin)['$2'])"
}
case ,$only, in
*,mps,*)
    for round in 1 2 3; do
        pid=$(field nightly pid)
        echo "mps $round: $(date +%T.%N)"
        kill -STOP "$pid" && ask &
        sleep 0.3
        echo "mps $round: stopped $pid of nightly, evict it"
        berth preempt nightly --mode Evict --grace-period 200ms --wait
        ask && echo "mps $round: chat (pid $(field chat pid)) answers"
        berth resume nightly --wait
        ask && echo "mps $round: chat (pid $(field chat pid)) answers with nightly back ($(field nightly state))"
    done
    berth doctor
    berth events | tail -n 40
    ;;
esac
bench daemon
bench recover --config "$node/node.yaml" --rounds 5
ask
berth status
berth get devices -o json | tail -n 60
