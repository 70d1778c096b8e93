#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up as the quick start does, builds, and runs every test.
#
#   tests/run.sh                 everything in the release build
#   tests/run.sh --sanitizers    the asan and tsan presets too (all but the engine), with fuzzing
#   tests/run.sh -R REGEX        only matching cases (as ctest -R)
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

if [ $sanitizers = yes ]; then
    for preset in asan tsan; do
        build $preset
        ctest --test-dir "$berth_build/$preset" --output-on-failure -j 2 --no-tests=error
    done
fi
echo "All tests passed."
