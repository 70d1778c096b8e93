// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace berth {

namespace {

constexpr size_t kListenPidDigits = 10;
constexpr uint64_t kExiting = 0x4; // PF_EXITING of the kernel's task flags

struct ProcessStat {
    char state = ' ';
    uint64_t flags = 0;
    uint64_t start_ticks = 0;
    bool has_ended() const { return state == 'Z' || state == 'X'; }
};

// proc_pid_stat(5).
Result<ProcessStat> process_stat(int pid) {
    BERTH_ASSIGN(const std::string text, read_file(fmt::format("/proc/{}/stat", pid)));
    // The command's name may hold spaces and brackets: fields are counted from the last bracket.
    const size_t bracket = text.rfind(')');
    if (bracket == std::string::npos || bracket + 2 >= text.size())
        return fail(ErrorCode::kCorrupt, fmt::format("/proc/{}/stat has no fields", pid));
    std::string_view rest = std::string_view(text).substr(bracket + 2);
    ProcessStat stat;
    stat.state = rest.front();
    for (int field = 3; field < 22; ++field) {
        if (field == 9)
            std::from_chars(rest.data(), rest.data() + rest.size(), stat.flags);
        const size_t space = rest.find(' ');
        if (space == std::string_view::npos)
            return fail(ErrorCode::kCorrupt, fmt::format("/proc/{}/stat is too short", pid));
        rest.remove_prefix(space + 1);
    }
    std::from_chars(rest.data(), rest.data() + rest.size(), stat.start_ticks);
    return stat;
}

Result<UniqueFd> open_pidfd(int pid) {
    auto fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0)
        return fail_errno(fmt::format("pidfd of process {}", pid));
    return UniqueFd(fd);
}

// What the child does between fork and exec: system calls only, nothing that allocates.
struct ChildPlan {
    const char* path = nullptr;
    char* const* argv = nullptr;
    char* const* envp = nullptr;
    const char* directory = nullptr;
    int log_fd = -1;
    bool new_session = true;
    int parent = 0; // not 0: ends with it
    const std::pair<int, int>* fds = nullptr;
    size_t fd_count = 0;
    int error_fd = -1;
};

[[noreturn]] void run_child(const ChildPlan& plan) {
    auto give_up = [&] {
        int error_number = errno;
        (void)!::write(plan.error_fd, &error_number, sizeof error_number);
        ::_exit(127);
    };
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    if (plan.parent != 0) {
        if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
            give_up();
        // The parent may have ended before that.
        if (::getppid() != plan.parent)
            ::_exit(127);
    }
    if (plan.new_session)
        ::setsid();
    if (plan.directory != nullptr && ::chdir(plan.directory) != 0)
        give_up();
    int null_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd >= 0)
        ::dup2(null_fd, 0);
    if (plan.log_fd >= 0) {
        ::dup2(plan.log_fd, 1);
        ::dup2(plan.log_fd, 2);
    }
    for (size_t i = 0; i < plan.fd_count; ++i) {
        auto [here, there] = plan.fds[i];
        // dup2 onto itself keeps close-on-exec, so that case is cleared by hand.
        if (here == there ? ::fcntl(here, F_SETFD, 0) != 0 : ::dup2(here, there) < 0)
            give_up();
    }
    write_listen_pid(plan.envp, ::getpid());
    ::execve(plan.path, plan.argv, plan.envp);
    give_up();
    ::_exit(127);
}

Result<std::string> find_program(const std::string& name) {
    if (name.find('/') != std::string::npos)
        return name;
    const char* path = std::getenv("PATH");
    std::string_view folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
    while (!folders.empty()) {
        size_t end = folders.find(':');
        std::string candidate = fmt::format("{}/{}", folders.substr(0, end), name);
        if (::access(candidate.c_str(), X_OK) == 0)
            return candidate;
        folders = end == std::string_view::npos ? std::string_view{} : folders.substr(end + 1);
    }
    return fail(ErrorCode::kNotFound, fmt::format("program '{}' is not in PATH", name));
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    out.reserve(texts.size() + 1);
    for (std::string& text : texts)
        out.push_back(text.data());
    out.push_back(nullptr);
    return out;
}

} // namespace

