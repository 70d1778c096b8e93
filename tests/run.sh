#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up as the quick start does, builds, and runs every test.
#
#   tests/run.sh                 everything in the release build, then each fuzz target for 60 s
#   tests/run.sh --sanitizers    in between the asan and tsan presets too (all but the engine)
#   tests/run.sh -R REGEX        only matching cases (as ctest -R), no fuzzing
set -euo pipefail
# shellcheck source=../configs/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../configs/setup.sh"

sanitizers=no
filter=()
while [ $# -gt 0 ]; do
    case $1 in
    --sanitizers) sanitizers=yes ;;
    -R)
        filter=(-R "${2:?a regular expression after -R}")
        shift
        ;;
    -h | --help)
        sed -n '3,8p' "$0" | sed 's/^# \{0,1\}//'
        exit 0
        ;;
    *) die "unknown option '$1'; see --help" ;;
    esac
    shift
done

echo "Setting up"
install_packages
make_venv
make_model
build release
export BERTH_MODEL_DIR=$berth_model BERTH_TEST_MODEL=$berth_model

# pytest runs what is Python under ctest too: whole nodes, the engine against transformers, the
# tokenizer against tokenizers.
echo "Testing"
ctest --test-dir "$berth_build/release" --output-on-failure -j 2 --no-tests=error "${filter[@]}"

# fuzz NAME: one target for fuzz_seconds. What it learns stays for the next run; an input that
# breaks it stays as NAME-crash-*, -oom-* or -timeout-*.
fuzz_seconds=60
fuzz_folder=$berth_build/asan/fuzz
fuzz() {
    mkdir -p "$fuzz_folder/$1"
    if "$berth_build/asan/tests/$1" -max_total_time=$fuzz_seconds -max_len=4096 -len_control=5 \
        -timeout=20 -artifact_prefix="$fuzz_folder/$1-" "$fuzz_folder/$1" \
        >"$fuzz_folder/$1.log" 2>&1; then
        echo "    $1: $(tail -n 1 "$fuzz_folder/$1.log")"
    else
        tail -n 40 "$fuzz_folder/$1.log"
        echo "    $1 failed: $fuzz_folder/$1.log"
        return 1
    fi
}

if [ $sanitizers = yes ]; then
    for preset in asan tsan; do
        build $preset
        ctest --test-dir "$berth_build/$preset" --output-on-failure -j 2 --no-tests=error -LE fuzz
    done
fi

if [ ${#filter[@]} -eq 0 ]; then
    build asan fuzz_targets
    targets=$(ctest --test-dir "$berth_build/asan" -N -L fuzz | sed -n 's/^ *Test *#[0-9]*: //p')
    [ -n "$targets" ] || die "no fuzz target in $berth_build/asan"
    echo "Fuzzing, $fuzz_seconds s each"
    export -f fuzz
    export berth_build fuzz_seconds fuzz_folder
    # shellcheck disable=SC2016 # the inner shell expands it
    echo "$targets" | xargs -P 2 -I{} bash -c 'fuzz "$1"' _ {}
fi
echo "All tests passed."
