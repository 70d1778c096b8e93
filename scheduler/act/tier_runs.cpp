// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/tier_runs.h"

#include "base/log.h"
#include "cache/load/image.h"
#include "cache/weights/fingerprint.h"
#include "scheduler/act/record_mapping.h"
#include "scheduler/node/tiers.h"

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sys/statvfs.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr uint64_t kKeptFreeBytes = 256ULL << 20; // on the disk, beside an image
constexpr int kFirstSourceFd = 4;

// Host memory of a tier is a host device's; its number says nothing.
std::string device_word(const node::DeviceId& device) {
    return node::is_tier(device) ? "host-0" : device.value;
}

std::string numbers_from(int first, size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i)
        text += fmt::format("{}{}", i == 0 ? "" : ",", first + static_cast<int>(i));
    return text;
}

Status enough_space(const std::string& folder, uint64_t bytes) {
    struct statvfs disk{};
    if (::statvfs(folder.c_str(), &disk) != 0)
        return fail_errno("looking for room in " + folder);
    const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    if (free >= bytes + kKeptFreeBytes)
        return {};
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("an image of {} into {} needs {} more free than the {} there",
                            format_bytes(bytes), folder,
                            format_bytes(bytes + kKeptFreeBytes - free), format_bytes(free)),
                "DiskFull");
}

} // namespace

const ResidentSet* TierRuns::find(const node::WeightSetId& set,
                                  const node::DeviceId& device) const {
    return context_.catalogue_of(device.value).find(set.value, device.value);
}

std::string TierRuns::environment_of(const node::DeviceId& device) const {
    auto known = context_.environments.find(device);
    return protocol::environment_json(known == context_.environments.end() ? protocol::Environment()
                                                                           : known->second);
}

void TierRuns::not_run(node::LoadId id, Error error) {
    boost::asio::post(context_.io, [this, id, error = std::move(error)] {
        context_.post(node::LoadFailed{id, error});
        context_.post(node::LoaderExited{id, "not started"});
    });
}

void TierRuns::load(const node::StartLoad& load) {
    if (load.source != node::kHostTier) {
        auto known = context_.environments.find(load.key.device);
        LoaderLaunch launch = checkpoint_launch(
            load, known == context_.environments.end() ? protocol::Environment() : known->second);
        launch.arguments.insert(launch.arguments.end(), {"--image", load.file});
        loaders_.start(std::move(launch));
        return;
    }
    const ResidentSet* set = find(load.from, node::kHostTier);
    if (set == nullptr)
        return not_run(load.load, Error{ErrorCode::kNotFound,
                                        fmt::format("weight set {} is in host memory no more",
                                                    load.from.value),
                                        "TierFailed", 0});
    looking_.insert(load.load);
    using Changes = Result<std::vector<FieldDifference>>;
    workers_.checkpoints.run(
        [document = set->fingerprint_json, path = load.key.path] {
            return changes_on_disk(document, path);
        },
        [this, load](Changes changes) {
            if (looking_.erase(load.load) == 0)
                return not_run(load.load, Error{ErrorCode::kUnavailable, "ended before it began",
                                                "LoadEnded", 0});
            if (!changes)
                return not_run(load.load, changes.error());
            const bool is_absent =
                std::any_of(changes->begin(), changes->end(),
                            [](const FieldDifference& one) { return one.is_gone; });
            if (is_absent)
                return not_run(load.load,
                               Error{ErrorCode::kUnavailable,
                                     fmt::format("the checkpoint {} cannot be looked at "
                                                 "now:\n{}",
                                                 load.key.path, difference_table(*changes)),
                                     "CheckpointAbsent", 0});
            if (!changes->empty())
                return not_run(load.load,
                               Error{ErrorCode::kMismatch,
                                     fmt::format("the checkpoint {} has changed since:\n{}",
                                                 load.key.path, difference_table(*changes)),
                                     "CheckpointChanged", 0});
            come_up(load);
        });
}

