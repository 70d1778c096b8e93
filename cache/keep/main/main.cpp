// SPDX-License-Identifier: Apache-2.0
// berth-keeper: holds duplicates of descriptors, so that weights stay in device memory while berthd
// is away. It does nothing else, and changes as seldom as possible.
#include "base/log.h"
#include "base/unix_address.h"
#include "cache/keep/main/keeper_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

using namespace berth;

constexpr std::string_view kUsage =
    "usage: berth-keeper --socket PATH\n"
    "\n"
    "Holds the descriptors that berthd gives it, until SIGTERM. berthd starts it by itself.\n";

// What the keeper needs beside the descriptors that it holds: its peers, one message's worth of
// descriptors coming and one going, and its own few.
constexpr size_t kOwnDescriptors = 192;

Result<size_t> raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fail_errno("getrlimit(RLIMIT_NOFILE)");
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fail_errno("setrlimit(RLIMIT_NOFILE)");
    auto all = static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 20));
    return all - std::min(kOwnDescriptors, all / 2);
}

// One keeper a socket: whoever has the lock may replace a socket that a dead one left.
Result<UniqueFd> take_lock(const std::string& socket) {
    std::string path = socket + ".lock";
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd)
        return fail_errno(path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("{}: another keeper holds the lock; one serves a socket", path));
    return fd;
}

Result<UniqueFd> catch_signals() {
    ::signal(SIGHUP, SIG_IGN);
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigaddset(&set, SIGINT);
    if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0)
        return fail_errno("sigprocmask");
    UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
    if (!fd)
        return fail_errno("signalfd");
    return fd;
}

Status serve(const std::string& socket) {
    ::umask(0077);
    // Already a leader when berthd started it: then this fails, and nothing is lost.
    (void)!::setsid();
    BERTH_ASSIGN(size_t descriptors_max, raise_descriptor_limit());
    BERTH_ASSIGN(UniqueFd signals, catch_signals());
    BERTH_ASSIGN(UniqueFd lock, take_lock(socket));
    BERTH_ASSIGN(UniqueFd listener, listen_packets(socket, 0600));
    KeeperStore store(descriptors_max);
    log::info("listening socket={} descriptors_max={}", socket, descriptors_max);
    KeeperLoop loop(store, std::move(listener), std::move(signals));
    BERTH_ASSIGN(int number, loop.run());
    (void)remove_socket(socket);
    log::info("ending on SIG{}; held entries={} descriptors={}: {}", ::sigabbrev_np(number),
              store.entries(), store.descriptors(), store.summary());
    return {};
}

} // namespace

int main(int argc, char** argv) {
    std::string socket;
    for (int i = 1; i < argc; ++i) {
        std::string_view argument = argv[i];
        if (argument == "--help" || argument == "-h") {
            fmt::print("{}", kUsage);
            return 0;
        }
        if (argument != "--socket" || i + 1 == argc) {
            fmt::print(stderr, "berth-keeper: unexpected argument '{}'\n{}", argument, kUsage);
            return 2;
        }
        socket = argv[++i];
    }
    if (socket.empty()) {
        fmt::print(stderr, "berth-keeper: --socket is missing\n{}", kUsage);
        return 2;
    }
    if (auto started = berth::log::start("berth-keeper"); !started) {
        fmt::print(stderr, "berth-keeper: {}\n", started.error().message);
        return 2;
    }
    if (auto served = serve(socket); !served) {
        berth::log::error("{}", served.error().message);
        return 1;
    }
    return 0;
}
