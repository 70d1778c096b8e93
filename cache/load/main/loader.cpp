// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/loader.h"

#include "base/log.h"
#include "base/units.h"
#include "cache/load/main/control.h"
#include "cache/load/main/report.h"
#include "cache/load/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

namespace berth {

namespace {

// The device, opened as late as can be: a GPU's context takes memory that berthd grants first.
class LateDevice {
  public:
    explicit LateDevice(std::string id) : id_(std::move(id)) {}

    DeviceKind kind() const {
        return id_.starts_with("host-") ? DeviceKind::kHost : DeviceKind::kCuda;
    }
    Result<Device*> open() {
        if (!device_) {
            BERTH_ASSIGN(device_, open_device(id_));
        }
        return device_.get();
    }

  private:
    std::string id_;
    std::unique_ptr<Device> device_;
};

WeightEnvironment environment_of(const Device& device) {
    WeightEnvironment environment;
    environment.device_kind = to_string(device.capabilities().kind);
    environment.compute_capability = device.capabilities().compute_capability;
    environment.cuda_version = device.capabilities().driver_version;
    return environment;
}

// What the set is made for: as given, else as the device is. Only the latter opens the device.
Result<WeightEnvironment> find_environment(const LoaderOptions& options, LateDevice& device) {
    if (!options.environment_json) {
        if (options.check && device.kind() == DeviceKind::kHost)
            return WeightEnvironment{"host", "", "", "any"};
        BERTH_ASSIGN(Device * opened, device.open());
        return environment_of(*opened);
    }
    BERTH_ASSIGN(protocol::Environment given,
                 protocol::environment_from_json(*options.environment_json));
    if (!given.layout.empty() && given.layout != kLayoutTag)
        return fail(
            ErrorCode::kMismatch,
            fmt::format("layout '{}' is wanted, this loader makes '{}'", given.layout, kLayoutTag),
            "LayoutMismatch");
    WeightEnvironment environment;
    environment.device_kind =
        given.device_kind.empty() ? std::string(to_string(device.kind())) : given.device_kind;
    environment.compute_capability = given.compute_capability;
    environment.cuda_version = given.cuda_version;
    if (!given.torch_version.empty())
        environment.torch_version = given.torch_version;
    return environment;
}

// An environment that was given must be the device's: it says for which device the set may be used.
Status check_environment(const WeightEnvironment& given, const Device& device) {
    WeightEnvironment real = environment_of(device);
    auto differs = [](const std::string& wanted, const std::string& is) {
        return !wanted.empty() && wanted != is;
    };
    if (differs(given.device_kind, real.device_kind))
        return fail(ErrorCode::kMismatch,
                    fmt::format("device kind '{}' is wanted, {} is '{}'", given.device_kind,
                                device.id(), real.device_kind),
                    "EnvironmentMismatch");
    if (differs(given.compute_capability, real.compute_capability))
        return fail(ErrorCode::kMismatch,
                    fmt::format("compute capability '{}' is wanted, {} has '{}'",
                                given.compute_capability, device.id(), real.compute_capability),
                    "EnvironmentMismatch");
    return {};
}

// A line that is written over, where somebody looks.
Status show_progress(uint64_t done, uint64_t total) {
    if (::isatty(STDERR_FILENO) == 0)
        return {};
    double percent = total > 0 ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 0;
    fmt::print(stderr, "\rloading {:5.1f} %  {} of {} ", percent, format_bytes(done),
               format_bytes(total));
    if (done == total)
        fmt::print(stderr, "\n");
    return {};
}

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
              "filesystem={}",
              options.model, plan.fingerprint.id(), options.device, set.bytes_read, read_ms,
              static_cast<double>(set.bytes_read) / 1e6 / read_ms, set.filesystem);
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
    if (control)
        BERTH_TRY(control.ask(plan, cost_of(plan, late.kind(), options.threads)));
    started = std::chrono::steady_clock::now();
    BERTH_ASSIGN(Device * device, late.open());
    BERTH_TRY(check_environment(request.environment, *device));
    std::chrono::duration<double, std::milli> opening = std::chrono::steady_clock::now() - started;
    auto progress = [&](uint64_t done, uint64_t total) -> Status {
        return control ? control.progress("loading", done, total) : show_progress(done, total);
    };
    BERTH_ASSIGN(LoadedSet set, run_load(plan, *device, options.threads, progress));
    set.phases["validate"] = validating.count();
    set.phases["open_device"] = opening.count();
    std::vector<std::string> different;
    if (options.verify) {
        started = std::chrono::steady_clock::now();
        BERTH_ASSIGN(different, verify_set(*device, set));
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - started;
        set.phases["verify"] = took.count();
    }
    if (control) {
        BERTH_TRY(refuse_different(different));
        BERTH_TRY(control.hand_over(plan, set));
        log_outcome(options, plan, set);
    } else {
        LoadOutcome outcome{plan, set, options.verify, different};
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
    Status done = load(options, control);
    if (done)
        return 0;
    log::error("not loaded model={} code={} reason={}: {}", options.model,
               to_string(done.error().code), done.error().reason, done.error().message);
    if (control)
        control.tell_failure(done.error());
    return 1;
}

} // namespace berth