void TierRuns::come_up(const node::StartLoad& load) {
    const ResidentSet* set = find(load.from, node::kHostTier);
    if (set == nullptr)
        return not_run(load.load, Error{ErrorCode::kNotFound, "the copy is gone", "TierFailed", 0});
    LoaderLaunch launch;
    launch.load = load.load;
    launch.sources = set->descriptors();
    launch.arguments = {"--device",        load.key.device.value,
                        "--source-fds",    numbers_from(kFirstSourceFd, launch.sources.size()),
                        "--source-device", device_word(node::kHostTier),
                        "--environment",   environment_of(load.key.device)};
    launch.device = load.key.device;
    launch.what = fmt::format("weight set {} from host memory", load.from.value);
    loaders_.start(std::move(launch));
}

void TierRuns::copy(const node::StartCopy& copy) {
    if (copy.to == node::kImageTier)
        return prepare_image(copy);
    const ResidentSet* set = find(copy.set, copy.source);
    if (set == nullptr)
        return not_run(copy.load, Error{ErrorCode::kNotFound,
                                        fmt::format("weight set {} is gone from {}", copy.set.value,
                                                    copy.source.value),
                                        "CopyFailed", 0});
    LoaderLaunch launch;
    launch.load = copy.load;
    launch.sources = set->descriptors();
    launch.arguments = {"--device",        device_word(copy.to),
                        "--source-fds",    numbers_from(kFirstSourceFd, launch.sources.size()),
                        "--source-device", device_word(copy.source),
                        "--environment",   environment_of(copy.made_on)};
    launch.device = copy.source;
    launch.what = fmt::format("copy of weight set {} to host memory", copy.set.value);
    loaders_.start(std::move(launch));
}

// The folder first: it is there, nothing is left in it of writers before, and it has the room.
void TierRuns::prepare_image(const node::StartCopy& copy) {
    struct Prepared {
        Status status;
        Tidied tidied;
        static Prepared of_failure(Error error) { return {fail(std::move(error)), {}}; }
    };
    const ResidentSet* set = find(copy.set, copy.source);
    looking_.insert(copy.load);
    workers_.images.run(
        [folder = folder_, path = std::filesystem::path(copy.file).parent_path().string(),
         kept = kept_images(copy.load), bytes = set != nullptr ? set->bytes() : 0] {
            Prepared prepared;
            prepared.status = make_directories(path, 0750);
            if (!prepared.status)
                return prepared;
            prepared.tidied = folder->tidy(path, kept);
            prepared.status = enough_space(path, bytes);
            return prepared;
        },
        [this, copy](const Prepared& prepared) {
            report(prepared.tidied);
            if (looking_.erase(copy.load) == 0)
                return not_run(copy.load, Error{ErrorCode::kUnavailable, "ended before it began",
                                                "LoadEnded", 0});
            Status begun = prepared.status;
            if (begun)
                begun = write_image(copy);
            if (!begun)
                not_run(copy.load, begun.error());
        });
}

Status TierRuns::write_image(const node::StartCopy& copy) {
    const ResidentSet* set = find(copy.set, copy.source);
    if (set == nullptr)
        return fail(ErrorCode::kNotFound,
                    fmt::format("weight set {} is gone from {}", copy.set.value, copy.source.value),
                    "CopyFailed");
    std::vector<int> sources = set->descriptors();
    SpawnOptions options;
    options.ends_with_parent = true;
    options.command = {context_.paths.program_dir + "/berth-loader",
                       "--write-image",
                       copy.file, // which appears once it is whole and on the disk
                       "--source-fds",
                       numbers_from(kFirstSourceFd, sources.size()),
                       "--source-device",
                       device_word(copy.source)};
    for (size_t i = 0; i < sources.size(); ++i)
        options.inherit_fds.emplace_back(sources[i], kFirstSourceFd + static_cast<int>(i));
    auto environment = context_.environments.find(copy.source);
    const bool on_gpu =
        environment != context_.environments.end() && environment->second.device_kind == "cuda";
    options.environment["CUDA_VISIBLE_DEVICES"] = on_gpu ? copy.source.value : "";
    BERTH_TRY(make_directories(context_.paths.state_dir + "/engines", 0750));
    options.log_path = context_.paths.state_dir + "/engines/berth-loader.log";
    BERTH_ASSIGN(Process process, Process::spawn(options));
    BERTH_ASSIGN(FdWatch watch, FdWatch::open(context_.io, process.pidfd(),
                                              [this, id = copy.load] { image_ended(id); }));
    log::info("image started load={} weight_set={} file={} pid={}",
              static_cast<uint64_t>(copy.load), copy.set.value, copy.file, process.id().pid);
    ImageRun& run = images_[copy.load];
    run.process = std::move(process);
    run.watch = std::move(watch);
    run.set = copy.set;
    run.file = copy.file;
    run.bytes = set->bytes();
    return {};
}

