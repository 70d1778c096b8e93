// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/arguments.h"

#include <fmt/format.h>

#include <csignal>
#include <exception>

// berth: what operators and scripts use to look at a node and to change it.
int main(int argc, char** argv) {
    using namespace berth;
    ::signal(SIGPIPE, SIG_DFL); // `berth events | head` ends quietly
    try {
        cli::Invocation invocation = cli::read_arguments(argc, argv);
        if (!invocation.run)
            return invocation.exit_code;
        Status done = invocation.run();
        if (done)
            return 0;
        const Error& error = done.error();
        std::string_view reason = error.reason.empty() ? to_string(error.code) : error.reason;
        cli::print_error(fmt::format("berth: {}: {}\n", reason, error.message));
        return error.reason == cli::kNotReachable ? cli::kExitNotReachable : cli::kExitRefused;
    } catch (const std::exception& error) {
        cli::print_error(fmt::format("berth: Internal: {}\n", error.what()));
        return cli::kExitRefused;
    }
}
