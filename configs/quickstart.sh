#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 or Ubuntu 24.04 to a node that shares one set of weights between an online
# and a batch engine, and plays the main job: load once, attach twice, preempt, resume, survive the
# daemon's death.
#
#   configs/quickstart.sh                   build and play on this machine's GPU, or on host memory
#   configs/quickstart.sh --device host     cuda, host or auto (the default)
#   configs/quickstart.sh --keep            leave the node running afterwards
#   configs/quickstart.sh --model DIR       your own Hugging Face checkpoint instead of SmolLM2-135M
#   configs/quickstart.sh --no-build        use what is built and installed already
#
# Everything it makes lies under build/. It needs root or sudo only to install packages.
set -euo pipefail
# shellcheck source=setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

device=auto keep=no model= prepare=yes
while [ $# -gt 0 ]; do
    case $1 in
    --device)
        device=${2:?cuda, host or auto after --device}
        shift
        ;;
    --model)
        model=$(realpath "${2:?a folder after --model}")
        shift
        ;;
    --keep) keep=yes ;;
    --no-build) prepare=no ;;
    -h | --help)
        sed -n '3,15p' "$0" | sed 's/^# \{0,1\}//'
        exit 0
        ;;
    *) die "unknown option '$1'; see --help" ;;
    esac
    shift
done
case $device in
auto) if [ -e /dev/nvidia0 ]; then device=cuda; else device=host; fi ;;
cuda | host) ;;
*) die "--device $device: expected cuda, host or auto" ;;
esac

if [ $prepare = yes ]; then
    echo "1  Setting up"
    install_packages
    make_venv
    [ -n "$model" ] || make_model
    build release berthd berth berth-keeper berth-loader berth-engine berth-verify
fi
model=${model:-$berth_model}
bin=${BERTH_BIN_DIR:-$berth_build/release/bin}
[ -x "$bin/berthd" ] || die "$bin/berthd is not built: run without --no-build"

# The node: its sockets, records and policies in one folder.
node=$berth_build/quickstart
run=$node/run
export BERTH_ADMIN=$run/admin.sock
stop_node() {
    local pid
    for pid in $(pgrep -f -- "$node/node.yaml" || true); do kill "$pid" 2>/dev/null || true; done
    # Engines and keeper outlive the daemon on purpose; they are known by the socket they talk to.
    for pid in $(grep -lsz -- "BERTH_SOCKET=$run/" /proc/[0-9]*/environ | cut -d/ -f3) \
        $(pgrep -f -- "berth-keeper.*$run/" || true); do
        kill -9 "$pid" 2>/dev/null || true
    done
}
stop_node
rm -rf "$node"
mkdir -p "$run" "$node/policies"

if [ $device = host ]; then
    size=$(du -sm --apparent-size "$model" | cut -f1)
    devices="{host: [{name: host-0, memory: $((size * 2 + 2048))Mi}]}"
    memory=512Mi
else
    devices=auto
    memory=8Gi
fi
cat >"$node/node.yaml" <<YAML
apiVersion: berth/v1
kind: Node
metadata: {name: quickstart}
spec:
  socket: $run/berthd.sock
  stateDir: $node/state
  devices: $devices
  policies: [policies]
YAML
cat >"$node/policies/main.yaml" <<YAML
apiVersion: berth/v1
kind: Model
metadata: {name: model}
spec: {path: $model}
---
apiVersion: berth/v1
kind: Instance
metadata: {name: chat}
spec:
  model: model
  priorityClassName: online
  resources: {requests: {memory: 256Mi}, limits: {memory: $memory}}
  engine: {driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, model]}
---
apiVersion: berth/v1
kind: Instance
metadata: {name: nightly}
spec:
  model: model
  priorityClassName: batch
  resources: {requests: {memory: 0}, limits: {memory: $memory}}
  engine: {driver: berth, command: [berth-engine, --batch-input, $node/in.jsonl, --batch-output, $node/out.jsonl, --served-model-name, model]}
YAML
for number in $(seq 400); do
    printf '{"custom_id": "line-%d", "method": "POST", "url": "/v1/completions", "body": {"model": "model", "prompt": "Fact number %d: the", "max_tokens": 48, "temperature": 0}}\n' \
        "$number" "$number"
done >"$node/in.jsonl"

berth() { "$bin/berth" "$@"; }
field() { berth get instances "$1" -o json | python3 -c "import json,sys; print(json.load(sys.stdin)['$2'])"; }
milliseconds() { date +%s%3N; }
start_daemon() {
    "$bin/berthd" --config "$node/node.yaml" >>"$node/berthd.log" 2>&1 &
    daemon=$!
    disown
    for _ in $(seq 1000); do
        curl -fs --unix-socket "$BERTH_ADMIN" http://node/readyz >/dev/null 2>&1 && return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.01
    done
    tail -n 20 "$node/berthd.log" >&2
    die "berthd did not come up; its log is $node/berthd.log"
}
wait_running() {
    local shown=
    for _ in $(seq 1200); do
        shown=$(field "$1" state)
        [ "$shown" = Running ] && return 0
        [ "$shown" = Failed ] && break
        sleep 0.1
    done
    berth describe instance "$1" >&2 || true
    tail -n 20 "$node/state/engines/$1.log" >&2 || true
    die "instance $1 is $shown, not Running"
}
ask() {
    local started
    started=$(milliseconds)
    curl -fsS "$(field chat endpoint)/v1/chat/completions" -H 'Content-Type: application/json' -d \
        '{"model": "model", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24, "temperature": 0}' |
        python3 -c "import json,sys; print('   answer:', json.load(sys.stdin)['choices'][0]['message']['content'])"
    echo "   in $(($(milliseconds) - started)) ms"
}
finish() {
    local rc=$?
    if [ $rc -ne 0 ] || [ $keep = no ]; then stop_node; fi
    [ $rc -eq 0 ] || echo "The node's logs are in $node" >&2
}
trap finish EXIT

echo "2  Starting the node on $device, loading $(basename "$model") once"
start_daemon
# The engines of the policy make it load at once; this follows that load and shows its progress.
berth load model --wait
wait_running chat
wait_running nightly
berth status

echo "3  The online engine answers; batch yields to it through the gate page"
ask

for mode in Pause Offload Evict; do
    echo "4  Preempt batch by $mode, and resume it"
    berth preempt nightly --mode $mode --wait
    berth resume nightly --wait
done

echo "5  The daemon is killed; the engine goes on answering"
kill -9 "$daemon"
endpoint=$(python3 - "$node" <<'PY'
import pathlib, re, sys
log = (pathlib.Path(sys.argv[1]) / "state/engines/chat.log").read_text(errors="replace")
print(re.findall(r"http://127\.0\.0\.1:\d+", log)[-1])
PY
)
curl -fsS "$endpoint/v1/models" >/dev/null && echo "   still serving at $endpoint"
started=$(milliseconds)
start_daemon
echo "   a new daemon has everything back after $(($(milliseconds) - started)) ms:"
wait_running chat
wait_running nightly
berth get weights
ask
berth status
echo
if [ $keep = yes ]; then
    echo "The node goes on. Talk to it:"
    echo "   export BERTH_ADMIN=$BERTH_ADMIN PATH=$bin:\$PATH"
    echo "   berth status"
    echo "   curl $(field chat endpoint)/v1/models"
    echo "Stop it: pkill -f $node"
else
    echo "Done; the node has been stopped. Run with --keep to go on with it."
fi