void TierRuns::image_ended(node::LoadId id) {
    auto found = images_.find(id);
    if (found == images_.end())
        return;
    const int status = found->second.process.try_wait().value_or(kUnknownWaitStatus);
    const std::string how = describe_exit(status);
    const ImageRun ended = std::move(found->second);
    images_.erase(found);
    if (status == 0)
        context_.post(node::ImageWritten{id, ended.bytes});
    else
        context_.post(node::LoadFailed{
            id, Error{ErrorCode::kIo,
                      fmt::format("berth-loader ended ({}) before {} was written; see "
                                  "{}/engines/berth-loader.log",
                                  how, ended.file, context_.paths.state_dir),
                      "ImageFailed", 0}});
    context_.post(node::LoaderExited{id, how});
    // Whatever became of it: what nobody knows of does not stay.
    if (node::find_set(context_.state(), ended.set, node::kImageTier) == nullptr)
        tidy({std::filesystem::path(ended.file).parent_path().string()});
}

void TierRuns::kill(node::LoadId id) {
    looking_.erase(id);
    if (auto found = images_.find(id); found != images_.end())
        (void)found->second.process.signal_group(SIGKILL);
}

void TierRuns::remove_image(const node::DropWeights& drop,
                            std::function<void(const Status&)> then) {
    const node::WeightSet* copy = node::find_set(context_.state(), drop.set, drop.device);
    workers_.images.run(
        [file = copy != nullptr ? copy->file : std::string()]() -> Status {
            if (!file.empty() && ::unlink(file.c_str()) != 0 && errno != ENOENT)
                return fail_errno("removing " + file);
            return {};
        },
        [then = std::move(then)](const Status& removed) { then(removed); });
}

std::set<std::string> TierRuns::kept_images(node::LoadId but) const {
    std::set<std::string> kept = node::image_files(context_.state(), but);
    kept.insert(left_alone_.begin(), left_alone_.end());
    return kept;
}

void TierRuns::tidy(const node::TidyImages& tidy) {
    workers_.images.run([folder = folder_, path = tidy.folder,
                         kept = kept_images()] { return folder->tidy(path, kept); },
                        [this, path = tidy.folder](const Tidied& tidied) {
                            report(tidied);
                            if (!tidied.refused.empty())
                                log::warn(
                                    "{}: {}; what earlier writers of images may have left there "
                                    "stays, going on",
                                    path, tidied.refused);
                        });
}

void TierRuns::report(const Tidied& tidied) {
    for (const std::string& path : tidied.removed) {
        const std::string name = std::filesystem::path(path).filename().string();
        context_.note(true, "weights/" + name.substr(0, node::kSetIdDigits), "ImageRemoved",
                      path + " was left by a writer of images and is in no record: removed");
    }
    for (const std::string& left : tidied.left)
        log::warn("{}: it has an image's name and is in no record, left alone", left);
}

FoundImages find_images(const StoredState& stored) {
    FoundImages found;
    for (const PlacementRecord& record : stored.placements) {
        if (record.device != node::kImageTier.value)
            continue;
        node::WeightsAdopted image = adopted_from(record);
        image.device = node::kImageTier;
        auto opened = open_image(image.file);
        if (opened && opened->fingerprint == image.fingerprint) {
            found.whole.push_back(std::move(image));
            continue;
        }
        if (opened) {
            log::warn("{} is the image of {}, not of weight set {}: ignored", image.file,
                      opened->fingerprint.substr(0, 16), record.weight_set);
            continue;
        }
        log::warn("the image of weight set {} is ignored: {}", record.weight_set,
                  opened.error().message);
        // A broken one is of no use; of one that is out of reach nothing is known.
        if (opened.error().code != ErrorCode::kCorrupt &&
            opened.error().code != ErrorCode::kMismatch)
            found.unseen.push_back(image.file);
    }
    return found;
}

} // namespace berth
