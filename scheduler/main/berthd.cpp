// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "scheduler/main/daemon.h"

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <malloc.h>

namespace {

int fail_with(const berth::Error& error) {
    std::fprintf(stderr, "berthd: %s\n", error.message.c_str());
    return 1;
}

} // namespace

int main(int argc, char** argv) {
    berth::DaemonOptions options;
    options.started = std::chrono::steady_clock::now();
    options.version = BERTH_VERSION;
    std::string log_level;
    std::string zygote = "auto";
    bool check = false;

    CLI::App app("Berth's node daemon: shares model weights between the engines of one node.\n"
                 "SIGHUP reads the policies anew; SIGTERM stops it, and engines and keeper go on.",
                 "berthd");
    app.add_option("--config", options.config_file, "The YAML file with the Node document")
        ->default_str("/etc/berth/node.yaml")
        ->envname("BERTH_CONFIG");
    app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off");
    app.add_option("--zygote", zygote,
                   "auto: engines are forked from a process that has their libraries loaded, where "
                   "that is the same as starting them; off: never")
        ->check(CLI::IsMember({"auto", "off"}))
        ->capture_default_str();
    app.add_flag("--check", check, "Read configuration and policies, say what they hold, and end");
    app.set_version_flag("--version", options.version);
    CLI11_PARSE(app, argc, argv);
    if (zygote == "off")
        options.zygote_off = "berthd was started with --zygote off";
    if (options.config_file.empty())
        options.config_file = "/etc/berth/node.yaml";

    // A small resident size matters more here than threads that never wait for each other's memory.
    ::mallopt(M_ARENA_MAX, 1);
    ::signal(SIGPIPE, SIG_IGN);
    if (auto started = berth::log::start("berthd", log_level); !started)
        return fail_with(started.error());
    if (check) {
        auto said = berth::check_configuration(options.config_file);
        if (!said)
            return fail_with(said.error());
        std::printf("%s\n", said->c_str());
        return 0;
    }
    if (auto ran = berth::run_daemon(options); !ran)
        return fail_with(ran.error());
    return 0;
}