Result<ProcessId> process_id(int pid) {
    BERTH_ASSIGN(const ProcessStat stat, process_stat(pid));
    if (stat.has_ended())
        return fail(ErrorCode::kNotFound, fmt::format("process {} has ended", pid));
    return ProcessId{pid, stat.start_ticks};
}

bool is_ending(const ProcessId& process) {
    const auto stat = process_stat(process.pid);
    return !stat || stat->start_ticks != process.start_ticks || stat->has_ended() ||
           (stat->flags & kExiting) != 0;
}

bool is_alive(const ProcessId& process) {
    auto now = process_id(process.pid);
    return now && *now == process;
}

std::vector<std::string> environment_of(const SpawnOptions& options) {
    std::map<std::string, std::string> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        std::string_view text = *entry;
        size_t equals = text.find('=');
        if (equals != std::string_view::npos)
            environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    for (const auto& [name, text] : options.environment)
        environment[name] = text;
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"})
        environment.erase(name); // this process's own
    if (!options.listen_fds.empty()) {
        std::string names;
        for (const auto& [name, fd] : options.listen_fds)
            names += (names.empty() ? "" : ":") + name;
        environment["LISTEN_FDS"] = std::to_string(options.listen_fds.size());
        environment["LISTEN_FDNAMES"] = names;
        environment["LISTEN_PID"] = std::string(kListenPidDigits, ' ');
    }
    std::vector<std::string> texts;
    texts.reserve(environment.size());
    for (const auto& [name, text] : environment)
        texts.push_back(fmt::format("{}={}", name, text));
    return texts;
}

void write_listen_pid(char* const* environment, int pid) {
    const size_t prefix = std::strlen(kListenPid);
    for (char* const* entry = environment; *entry != nullptr; ++entry) {
        if (std::strncmp(*entry, kListenPid, prefix) != 0)
            continue;
        char digits[kListenPidDigits];
        size_t count = 0;
        for (int left = pid; left > 0 && count < sizeof digits; left /= 10)
            digits[count++] = static_cast<char>('0' + left % 10);
        char* text = *entry + prefix;
        if (std::strlen(text) < count)
            return;
        for (size_t n = 0; n < count; ++n)
            text[n] = digits[count - 1 - n];
        text[count] = '\0';
        return;
    }
}

Result<Process> Process::spawn(const SpawnOptions& options) {
    if (options.command.empty())
        return fail(ErrorCode::kInvalidArgument, "the command to start is empty");
    BERTH_ASSIGN(std::string path, find_program(options.command.front()));

    std::vector<std::string> argv_texts = options.command;
    std::vector<std::string> envp_texts = environment_of(options);
    std::vector<char*> argv = pointers(argv_texts);
    std::vector<char*> envp = pointers(envp_texts);

    UniqueFd log_fd;
    if (!options.log_path.empty()) {
        log_fd.reset(
            ::open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
        if (!log_fd)
            return fail_errno(options.log_path);
    }
    // Descriptors to inherit are first moved above every target number, so that none is overwritten
    // before its turn.
    std::vector<UniqueFd> moved;
    std::vector<std::pair<int, int>> fds;
    std::vector<std::pair<int, int>> inherited = options.inherit_fds;
    for (const auto& [name, here] : options.listen_fds)
        inherited.emplace_back(here, kListenFdsStart + static_cast<int>(inherited.size()));
    for (auto [here, there] : inherited) {
        int high = ::fcntl(here, F_DUPFD_CLOEXEC, 200);
        if (high < 0)
            return fail_errno("duplicating a descriptor to inherit");
        moved.emplace_back(high);
        fds.emplace_back(high, there);
    }
    int pipe_fds[2] = {-1, -1};
    if (::pipe2(pipe_fds, O_CLOEXEC) != 0)
        return fail_errno("pipe2");
    UniqueFd error_read(pipe_fds[0]);
    int high_error = ::fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, 200);
    UniqueFd error_write(pipe_fds[1]);
    UniqueFd error_high(high_error);

    ChildPlan plan;
    plan.path = path.c_str();
    plan.argv = argv.data();
    plan.envp = envp.data();
    plan.directory =
        options.working_directory.empty() ? nullptr : options.working_directory.c_str();
    plan.log_fd = log_fd.get();
    plan.new_session = options.new_session;
    plan.parent = options.ends_with_parent ? ::getpid() : 0;
    plan.fds = fds.data();
    plan.fd_count = fds.size();
    plan.error_fd = error_high.get();

    int pid = ::fork();
    if (pid < 0)
        return fail_errno("fork");
    if (pid == 0)
        run_child(plan);
    error_write.reset();
    error_high.reset();
    int child_error = 0;
    ssize_t got = 0;
    do {
        got = ::read(error_read.get(), &child_error, sizeof child_error);
    } while (got < 0 && errno == EINTR);
    if (got == static_cast<ssize_t>(sizeof child_error)) {
        ::waitpid(pid, nullptr, 0);
        return fail_errno(fmt::format("starting {}", path), child_error);
    }
    return take_child(pid);
}

