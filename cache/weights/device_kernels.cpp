// SPDX-License-Identifier: Apache-2.0
#include "cache/weights/device_kernels.h"

#include "cache/weights/checksum.h"
#include "cache/weights/cpu_kernels.h"
#include "cache/weights/kernel_image.h"
#include "cache/weights/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace berth {

namespace {

// These and the two structs are as device_kernels.cu has them.
constexpr uint32_t kQuantiseThreads = 256;
constexpr uint32_t kHashThreads = 64;
constexpr uint32_t kHashThreadsPerBlock = 4;
constexpr uint64_t kShortBytes = 240;
constexpr uint64_t kHashesPerLaunch = uint64_t{1} << 20; // 64 GiB, about 15 ms; 8 MiB of results

struct KernelJob {
    const std::byte* rows;
    uint64_t pitch;
    uint64_t row_count;
    uint64_t columns;
    std::byte* fp8;
    std::byte* scales;
    std::byte* non_finite;
};
static_assert(sizeof(KernelJob) == 56);

struct KernelExtent {
    const std::byte* data;
    uint64_t bytes;
    uint64_t first_block;
    uint64_t short_slot;
};
static_assert(sizeof(KernelExtent) == 32);

// What hash_blocks() asks for, as the kernel wants it. The last block of an extent may be so short
// that another algorithm applies: its bytes come back to be hashed here.
struct HashPlan {
    struct Short {
        uint64_t block;
        uint64_t bytes;
    };
    std::vector<KernelExtent> extents;
    std::vector<Short> shorts;
    uint64_t blocks = 0;

    explicit HashPlan(std::span<const DeviceExtent> wanted) {
        for (const DeviceExtent& extent : wanted) {
            uint64_t tail = extent.bytes % kChecksumBlockBytes;
            extents.push_back({extent.data, extent.bytes, blocks, shorts.size()});
            blocks += checksum_blocks(extent.bytes);
            if (tail != 0 && tail <= kShortBytes)
                shorts.push_back({blocks - 1, tail});
        }
    }
};

class CudaKernels final : public DeviceKernels {
  public:
    CudaKernels(Device& device, std::unique_ptr<KernelModule> loaded, uint32_t counters)
        : device_(device), module_(std::move(loaded)), counter_count_(counters) {}

    Status prepare() {
        BERTH_ASSIGN(quantise_bf16_, module_->function("berth_quantise_bf16"));
        BERTH_ASSIGN(quantise_f16_, module_->function("berth_quantise_f16"));
        BERTH_ASSIGN(quantise_f32_, module_->function("berth_quantise_f32"));
        BERTH_ASSIGN(hash_, module_->function("berth_hash_blocks"));
        if (counter_count_ == 0)
            return {};
        std::vector<uint64_t> zeros(counter_count_);
        BERTH_ASSIGN(counters_, device_.create_device_buffer(counter_count_ * sizeof(uint64_t)));
        return copy_in(counters_.data(), std::span<const uint64_t>(zeros));
    }

    bool on_device() const override { return true; }
    const std::string& place() const override { return place_; }

    Status start_quantise(int lane, const QuantiseJob& job) override {
        BERTH_TRY(check_job(job, counter_count_));
        uint64_t groups = scale_count(job.row_count, job.columns);
        if (groups == 0)
            return {};
        if (groups > std::numeric_limits<int32_t>::max())
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("{} rows of {} elements are too many for one launch",
                                    job.row_count, job.columns));
        KernelJob argument{job.rows,
                           job.pitch_bytes,
                           job.row_count,
                           job.columns,
                           job.fp8,
                           job.scales,
                           counters_.data() + job.counter * sizeof(uint64_t)};
        KernelModule::Function function = job.from == DType::kBF16  ? quantise_bf16_
                                          : job.from == DType::kF16 ? quantise_f16_
                                                                    : quantise_f32_;
        std::array<void*, 1> arguments{&argument};
        return device_.start_kernel(lane, function, static_cast<uint32_t>(groups), kQuantiseThreads,
                                    arguments);
    }

    Result<std::vector<uint64_t>> non_finite() override {
        std::vector<uint64_t> found(counter_count_);
        BERTH_TRY(device_.synchronize());
        if (!found.empty())
            BERTH_TRY(copy_out(std::span(found), counters_.data()));
        return found;
    }

