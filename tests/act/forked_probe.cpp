// SPDX-License-Identifier: Apache-2.0
// A program for the zygote's tests. Started by exec or forked from itself as a zygote, it writes
// what it finds itself to be and ends:
//   forked_probe facts FILE CODE   writes the facts, prints a line on stdout, ends with CODE
//   forked_probe wait FILE         writes them and waits for a signal
//   forked_probe raise SIGNAL      ends itself by the C library's raise()
// BERTH_PROBE_PLANT=thread|fail in a zygote's environment: what its preload does; `late` starts a
// thread at SIGUSR1, after it has said that it is ready.
#include "engine_shim/zygote/zygote.h"

#include "base/number.h"
#include "base/unique_fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace {

namespace fs = std::filesystem;

std::string words(const char* file) {
    std::string text = berth::read_file(fmt::format("/proc/self/{}", file)).value_or("unreadable");
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n'))
        text.pop_back();
    std::replace(text.begin(), text.end(), '\0', '\n');
    return text;
}

std::string environment() {
    std::string text;
    for (char** entry = environ; *entry != nullptr; ++entry)
        text += fmt::format("{}{}", text.empty() ? "" : "\n", *entry);
    return text;
}

std::string status_fields() {
    std::string found;
    const std::string text = words("status");
    for (const char* name : {"Name:", "Umask:", "SigBlk:", "SigIgn:", "SigCgt:", "Threads:"}) {
        const size_t at = text.find(name);
        found += text.substr(at, text.find('\n', at) - at) + "\n";
    }
    return found;
}

std::string descriptors() {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const std::string target = fs::read_symlink(entry.path(), error).string();
        if (!target.starts_with("/proc/"))
            found.push_back(entry.path().filename().string() + "=" + target);
    }
    std::sort(found.begin(), found.end());
    return fmt::format("{}", fmt::join(found, " "));
}

std::string limits() {
    rlimit files{}, core{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    ::getrlimit(RLIMIT_CORE, &core);
    return fmt::format("{} {} {}", files.rlim_cur, files.rlim_max, core.rlim_cur);
}

// What a fork that was not done in order would break: threads, their ids, their mutexes.
std::string threads_work() {
    pthread_mutexattr_t kind;
    pthread_mutex_t mutex;
    ::pthread_mutexattr_init(&kind);
    ::pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    ::pthread_mutex_init(&mutex, &kind);
    ::pthread_mutex_lock(&mutex);
    auto others = std::async(std::launch::async, [&] { return ::pthread_mutex_unlock(&mutex); });
    const int refused = others.get(); // not its owner
    const int own = ::pthread_mutex_unlock(&mutex);
    return fmt::format("others {} own {} self {}", refused, own,
                       ::pthread_kill(::pthread_self(), 0));
}

void write_facts(const std::string& path, int argc, char** argv) {
    std::string arguments;
    for (int i = 0; i < argc; ++i)
        arguments += fmt::format("[{}]", argv[i]);
    const std::string facts = fmt::format(
        "argv {}\ncmdline {}\nenviron {}\nproc-environ {}\ncwd {}\nleader {} {}\nparent {}\n"
        "status {}\nfds {}\nlimits {}\noom {}\nname {}\nthreads {}\nexe {}\n",
        arguments, words("cmdline"), environment(), words("environ"), fs::current_path().string(),
        ::getpgrp() == ::getpid(), ::getsid(0) == ::getpid(), ::getppid(), status_fields(),
        descriptors(), limits(), words("oom_score_adj"), program_invocation_short_name,
        threads_work(), fs::read_symlink("/proc/self/exe").string());
    (void)berth::write_file_atomic(path, facts);
}

berth::Status preload(bool) {
    const char* plant = std::getenv("BERTH_PROBE_PLANT");
    const std::string planted = plant != nullptr ? plant : "";
    if (planted == "fail")
        return berth::fail(berth::ErrorCode::kUnsupported, "this one fails as it was told to");
    if (planted == "thread")
        std::thread([] { ::pause(); }).detach();
    if (planted == "late")
        ::signal(SIGUSR1, [](int) { std::thread([] { ::pause(); }).detach(); });
    return {};
}

int run(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "raise")
        return ::raise(berth::number_in<int>(argv[2]).value_or(0));
    if (argc < 3)
        return 2;
    write_facts(argv[2], argc, argv);
    std::printf("a line of %s\n", argv[1]);
    std::fflush(stdout);
    if (what == "wait")
        ::pause();
    return argc > 3 ? berth::number_in<int>(argv[3]).value_or(2) : 0;
}

} // namespace

int main(int argc, char** argv) {
    if (!berth::zygote::is_asked_for(argc, argv))
        return run(argc, argv);
    const auto born = berth::zygote::serve(argv, preload);
    return born ? run(born->argc, born->argv) : 0;
}