Result<Process> Process::adopt(const ProcessId& id) {
    Process process;
    BERTH_ASSIGN(process.pidfd_, open_pidfd(id.pid));
    BERTH_ASSIGN(ProcessId now, process_id(id.pid));
    if (now != id)
        return fail(ErrorCode::kNotFound,
                    fmt::format("process {} has ended; its pid is another's now", id.pid));
    process.id_ = id;
    return process;
}

Result<Process> Process::take_child(int pid) {
    siginfo_t info{};
    if (pid <= 0 ||
        ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) != 0)
        return fail(ErrorCode::kNotFound, fmt::format("process {} is no child of this one", pid));
    Process process;
    BERTH_ASSIGN(process.pidfd_, open_pidfd(pid));
    process.is_child_ = true;
    process.id_ = ProcessId{pid, 0};
    if (auto id = process_id(pid))
        process.id_ = *id;
    return process;
}

Status Process::signal(int number) const {
    if (::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0) != 0)
        return fail_errno(fmt::format("signalling process {}", id_.pid));
    return {};
}

Status Process::signal_group(int number) const {
    // The group's id stays taken while any member lives, but after that it may be somebody else's:
    // only a group whose leader is still ours is signalled.
    if (::syscall(SYS_pidfd_send_signal, pidfd_.get(), 0, nullptr, 0) != 0)
        return fail_errno(fmt::format("signalling process {}", id_.pid));
    if (::getpgid(id_.pid) != id_.pid)
        return signal(number);
    if (::kill(-id_.pid, number) != 0)
        return fail_errno(fmt::format("signalling process group {}", id_.pid));
    return {};
}

std::optional<int> Process::try_wait() {
    pollfd waiting{pidfd_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 0) != 1)
        return std::nullopt;
    if (!is_child_)
        return 0;
    int status = 0;
    pid_t reaped = ::waitpid(id_.pid, &status, WNOHANG);
    if (reaped == 0)
        return std::nullopt;
    is_child_ = false;
    return reaped == id_.pid ? status : kUnknownWaitStatus;
}

std::string describe_exit(int wait_status) {
    if (wait_status == kUnknownWaitStatus)
        return "ended, it is not known how";
    if (WIFSIGNALED(wait_status)) {
        const char* name = ::sigabbrev_np(WTERMSIG(wait_status));
        return name != nullptr ? fmt::format("killed by SIG{}", name)
                               : fmt::format("killed by signal {}", WTERMSIG(wait_status));
    }
    return fmt::format("exit code {}", WEXITSTATUS(wait_status));
}

std::string program_directory() {
    std::error_code error;
    auto path = std::filesystem::read_symlink("/proc/self/exe", error);
    return error ? std::string(".") : path.parent_path().string();
}

} // namespace berth
