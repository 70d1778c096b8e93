// SPDX-License-Identifier: Apache-2.0
#include "cache/load/uring.h"

#include <linux/io_uring.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace berth {

namespace {

constexpr int kRetriesMax = 1000; // the kernel may put a call off, not for ever

int ring_setup(unsigned entries, io_uring_params& params) {
    return static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params));
}

int ring_enter(int fd, unsigned submit, unsigned wait_for) {
    unsigned flags = wait_for > 0 ? IORING_ENTER_GETEVENTS : 0;
    return static_cast<int>(
        ::syscall(SYS_io_uring_enter, fd, submit, wait_for, flags, nullptr, size_t{0}));
}

// The kernel writes on the other side of these words.
uint32_t load_acquire(uint32_t* word) {
    return std::atomic_ref<uint32_t>(*word).load(std::memory_order_acquire);
}
void store_release(uint32_t* word, uint32_t value) {
    std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
}

std::string_view why_refused(int error_number) {
    switch (error_number) {
    case ENOSYS:
        return "this kernel has none, or a seccomp filter hides it";
    case EPERM:
    case EACCES:
        return "a seccomp filter or the sysctl kernel.io_uring_disabled forbids it";
    case ENOMEM:
        return "no memory may be locked for it; raise RLIMIT_MEMLOCK";
    default:
        return "the kernel refused it";
    }
}

tl::unexpected<Error> refused(int error_number) {
    return fail(Error{
        ErrorCode::kUnsupported,
        fmt::format("io_uring: {} ({})", why_refused(error_number), std::strerror(error_number)),
        "NoIoUring", error_number});
}

} // namespace

Uring::Map::~Map() {
    if (address != nullptr)
        ::munmap(address, bytes);
}

Status Uring::Map::map(int fd, uint64_t offset, size_t length) {
    void* at = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                      static_cast<off_t>(offset));
    if (at == MAP_FAILED)
        return refused(errno);
    address = at;
    bytes = length;
    return {};
}

Result<std::unique_ptr<Uring>> Uring::create(unsigned depth) {
    io_uring_params params{};
    std::unique_ptr<Uring> ring(new Uring());
    ring->fd_.reset(ring_setup(depth, params));
    if (!ring->fd_)
        return refused(errno);
    // Plain reads came with the release that announces this.
    if ((params.features & IORING_FEAT_RW_CUR_POS) == 0)
        return fail(ErrorCode::kUnsupported,
                    "io_uring: this kernel's, from before 5.6, knows no "
                    "plain reads",
                    "NoIoUring");
    size_t submit_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    size_t complete_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    size_t entry_bytes = params.sq_entries * sizeof(io_uring_sqe);
    BERTH_TRY(ring->submissions_.map(ring->fd_.get(), IORING_OFF_SQ_RING, submit_bytes));
    BERTH_TRY(ring->completions_.map(ring->fd_.get(), IORING_OFF_CQ_RING, complete_bytes));
    BERTH_TRY(ring->entries_.map(ring->fd_.get(), IORING_OFF_SQES, entry_bytes));
    // What a forked child inherits must not make the kernel's writes go astray.
    for (Map* map : {&ring->submissions_, &ring->completions_, &ring->entries_})
        ::madvise(map->address, map->bytes, MADV_DONTFORK);
    ring->depth_ = depth;
    ring->submit_tail_ = ring->submissions_.at<uint32_t>(params.sq_off.tail);
    ring->submit_array_ = ring->submissions_.at<uint32_t>(params.sq_off.array);
    ring->submit_mask_ = *ring->submissions_.at<uint32_t>(params.sq_off.ring_mask);
    ring->submit_entries_ = ring->entries_.at<io_uring_sqe>(0);
    ring->complete_head_ = ring->completions_.at<uint32_t>(params.cq_off.head);
    ring->complete_tail_ = ring->completions_.at<uint32_t>(params.cq_off.tail);
    ring->complete_mask_ = *ring->completions_.at<uint32_t>(params.cq_off.ring_mask);
    ring->complete_entries_ = ring->completions_.at<io_uring_cqe>(params.cq_off.cqes);
    return ring;
}

Uring::~Uring() = default;

void Uring::add_read(int fd, uint64_t offset, std::span<std::byte> to, uint64_t tag) {
    uint32_t tail = *submit_tail_; // ours alone to write
    uint32_t index = tail & submit_mask_;
    io_uring_sqe& entry = submit_entries_[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = fd;
    entry.off = offset;
    entry.addr = reinterpret_cast<uint64_t>(to.data());
    entry.len = static_cast<uint32_t>(to.size());
    entry.user_data = tag;
    submit_array_[index] = index;
    store_release(submit_tail_, tail + 1);
    ++queued_;
    ++in_flight_;
}

void Uring::wait() {
    int retries = 0;
    while (in_flight_ > 0 && load_acquire(complete_tail_) == *complete_head_) {
        if (refused_ != 0 && queued_ > 0)
            return; // take() gives those back
        int took = ring_enter(fd_.get(), queued_, 1);
        if (took >= 0) {
            queued_ -= static_cast<unsigned>(took);
        } else if (errno != EINTR &&
                   ((errno != EAGAIN && errno != EBUSY) || ++retries > kRetriesMax)) {
            refused_ = errno;
            // Reads that are under way write to their memory still: they are waited for.
            if (in_flight_ > queued_) {
                pollfd waiting{fd_.get(), POLLIN, 0};
                (void)::poll(&waiting, 1, -1);
            }
        }
    }
}

std::optional<Uring::Completion> Uring::take() {
    uint32_t head = *complete_head_;
    if (head != load_acquire(complete_tail_)) {
        const io_uring_cqe& entry = complete_entries_[head & complete_mask_];
        Completion done{entry.user_data, entry.res};
        store_release(complete_head_, head + 1);
        --in_flight_;
        return done;
    }
    if (refused_ == 0 || queued_ == 0)
        return std::nullopt;
    // The newest that the kernel did not take; it never looks behind the tail.
    uint32_t tail = *submit_tail_ - 1;
    Completion back{submit_entries_[tail & submit_mask_].user_data, -refused_};
    store_release(submit_tail_, tail);
    --queued_;
    --in_flight_;
    return back;
}

} // namespace berth
