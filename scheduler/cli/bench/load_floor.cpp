// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cli/bench/load_floor.h"

#include "base/unique_fd.h"
#include "cache/load/tile_reader.h"
#include "cache/memory/device.h"
#include "scheduler/cli/bench/figures.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

namespace berth::cli::bench {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20;
constexpr uint64_t kSampleBytes = uint64_t{1} << 30; // for each number of streams
constexpr uint64_t kCopyBytes = uint64_t{64} << 20;
constexpr int kCopies = 64;

Result<UniqueFd> open_file(const std::string& path, int flags) {
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
    if (!fd)
        return fail_errno(path);
    return fd;
}

// Pieces of all files in turn, read by `streams` threads; GB/s.
Result<double> read_direct(const std::vector<std::string>& files, int streams, uint64_t& from) {
    struct Piece {
        int fd;
        off_t offset;
    };
    std::vector<UniqueFd> open;
    std::vector<Piece> pieces;
    for (const std::string& path : files) {
        BERTH_ASSIGN(UniqueFd fd, open_file(path, O_RDONLY | O_DIRECT));
        uint64_t size = std::filesystem::file_size(path);
        for (uint64_t at = 0; at + kPieceBytes <= size; at += kPieceBytes)
            pieces.push_back({fd.get(), static_cast<off_t>(at)});
        open.push_back(std::move(fd));
    }
    if (pieces.empty())
        return fail(ErrorCode::kInvalidArgument, "the files are too small to measure a disk with");
    uint64_t count = std::min<uint64_t>(pieces.size(), kSampleBytes / kPieceBytes);
    uint64_t begin = from;
    from = (from + count) % pieces.size(); // the next number of streams reads others
    std::atomic<uint64_t> next = 0, done = 0;
    std::atomic<int> error = 0;
    auto began = Clock::now();
    {
        std::vector<std::jthread> readers;
        for (int stream = 0; stream < streams; ++stream)
            readers.emplace_back([&] {
                PageBuffer buffer(kPieceBytes);
                for (uint64_t index = next++; index < count; index = next++) {
                    const Piece& piece = pieces[(begin + index) % pieces.size()];
                    ssize_t got =
                        ::pread(piece.fd, buffer.bytes().data(), kPieceBytes, piece.offset);
                    if (got < 0)
                        error = errno;
                    else
                        done += static_cast<uint64_t>(got);
                }
            });
    }
    if (error != 0)
        return fail(ErrorCode::kUnsupported,
                    fmt::format("direct reads fail here (errno {})", error.load()));
    return static_cast<double>(done.load()) / 1e6 / milliseconds_since(began);
}

} // namespace

Result<std::vector<std::string>> checkpoint_files(const std::string& folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
        if (entry.path().extension() == ".safetensors")
            files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    if (files.empty())
        return fail(ErrorCode::kNotFound,
                    fmt::format("no safetensors files in '{}': give --checkpoint a model's folder",
                                folder));
    return files;
}

Status drop_pages(const std::vector<std::string>& files) {
    for (const std::string& path : files) {
        BERTH_ASSIGN(UniqueFd fd, open_file(path, O_RDONLY));
        (void)::fdatasync(fd.get()); // pages that are not on disk yet cannot be dropped
        if (int error = ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
            return fail(ErrorCode::kIo, fmt::format("{}: its pages cannot be dropped", path));
    }
    return {};
}

Status warm_pages(const std::vector<std::string>& files) {
    std::vector<std::byte> buffer(kPieceBytes);
    for (const std::string& path : files) {
        BERTH_ASSIGN(UniqueFd fd, open_file(path, O_RDONLY));
        while (true) {
            ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
            if (got < 0)
                return fail_errno(path);
            if (got == 0)
                break;
        }
    }
    return {};
}

Result<DiskRate> direct_read_rate(const std::vector<std::string>& files) {
    DiskRate best;
    uint64_t from = 0;
    for (int streams : {1, 2, 4, 8}) {
        BERTH_ASSIGN(double rate, read_direct(files, streams, from));
        if (rate > best.gb_per_s)
            best = {rate, streams};
    }
    return best;
}

Result<double> copy_rate(const std::string& id) {
    BERTH_ASSIGN(std::unique_ptr<Device> device, open_device(id));
    BERTH_ASSIGN(HostBuffer host, device->create_host_buffer(kCopyBytes * Device::kLanes));
    BERTH_ASSIGN(Mapping target, device->create_device_buffer(kCopyBytes * Device::kLanes));
    auto copy_all = [&](int copies) -> Status {
        for (int copy = 0; copy < copies; ++copy) {
            int lane = copy % Device::kLanes;
            BERTH_TRY(device->wait_lane(lane));
            uint64_t at = static_cast<uint64_t>(lane) * kCopyBytes;
            BERTH_TRY(device->start_copy_to_device(lane, target.data() + at,
                                                   host.mapping.data() + at, kCopyBytes));
        }
        for (int lane = 0; lane < Device::kLanes; ++lane)
            BERTH_TRY(device->wait_lane(lane));
        return {};
    };
    BERTH_TRY(copy_all(Device::kLanes));
    auto began = Clock::now();
    BERTH_TRY(copy_all(kCopies));
    return static_cast<double>(kCopyBytes) * kCopies / 1e6 / milliseconds_since(began);
}

} // namespace berth::cli::bench
