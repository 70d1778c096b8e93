#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up as the quick start does, builds, and runs every test.
#
#   tests/run.sh                 everything in the release build: ctest and pytest
#   tests/run.sh --sanitizers    the asan and tsan presets too (all but the engine), with fuzzing
#   tests/run.sh -R REGEX        only matching ctest cases, and no pytest
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
export BERTH_BIN_DIR=$berth_build/release/bin BERTH_TEST_DIR=$berth_build/release/tests
export BERTH_MODEL_DIR=$berth_model BERTH_SOURCE_DIR=$berth_root

echo "Testing"
ctest --test-dir "$berth_build/release" --output-on-failure -j 2 --no-tests=error "${filter[@]}"
if [ ${#filter[@]} -eq 0 ]; then
    "$berth_venv/bin/python" -m pytest -q -p no:cacheprovider "$berth_root/tests"
fi

if [ $sanitizers = yes ]; then
    for preset in asan tsan; do
        build $preset
        ctest --test-dir "$berth_build/$preset" --output-on-failure -j 2 --no-tests=error
    done
fi
echo "All tests passed."
