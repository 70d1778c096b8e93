// SPDX-License-Identifier: Apache-2.0
#include "cache/load/main/tiers.h"

#include "base/log.h"
#include "cache/load/copy_set.h"
#include "cache/load/image.h"
#include "cache/load/main/devices.h"
#include "cache/load/main/outcome.h"
#include "cache/load/phase_clock.h"

#include <fcntl.h>

#include <fmt/format.h>

#include <algorithm>

namespace berth {

namespace {

StreamProgress progress_to(Control& control, const char* phase) {
    return [&control, phase](uint64_t done, uint64_t total) -> Status {
        return control ? control.progress(phase, done, total) : show_progress(done, total);
    };
}

// The image must be what the checkpoint would give now: compared field by field.
Status check_against_model(const Image& image, const LoaderOptions& options, LateDevice& late) {
    LoadRequest request = options.request;
    BERTH_ASSIGN(request.environment, find_environment(options, late));
    auto plan = plan_load(request);
    if (!plan) // whatever is wrong with the checkpoint, it says nothing about the image
        return fail(ErrorCode::kUnavailable,
                    fmt::format("{}: the image cannot be compared with {} now: {}", image.path,
                                options.model, plan.error().message),
                    "CheckpointAbsent");
    if (plan->fingerprint().sha256 == image.fingerprint)
        return {};
    BERTH_ASSIGN(std::vector<FieldDifference> differences,
                 compare(image.fingerprint_json, plan->fingerprint().document));
    if (differences.empty())
        return {};
    return fail(ErrorCode::kMismatch,
                fmt::format("{}: the image is not what {} would give now; write it again, or load "
                            "the checkpoint\n{}",
                            image.path, options.model, difference_table(differences)),
                "FingerprintMismatch");
}

// What an environment says of the device it must be; a host device that keeps a GPU's set as a tier
// is none of its own.
Status check_given(const LoaderOptions& options, LateDevice& late, const Device& device) {
    if (!options.environment_json || late.kind() == DeviceKind::kHost)
        return {};
    BERTH_ASSIGN(protocol::Environment given,
                 protocol::environment_from_json(*options.environment_json));
    WeightEnvironment environment;
    environment.device_kind = given.device_kind;
    environment.compute_capability = given.compute_capability;
    return check_environment(environment, device);
}

// The outcome for whoever waits for it.
Status tell(const LoaderOptions& options, Control& control, const std::string& origin,
            const std::string& fingerprint, uint64_t tensors, const LoadedSet& set) {
    if (control) {
        BERTH_TRY(control.hand_over(fingerprint, set));
        double read_ms = set.phases.at("read");
        log::info("loaded from={} weight_set={} device={} bytes={} read_ms={:.1f} gb_per_s={:.2f} "
                  "{}",
                  origin, fingerprint.substr(0, 16), options.device, set.bytes_read, read_ms,
                  static_cast<double>(set.bytes_read) / 1e6 / std::max(read_ms, 1e-3),
                  set.reader.method.empty() ? "" : set.reader.text());
        return {};
    }
    // What the load compares anyway is as good as --verify.
    LoadOutcome outcome{{{0, fingerprint, set.bytes_read, tensors}}, set, true, {}};
    fmt::print("{}", options.json ? outcome_json(outcome) + "\n" : outcome_text(outcome));
    return {};
}

Result<std::vector<UniqueFd>> take_descriptors(const LoaderOptions& options) {
    std::vector<UniqueFd> fds;
    for (size_t index = 0; index < options.source_fds.size(); ++index) {
        int number = options.source_fds[index];
        auto end = options.source_fds.begin() + static_cast<std::ptrdiff_t>(index);
        bool is_twice = std::find(options.source_fds.begin(), end, number) != end;
        if (is_twice || number == options.control_fd)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("--source-fds: descriptor {} is named twice", number));
        if (::fcntl(number, F_SETFD, FD_CLOEXEC) != 0)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("--source-fds: descriptor {} is not open", number));
        fds.emplace_back(number);
    }
    return fds;
}

Status copy_source(const LoaderOptions& options, const SealedSet& source, Control& control) {
    LateDevice from(options.source_device), to(options.device);
    std::vector<uint64_t> sizes = source.view().segment_bytes();
    BERTH_ASSIGN(Manifest manifest, Manifest::open(source.manifest, sizes));
    std::string fingerprint(manifest.fingerprint());
    protocol::Planned said = planned(cost_of_copy(sizes, from.kind(), to.kind(), options.threads));
    said.fingerprint = fingerprint;
    said.fingerprint_json = manifest.fingerprint_json();
    said.tensors = manifest.size();
    BERTH_TRY(control.ask(said));
    BERTH_ASSIGN(Device * source_device, from.open());
    BERTH_ASSIGN(Device * device, to.open());
    BERTH_TRY(check_given(options, to, *device));
    BERTH_ASSIGN(LoadedSet set, copy_set(source.view(), *source_device, *device, options.threads,
                                         progress_to(control, "loading")));
    set.phases["open_device"] = from.opening_ms() + to.opening_ms();
    return tell(options, control, options.source_device, fingerprint, manifest.size(), set);
}

} // namespace

Status load_image(const LoaderOptions& options, Control& control) {
    PhaseClock clock;
    LateDevice late(options.device);
    BERTH_ASSIGN(Image image, open_image(options.image));
    ImageWanted wanted;
    BERTH_ASSIGN(wanted.layout, wanted_layout(options));
    BERTH_TRY(check_image(image, wanted));
    if (!options.model.empty())
        BERTH_TRY(check_against_model(image, options, late));
    double validating_ms = clock.lap();
    if (control) {
        protocol::Planned said =
            planned(cost_of_filed_set(image.segment_bytes(), late.kind(), options.threads));
        said.fingerprint = image.fingerprint;
        said.fingerprint_json = image.fingerprint_json;
        said.tensors = image.tensors;
        BERTH_TRY(control.ask(said));
    }
    BERTH_ASSIGN(Device * device, late.open());
    BERTH_TRY(check_given(options, late, *device));
    BERTH_ASSIGN(LoadedSet set,
                 run_image_load(image, *device, options.threads, options.request.reader,
                                progress_to(control, "loading")));
    set.phases["validate"] = validating_ms;
    set.phases["open_device"] = late.opening_ms();
    return tell(options, control, options.image, image.fingerprint, image.tensors, set);
}

Status serve_source(const LoaderOptions& options, Control& control) {
    BERTH_ASSIGN(std::vector<UniqueFd> fds, take_descriptors(options));
    BERTH_ASSIGN(SealedSet source, sealed_set_from(std::move(fds)));
    if (control)
        return copy_source(options, source, control);
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(options.source_device));
    return write_image(options.write_image, source.view(), *device, options.threads,
                       progress_to(control, "writing"));
}

} // namespace berth
