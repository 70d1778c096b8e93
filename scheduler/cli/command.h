// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "scheduler/cli/admin_client.h"
#include "scheduler/cli/output.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

// What each command of `berth` does, apart from how its words are read (main/). All of them print
// their result on stdout; a failure is the returned error, which main() prints.
namespace berth::cli {

struct Context {
    AdminClient client;
    Output output;
};

// What waiting for an operation is about.
struct WaitOptions {
    bool wait = false;
    std::chrono::milliseconds timeout{0}; // 0: as long as it takes
};

Status show_status(const Context& context);
// `kind` is instances, devices, weights, operations or decisions; an empty name lists all.
Status get(const Context& context, const std::string& kind, const std::string& name);
Status describe(const Context& context, const std::string& kind, const std::string& name);
Status show_events(const Context& context, uint64_t since, bool follow);
// Failed when a check is.
Status run_doctor(const Context& context);

struct PreemptOptions {
    std::string name;
    std::string mode;         // empty: the policy's first rung
    std::string grace_period; // empty: the policy's
    std::string reason;
    bool dry_run = false;
    WaitOptions wait;
};
Status preempt(const Context& context, const PreemptOptions& options);
Status resume(const Context& context, const std::string& name, const std::string& reason,
              const WaitOptions& wait);

struct LoadOptions {
    std::string model; // a Model's name, or a path if it has a '/'
    std::string device;
    WaitOptions wait;
};
Status load(const Context& context, const LoadOptions& options);
// `verb` is pin, unpin or evict; `set` an id, the unique beginning of one, or a model's name.
Status change_weights(const Context& context, const std::string& verb, const std::string& set,
                      bool dry_run);
// Failed when a checksum differs.
Status verify_weights(const Context& context, const std::string& set);

// Each file (or the *.yaml of a folder, or "-" for stdin) in the order given.
Status apply(const Context& context, const std::vector<std::string>& files, bool dry_run);
// On this machine, without a daemon.
Status validate(const Output& output, const std::vector<std::string>& files);

// The reply's operation once it has ended, if `wait` says so, else as it is. An operation that
// failed is its error. `on_poll` is called between looks, which then are more frequent.
Result<json::value> wait_operation(const AdminClient& client, json::value operation,
                                   const WaitOptions& wait,
                                   const std::function<void()>& on_poll = {});
// Prints an operation: as a sentence, or in the format asked for.
void print_operation(const Output& output, const json::value& operation);

// Ids, names: the weight set that `given` means.
Result<json::value> find_weights(const AdminClient& client, const std::string& given);

} // namespace berth::cli