    Result<std::vector<uint64_t>> hash_blocks(std::span<const DeviceExtent> wanted) override {
        BERTH_TRY(check_extents(wanted));
        HashPlan plan(wanted);
        std::vector<uint64_t> hashes(plan.blocks);
        if (hashes.empty())
            return hashes;
        uint64_t table_bytes = plan.extents.size() * sizeof(KernelExtent);
        uint64_t batch = std::min(plan.blocks, kHashesPerLaunch);
        BERTH_ASSIGN(Mapping table, device_.create_device_buffer(table_bytes));
        BERTH_ASSIGN(Mapping results, device_.create_device_buffer(batch * sizeof(uint64_t)));
        BERTH_ASSIGN(Mapping shorts,
                     device_.create_device_buffer((plan.shorts.size() + 1) * kShortBytes));
        BERTH_TRY(copy_in(table.data(), std::span<const KernelExtent>(plan.extents)));
        for (uint64_t first = 0; first < plan.blocks; first += batch) {
            uint64_t count = std::min(batch, plan.blocks - first);
            BERTH_TRY(start_hashes(table, plan.extents.size(), first, count, results, shorts));
            BERTH_TRY(device_.wait_lane(0));
            BERTH_TRY(copy_out(std::span(hashes).subspan(first, count), results.data()));
        }
        if (!plan.shorts.empty())
            BERTH_TRY(hash_shorts(plan, shorts, hashes));
        return hashes;
    }

  private:
    template <typename T>
    Status copy_in(std::byte* to, std::span<const T> from) {
        return device_.copy_to_device(to, std::as_bytes(from).data(), from.size_bytes());
    }
    template <typename T>
    Status copy_out(std::span<T> to, const std::byte* from) {
        return device_.copy_to_host(std::as_writable_bytes(to).data(), from, to.size_bytes());
    }

    Status start_hashes(const Mapping& table, uint64_t extent_count, uint64_t first, uint64_t count,
                        const Mapping& results, const Mapping& shorts) {
        std::byte* extents_at = table.data();
        std::byte* results_at = results.data();
        std::byte* shorts_at = shorts.data();
        std::array<void*, 6> arguments{static_cast<void*>(&extents_at),
                                       &extent_count,
                                       &first,
                                       &count,
                                       static_cast<void*>(&results_at),
                                       static_cast<void*>(&shorts_at)};
        uint64_t per_group = kHashThreads / kHashThreadsPerBlock;
        return device_.start_kernel(0, hash_,
                                    static_cast<uint32_t>((count + per_group - 1) / per_group),
                                    kHashThreads, arguments);
    }

    Status hash_shorts(const HashPlan& plan, const Mapping& shorts, std::vector<uint64_t>& hashes) {
        std::vector<std::byte> bytes(plan.shorts.size() * kShortBytes);
        BERTH_TRY(copy_out(std::span(bytes), shorts.data()));
        for (size_t slot = 0; slot < plan.shorts.size(); ++slot)
            hashes[plan.shorts[slot].block] =
                hash_block(std::span(bytes).subspan(slot * kShortBytes, plan.shorts[slot].bytes));
        return {};
    }

    Device& device_;
    std::unique_ptr<KernelModule> module_;
    uint64_t counter_count_;
    Mapping counters_;
    KernelModule::Function quantise_bf16_;
    KernelModule::Function quantise_f16_;
    KernelModule::Function quantise_f32_;
    KernelModule::Function hash_;
    std::string place_ = "kernels on the device";
};

Result<std::unique_ptr<DeviceKernels>> on_the_device(Device& device, uint32_t counters) {
    BERTH_ASSIGN(auto loaded, device.load_kernels(kernel_image()));
    auto kernels = std::make_unique<CudaKernels>(device, std::move(loaded), counters);
    BERTH_TRY(kernels->prepare());
    return kernels;
}

} // namespace

Result<std::unique_ptr<DeviceKernels>> DeviceKernels::create(Device& device, uint32_t counters) {
    const DeviceCapabilities& facts = device.capabilities();
    if (facts.cpu_addressable)
        return kernels_in_place(counters);
    if (!facts.runs_kernels)
        return kernels_by_copies(device, counters, "the device runs no kernels");
    if (kernel_image().empty())
        return kernels_by_copies(device, counters,
                                 "this build has no kernels, because no usable nvcc was found when "
                                 "it was configured");
    auto made = on_the_device(device, counters);
    if (!made && made.error().code == ErrorCode::kUnsupported)
        return kernels_by_copies(device, counters, made.error().message);
    return made;
}

std::vector<Checksum> fold_by_extent(std::span<const DeviceExtent> extents,
                                     std::span<const uint64_t> hashes) {
    std::vector<Checksum> checksums;
    for (const DeviceExtent& extent : extents) {
        const uint64_t blocks = checksum_blocks(extent.bytes);
        checksums.push_back(fold_hashes(hashes.first(blocks)));
        hashes = hashes.subspan(blocks);
    }
    return checksums;
}

Result<std::vector<Checksum>> checksums_of(Device& device, std::span<const DeviceExtent> extents) {
    BERTH_ASSIGN(std::unique_ptr<DeviceKernels> kernels, DeviceKernels::create(device, 0));
    BERTH_ASSIGN(std::vector<uint64_t> hashes, kernels->hash_blocks(extents));
    return fold_by_extent(extents, hashes);
}

} // namespace berth
