// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/units.h"
#include "policies/spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The JSON bodies of the admin interface's changes, read strictly: unknown and ill-typed fields are
// InvalidArgument. Pure. An empty body means all defaults.
namespace berth::bodies {

struct Preempt {
    policies::Rung mode = policies::Rung::kPause;
    std::optional<Nanoseconds> grace;
    std::optional<uint64_t> grant_bytes; // of Shrink: down to this
    std::string reason;
    std::string request_id;
    bool dry_run = false;
};
Result<Preempt> read_preempt(std::string_view body, policies::Rung default_mode);

// Of resume, hold, release, cordon, uncordon, pin, unpin, evict.
struct Common {
    std::string reason;
    std::string request_id;
    bool dry_run = false;
    bool drop = false; // evict: the copies below too
};
Result<Common> read_common(std::string_view body);

// Of an instance and of a device.
struct Drain {
    Nanoseconds timeout = std::chrono::seconds(30);
    std::string reason;
    std::string request_id;
    bool dry_run = false;
};
Result<Drain> read_drain(std::string_view body);

// Of pauseRollout, resumeRollout, undoRollout.
struct Rollout {
    std::string reason;
    std::string request_id;
    bool dry_run = false;
    bool in_place = false; // undo
};
Result<Rollout> read_rollout(std::string_view body);

// A question to the planner: what if a class needed so many bytes.
struct Need {
    std::string class_name;
    std::string memory; // "8Gi"
    std::string device; // empty: any
    uint64_t bytes = 0;
};
Result<Need> read_need(std::string_view body);

struct Load {
    std::string model; // this or the path
    std::string path;  // absolute, normal, without a slash at its end
    std::string dtype = "auto";
    std::string quantization = "none";
    std::string device;
    uint32_t rank = 0; // of a Model of several ranks: whose part
    uint32_t ranks = 1;
    std::string request_id;
    bool dry_run = false;
};
Result<Load> read_load(std::string_view body);

// Whether a deep hash is wanted.
Result<bool> read_verify(std::string_view body);

} // namespace berth::bodies
