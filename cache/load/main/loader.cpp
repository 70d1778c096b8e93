// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/loader.h"

#include "base/log.h"
#include "cache/load/image.h"
#include "cache/load/main/control.h"
#include "cache/load/main/devices.h"
#include "cache/load/main/outcome.h"
#include "cache/load/main/tiers.h"
#include "cache/load/plan_report.h"
#include "cache/load/verify.h"

#include <fcntl.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

namespace berth {

namespace {

Result<std::vector<std::string>> verify_set(Device& device, const LoadedSet& set) {
    BERTH_ASSIGN(Manifest manifest, Manifest::open(set.manifest, set.segment_bytes()));
    std::vector<Mapping> mappings;
    for (const Segment& segment : set.segments) {
        BERTH_ASSIGN(Mapping mapping, device.map_read_only(segment));
        mappings.push_back(std::move(mapping));
    }
    return verify(device, manifest, mappings);
}

Status refuse_different(const std::vector<std::string>& different) {
    if (different.empty())
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("{} tensors differ from their checksums after the load, the first is "
                            "'{}'; load again, and suspect the device's memory if it happens again",
                            different.size(), different[0]),
                "ChecksumMismatch");
}

// One line for berthd's log; whoever loads by hand has seen the outcome already.
void log_outcome(const LoaderOptions& options, const LoadPlan& plan, const LoadedSet& set) {
    double read_ms = set.phases.at("read");
    log::info("loaded model={} weight_set={} device={} bytes={} read_ms={:.1f} gb_per_s={:.2f} "
              "filesystem={} {}",
              options.model, plan.fingerprint().id(), options.device, set.bytes_read, read_ms,
              static_cast<double>(set.bytes_read) / 1e6 / read_ms, set.filesystem,
              set.reader.text());
}

// FILE, or FILE.rankN where there are several.
Status write_images(const LoaderOptions& options, const LoadPlan& plan,
                    std::vector<LoadedSet>& sets, const std::vector<Device*>& devices) {
    if (options.write_image.empty())
        return {};
    auto started = std::chrono::steady_clock::now();
    for (size_t index = 0; index < sets.size(); ++index) {
        std::string path = options.write_image;
        if (sets.size() > 1)
            path += fmt::format(".rank{}", plan.ranks[index].rank);
        BERTH_TRY(write_image(path, view_of(sets[index]), *devices[index], options.threads, {}));
    }
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
    sets[0].phases["write_image"] = took.count();
    return {};
}

Status load(const LoaderOptions& options, Control& control) {
    LateDevice late(options.device);
    LoadRequest request = options.request;
    BERTH_ASSIGN(request.environment, find_environment(options, late));
    auto started = std::chrono::steady_clock::now();
    BERTH_ASSIGN(LoadPlan plan, plan_load(request));
    std::chrono::duration<double, std::milli> validating =
        std::chrono::steady_clock::now() - started;
    if (options.check) {
        fmt::print("{}", options.json ? plan_json(plan) + "\n" : plan_text(plan));
        return {};
    }
    TilePlan tiles = tiles_of(plan, late.kind());
    if (control)
        BERTH_TRY(control.ask(planned(plan, cost_of(plan, tiles, late.kind(), options.threads))));
    BERTH_ASSIGN(Device * device, late.open());
    BERTH_TRY(check_environment(request.environment, *device));
    auto progress = [&](uint64_t done, uint64_t total) -> Status {
        return control ? control.progress("loading", done, total) : show_progress(done, total);
    };
    std::vector<Device*> devices;
    BERTH_ASSIGN(OtherDevices others, OtherDevices::open(options, *device, devices));
    BERTH_ASSIGN(std::vector<LoadedSet> sets,
                 run_load(plan, tiles, devices, options.threads, progress));
    LoadedSet& set = sets[0];
    set.phases["validate"] = validating.count();
    set.phases["open_device"] = late.opening_ms();
    std::vector<std::string> different;
    if (options.verify) {
        started = std::chrono::steady_clock::now();
        for (size_t rank = 0; rank < sets.size(); ++rank) {
            BERTH_ASSIGN(std::vector<std::string> more, verify_set(*devices[rank], sets[rank]));
            different.insert(different.end(), more.begin(), more.end());
        }
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
        set.phases["verify"] = took.count();
    }
    if (control) {
        BERTH_TRY(refuse_different(different));
        BERTH_TRY(control.hand_over(plan.fingerprint().sha256, set));
        log_outcome(options, plan, set);
    } else {
        if (different.empty())
            BERTH_TRY(write_images(options, plan, sets, devices));
        LoadOutcome outcome{{}, set, options.verify, different};
        for (const RankPlan& rank : plan.ranks)
            outcome.ranks.push_back({rank.rank, rank.fingerprint.sha256, rank.layout.segment_bytes,
                                     rank.layout.tensors.size()});
        fmt::print("{}", options.json ? outcome_json(outcome) + "\n" : outcome_text(outcome));
        BERTH_TRY(refuse_different(different));
    }
    return {};
}

} // namespace

int run_loader(LoaderOptions options) {
    Control control;
    if (options.control_fd >= 0) {
        UniqueFd socket(options.control_fd);
        if (::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
            log::error("control descriptor {} is not open", options.control_fd);
            (void)socket.release();
            return 1;
        }
        control = Control(std::move(socket));
    }
    Status done;
    if (!options.source_fds.empty())
        done = serve_source(options, control);
    else if (!options.image.empty())
        done = load_image(options, control);
    else
        done = load(options, control);
    if (done)
        return 0;
    std::string what = !options.model.empty()   ? "model=" + options.model
                       : !options.image.empty() ? "image=" + options.image
                                                : "source=" + options.source_device;
    log::error("not loaded {} code={} reason={}: {}", what, to_string(done.error().code),
               done.error().reason, done.error().message);
    if (control)
        control.tell_failure(done.error());
    return 1;
}

} // namespace berth
