// SPDX-License-Identifier: Apache-2.0
// A weight set's ways back onto its device: from an image on disk, by berth-loader as berthd starts
// it, and from a copy in host memory, by the same code in this process. No node is asked.
#include "cache/load/copy_set.h"
#include "cache/load/image.h"
#include "scheduler/cli/bench/bench.h"
#include "scheduler/cli/bench/figures.h"
#include "scheduler/cli/bench/load_floor.h"
#include "scheduler/cli/bench/loader_run.h"

#include <unistd.h>

#include <fmt/format.h>

#include <filesystem>

namespace berth::cli::bench {

namespace {

constexpr const char* kTierDevice = "host-0";

// Of an image that goes with the bench.
struct ImageFile {
    explicit ImageFile(const Options& options) {
        namespace fs = std::filesystem;
        fs::path folder = options.image_dir;
        if (folder.empty())
            folder = fs::is_directory(options.checkpoint)
                         ? fs::path(options.checkpoint)
                         : fs::path(options.checkpoint).parent_path();
        path = (folder / fmt::format("berth-bench-{}.image", ::getpid())).string();
    }
    ImageFile(const ImageFile&) = delete;
    ImageFile& operator=(const ImageFile&) = delete;
    ~ImageFile() { ::unlink(path.c_str()); }
    std::string path;
};

struct Rates {
    std::vector<double> transfer, whole; // GB/s
    json::object phases;                 // milliseconds of the last one
    void add(const LoadedSet& set) {
        auto bytes = static_cast<double>(set.bytes_read);
        double all_ms = 0;
        for (const auto& [phase, milliseconds] : set.phases) {
            all_ms += milliseconds;
            phases[phase] = milliseconds;
        }
        transfer.push_back(bytes / 1e6 / set.phases.at("read"));
        whole.push_back(bytes / 1e6 / all_ms);
    }
};

// Down to the host and up again, each round from where the one before ended; two copies at most.
Status rounds_through_host(const Options& options, const std::string& image, Rates& down,
                           Rates& up) {
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(options.device));
    BERTH_ASSIGN(std::unique_ptr<Device> host, open_device(kTierDevice));
    BERTH_ASSIGN(LoadedSet held, run_image_load(image, {}, *device, 0, {}, {}));
    for (int round = 0; round < options.rounds_or(5); ++round) {
        BERTH_ASSIGN(LoadedSet copy, copy_set(view_of(held), *device, *host, 0, {}));
        down.add(copy);
        held = LoadedSet();
        BERTH_ASSIGN(held, copy_set(view_of(copy), *host, *device, 0, {}));
        up.add(held);
    }
    return {};
}

} // namespace

Status load_image(const AdminClient&, const Options& options) {
    ImageFile image(options);
    BERTH_ASSIGN(Loaded written, run_loader({"--model", options.checkpoint, "--device",
                                             options.device, "--write-image", image.path}));
    BERTH_TRY(warm_pages({image.path}));
    BERTH_ASSIGN(double floor, copy_rate(options.device));
    Rates warm, down, up;
    json::object facts{{"checkpoint", options.checkpoint}, {"device", options.device}};
    auto facts_with = [&](const Rates& rates) {
        return json::object{{"checkpoint", options.checkpoint},
                            {"device", options.device},
                            {"phases", rates.phases}};
    };
    for (int round = 0; round < options.rounds_or(5); ++round) {
        BERTH_ASSIGN(Loaded loaded,
                     run_loader({"--image", image.path, "--device", options.device}));
        warm.transfer.push_back(loaded.transfer_rate());
        warm.whole.push_back(loaded.wall_rate());
        for (const char* field : {"bytesRead", "filesystem", "reader", "phases"})
            if (const json::value* value = loaded.outcome.if_contains(field))
                facts[field] = *value;
    }
    if (const json::value* phases = written.outcome.if_contains("phases");
        phases != nullptr && phases->is_object())
        facts["writeImageMs"] = real_at(phases->get_object(), "write_image");
    BERTH_TRY(rounds_through_host(options, image.path, down, up));

    const std::string floor_is = "copies from a pinned buffer onto the device, in this run";
    const std::string no_floor = "none: nothing else in this run goes that way";
    const std::string transfer = "from the first byte until all are on the device: pinning of the "
                                 "ring is in it; checksums and sealing are not";
    const std::string in_process = "allocation, copies, checksums, sealing; device opening and "
                                   "process start are not in it";
    auto figure = [&](const char* name, const std::vector<double>& rates, bool is_up,
                      const json::object& of, const std::string& covers) {
        std::vector<double> floors;
        if (is_up)
            floors.push_back(floor);
        return Figure{"load-image",
                      name,
                      rates,
                      floors,
                      is_up ? floor_is : no_floor,
                      "GB/s of the weight set's bytes; " + covers,
                      of,
                      "GB/s"};
    };
    print_figures({figure("image-transfer", warm.transfer, true, facts,
                          "from an image in the page cache; " + transfer),
                   figure("image-whole", warm.whole, true, facts,
                          "the same over all of berth-loader, its start to its end"),
                   figure("host-transfer", up.transfer, true, facts_with(up),
                          "from a copy in host memory; " + transfer),
                   figure("host-whole", up.whole, true, facts_with(up), in_process),
                   figure("to-host-transfer", down.transfer, false, facts_with(down),
                          "from the device to host memory; " + transfer),
                   figure("to-host-whole", down.whole, false, facts_with(down), in_process)},
                  options.json);
    return {};
}

} // namespace berth::cli::bench
