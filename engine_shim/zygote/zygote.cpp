// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/zygote/zygote.h"

#include "base/number.h"
#include "base/packet_socket.h"
#include "base/process.h"
#include "engine_shim/zygote/checks.h"
#include "engine_shim/zygote/own_words.h"
#include "engine_shim/zygote/request.h"
#include "engine_shim/zygote/sibling.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char** environ;

namespace berth::zygote {

namespace {

constexpr int kExitFailed = 127;
constexpr size_t kRequestBytesMax = size_t{1} << 20;

Deadline soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(5);
}

void say(int socket, std::string_view words) {
    (void)send_packet(socket, words, {}, soon()); // who does not listen any more is gone
}

Status check_fit() {
    BERTH_TRY(check_single_task());
    return check_no_gpu_open();
}

// What main's environ and argv point to from now on. Never destroyed: what ends behind it (torch's
// statics, for one) still reads the environment.
struct Kept {
    std::vector<std::string> texts;
    std::vector<char*> pointers;
    char** keep(std::vector<std::string> given) {
        texts = std::move(given);
        pointers.clear();
        for (std::string& text : texts)
            pointers.push_back(text.data());
        pointers.push_back(nullptr);
        return pointers.data();
    }
};

Kept& kept_argv() {
    static Kept& kept = *new Kept; // NOLINT
    return kept;
}

Kept& kept_environment() {
    static Kept& kept = *new Kept; // NOLINT
    return kept;
}

Result<Request> read_request(const UniqueFd& memory) {
    struct stat about{};
    if (::fstat(memory.get(), &about) != 0)
        return fail_errno("the request's memory");
    if (about.st_size < 0 || static_cast<size_t>(about.st_size) > kRequestBytesMax)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("a request of {} bytes is over the limit", about.st_size));
    std::string bytes(static_cast<size_t>(about.st_size), '\0');
    if (::pread(memory.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        return fail_errno("reading the request");
    return decode(bytes);
}

// As a child that is about to exec does (base/process.cpp).
Status become(const Request& request, const OwnWords& words) {
    if (request.new_session)
        ::setsid();
    if (!request.working_directory.empty() && ::chdir(request.working_directory.c_str()) != 0)
        return fail_errno(request.working_directory);
    if (!request.log_path.empty()) {
        const UniqueFd log(
            ::open(request.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
        if (!log)
            return fail_errno(request.log_path);
        ::dup2(log.get(), 1);
        ::dup2(log.get(), 2);
    }
    for (const Limit& one : request.limits) {
        const rlimit limit{one.soft, one.hard};
        rlimit now{};
        const bool same = ::getrlimit(one.kind, &now) == 0 && now.rlim_cur == one.soft &&
                          now.rlim_max == one.hard;
        if (!same && ::setrlimit(one.kind, &limit) != 0)
            return fail_errno(fmt::format("setting resource limit {} to {} and {}", one.kind,
                                          one.soft, one.hard));
    }
    BERTH_TRY(words.show(request.argv, request.environment));
    const std::string& path = request.argv.front();
    (void)::prctl(PR_SET_NAME, path.c_str() + (path.find_last_of('/') + 1), 0, 0, 0);
    return {};
}

// Places what is inherited from number 3 up, for whatever is executed later too. All of them, and
// what else is needed still, are moved out of the way first.
Status inherit(std::vector<UniqueFd>& fds) {
    for (UniqueFd& fd : fds) {
        const int high = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 200);
        if (high < 0)
            return fail_errno("duplicating a descriptor to inherit");
        fd.reset(high);
    }
    for (size_t n = 2; n < fds.size(); ++n) {
        if (::dup2(fds[n].get(), kListenFdsStart + static_cast<int>(n) - 2) < 0)
            return fail_errno("placing a descriptor to inherit");
        fds[n].reset();
    }
    return {};
}

void write_own_pid(std::vector<std::string>& environment) {
    for (std::string& text : environment) {
        if (!text.starts_with(kListenPid))
            continue;
        char* const entry[] = {text.data(), nullptr};
        write_listen_pid(entry, ::getpid());
        text.resize(std::strlen(text.c_str()));
    }
}

// In the forked process. Returns when berthd lets it go.
Born be_born(std::vector<UniqueFd> fds, const OwnWords& words) {
    const Status placed = inherit(fds);
    const UniqueFd &answer = fds[0], &memory = fds[1];
    auto request = placed ? read_request(memory) : Result<Request>(fail(placed.error()));
    if (request)
        write_own_pid(request->environment);
    const Status became = request ? become(*request, words) : Status(fail(request.error()));
    if (!became) {
        say(answer.get(),
            encode(Answer{Answer::Kind::kFailed, ::getpid(), became.error().message}));
        ::_exit(kExitFailed);
    }
    say(answer.get(), encode(Answer{Answer::Kind::kBorn, ::getpid(), {}}));
    char word[8];
    ssize_t got = 0;
    do {
        got = ::read(answer.get(), word, sizeof word);
    } while (got < 0 && errno == EINTR);
    if (got <= 0)
        ::_exit(kExitFailed); // it was given up
    environ = kept_environment().keep(std::move(request->environment));
    const int argc = static_cast<int>(request->argv.size());
    return Born{argc, kept_argv().keep(std::move(request->argv))};
}

// Without what only makes room.
Status show_own(const OwnWords& words, char** argv) {
    const std::vector<std::string> arguments{argv[0], argv[1], argv[2], argv[3]};
    std::vector<std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry)
        if (!std::string_view(*entry).starts_with(kEnvironmentRoomName))
            environment.emplace_back(*entry);
    BERTH_TRY(words.show(arguments, environment));
    ::environ = kept_environment().keep(std::move(environment));
    return {};
}

Result<OwnWords> prepare(char** argv, const Preload& preload) {
    BERTH_ASSIGN(const OwnWords words, OwnWords::find(argv, environ));
    BERTH_TRY(check_fork_sibling());
    BERTH_TRY(preload(argv[3] == std::string_view("gpu")));
    BERTH_TRY(check_fit());
    // Standard input is nobody's.
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (null)
        ::dup2(null.get(), 0);
    (void)::prctl(PR_SET_NAME, "berth-zygote", 0, 0, 0);
    BERTH_TRY(show_own(words, argv));
    return words;
}

Result<Packet> next_request(int daemon) {
    for (;;) {
        pollfd waiting{daemon, POLLIN, 0};
        if (::poll(&waiting, 1, -1) < 0 && errno != EINTR)
            return fail_errno("poll");
        Packet packet;
        BERTH_ASSIGN(const bool received, receive_packet_nowait(daemon, packet));
        if (received && packet.fds.size() >= 2)
            return packet;
    }
}

} // namespace

bool is_asked_for(int argc, char** argv) {
    return argc == 5 && argv[1] == kFlag && number_in<int>(argv[2]).has_value();
}

std::optional<Born> serve(char** argv, const Preload& preload) {
    UniqueFd daemon(number_in<int>(argv[2]).value_or(kDaemonSocket));
    (void)::fcntl(daemon.get(), F_SETFD, FD_CLOEXEC);
    const auto words = prepare(argv, preload);
    if (!words) {
        say(daemon.get(), unfit(words.error().message));
        return std::nullopt;
    }
    say(daemon.get(), "ready");
    for (;;) {
        auto packet = next_request(daemon.get());
        if (!packet)
            return std::nullopt;
        const UniqueFd& answer = packet->fds[0];
        Result<int> pid = 0;
        if (const Status fit = check_fit(); !fit)
            pid = fail(fit.error());
        else
            pid = fork_sibling();
        if (!pid) {
            say(answer.get(), encode(Answer{Answer::Kind::kRefused, 0, pid.error().message}));
            continue;
        }
        if (*pid == 0) {
            daemon.reset();
            return be_born(std::move(packet->fds), *words);
        }
    }
}

} // namespace berth::zygote
