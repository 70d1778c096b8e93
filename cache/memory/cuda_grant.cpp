// SPDX-License-Identifier: Apache-2.0
#include "cache/memory/cuda_grant.h"

#include "cache/memory/host_device.h"

#include <fmt/format.h>

namespace berth {

namespace {

class CudaGrant final : public GrantArena {
  public:
    CudaGrant(SharedContext context, VmmReservation reservation, uint64_t step)
        : context_(std::move(context)), reservation_(std::move(reservation)), step_(step) {}
    ~CudaGrant() override { (void)shrink(0); }

    std::byte* data() const override {
        return reinterpret_cast<std::byte*>(reservation_.at()); // NOLINT: a device address
    }
    uint64_t bytes() const override { return bytes_; }
    uint64_t bytes_max() const override { return reservation_.bytes(); }
    uint64_t step_bytes() const override { return step_; }

    Status resize(uint64_t wanted) override {
        if (wanted > reservation_.bytes())
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("a grant of {} bytes cannot be resized to {}",
                                    reservation_.bytes(), wanted));
        uint64_t bytes = round_up(wanted, step_);
        if (bytes > bytes_)
            return grow(bytes);
        return bytes < bytes_ ? shrink(bytes) : Status{};
    }

  private:
    Status grow(uint64_t bytes) {
        uint64_t mapped = bytes_;
        Status status = map_steps(mapped, bytes);
        if (status)
            status =
                reservation_.set_access(bytes_, bytes - bytes_, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (status) {
            bytes_ = bytes;
            return {};
        }
        // Nothing runs on the new steps yet, so they go without a fence.
        for (; mapped > bytes_; mapped -= step_)
            (void)reservation_.unmap(mapped - step_, step_);
        return status;
    }

    // Maps steps from `mapped` up to `bytes`; `mapped` says how far it came.
    Status map_steps(uint64_t& mapped, uint64_t bytes) const {
        while (mapped < bytes) {
            BERTH_ASSIGN(VmmHandle handle, VmmHandle::create(context_, step_, false));
            BERTH_TRY(reservation_.map(mapped, step_, handle));
            mapped += step_;
        }
        return {};
    }

    Status shrink(uint64_t bytes) {
        if (bytes >= bytes_)
            return {};
        BERTH_TRY(context_->synchronize());
        for (; bytes_ > bytes; bytes_ -= step_)
            BERTH_TRY(reservation_.unmap(bytes_ - step_, step_));
        return {};
    }

    SharedContext context_;
    VmmReservation reservation_;
    uint64_t bytes_ = 0;
    uint64_t step_;
};

} // namespace

Result<std::unique_ptr<GrantArena>> create_cuda_grant(SharedContext context, uint64_t bytes_max,
                                                      uint64_t step_bytes) {
    if (bytes_max == 0)
        return fail(ErrorCode::kInvalidArgument, "a grant of at most 0 bytes was asked for");
    BERTH_ASSIGN(VmmReservation reservation,
                 VmmReservation::reserve(context, round_up(bytes_max, step_bytes), 0));
    return std::make_unique<CudaGrant>(std::move(context), std::move(reservation), step_bytes);
}

} // namespace berth
