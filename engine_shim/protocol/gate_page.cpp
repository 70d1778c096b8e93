// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/protocol/gate_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// How nobody misses an opening. A raiser changes its demand first and the generation after it; a
// watcher reads the generation first and the demands after it, then sleeps only while the
// generation is still the one it read. So a lower that the watcher's look missed has changed the
// word it would sleep on, and the sleep returns at once. wake() is the same with a second word
// that is private to the watcher; futex_waitv sleeps on both. Where the kernel lacks it (before
// 5.16, or a filter refuses it) the watcher sleeps on the generation in short slices.
namespace berth {

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(offsetof(GatePage, slots) == 64);

constexpr uint32_t kGateVersion = 1;
constexpr uint32_t kShareMax = 1000;
constexpr Nanoseconds kLookAgain = std::chrono::milliseconds(100);
constexpr Nanoseconds kSlice = std::chrono::milliseconds(2);
constexpr uint64_t kNeverOpen = UINT64_MAX;
// The page may be lowered and raised, never resized: a shorter file would be a SIGBUS for all.
constexpr int kPageSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

uint32_t* word(const std::atomic<uint32_t>& atomic) {
    return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&atomic));
}

uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(now.tv_nsec);
}

struct flock slot_range(uint32_t slot, short type) {
    struct flock range{};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(offsetof(GatePage, slots) + slot * sizeof(GateSlot));
    range.l_len = sizeof(GateSlot);
    return range;
}

Status check_file(int fd) {
    struct stat facts{};
    if (::fstat(fd, &facts) != 0)
        return fail_errno("looking at the gate page");
    if (facts.st_size != kGateBytes)
        return fail(ErrorCode::kCorrupt,
                    fmt::format("the gate page has {} bytes, expected {}: the descriptor is not a "
                                "gate page",
                                facts.st_size, kGateBytes));
    int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return fail(ErrorCode::kCorrupt, "the gate page is not sealed against shrinking");
    return {};
}

Result<GatePage*> map_page(int fd, int protection) {
    void* at = ::mmap(nullptr, kGateBytes, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return fail_errno("mapping the gate page");
    auto* page = static_cast<GatePage*>(at);
    if (page->magic != kGateMagic || page->version != kGateVersion) {
        auto error = fail(ErrorCode::kMismatch,
                          fmt::format("the gate page says magic {:#x}, version {}; expected {:#x}, "
                                      "{}: both sides must be of one release",
                                      page->magic, page->version, kGateMagic, kGateVersion));
        ::munmap(at, kGateBytes);
        return error;
    }
    return page;
}

void unmap_page(const GatePage* page) {
    if (page != nullptr)
        ::munmap(const_cast<GatePage*>(page), kGateBytes);
}

// How many there were.
long wake_sleepers(GatePage* page) {
    return ::syscall(SYS_futex, word(page->generation), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps while `generation` is `seen` and `woken` is 0, until the deadline at the latest.
void sleep_on(const std::atomic<uint32_t>& generation, uint32_t seen,
              const std::atomic<uint32_t>& woken, uint64_t deadline_ns) {
    static std::atomic<bool> has_waitv{true};
    if (has_waitv.load(std::memory_order_relaxed)) {
        futex_waitv words[2] = {};
        words[0].val = seen;
        words[0].uaddr = reinterpret_cast<uintptr_t>(word(generation));
        words[0].flags = FUTEX_32;
        words[1].val = 0;
        words[1].uaddr = reinterpret_cast<uintptr_t>(word(woken));
        words[1].flags = FUTEX_32 | FUTEX_PRIVATE_FLAG;
        timespec until{static_cast<time_t>(deadline_ns / 1'000'000'000U),
                       static_cast<long>(deadline_ns % 1'000'000'000U)};
        if (::syscall(SYS_futex_waitv, words, 2, 0, &until, CLOCK_MONOTONIC) >= 0 ||
            errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT)
            return;
        has_waitv.store(false, std::memory_order_relaxed);
    }
    uint64_t now = now_ns();
    if (now >= deadline_ns)
        return;
    uint64_t slice = std::min(deadline_ns - now, static_cast<uint64_t>(kSlice.count()));
    timespec relative{0, static_cast<long>(slice)};
    ::syscall(SYS_futex, word(generation), FUTEX_WAIT, seen, &relative, nullptr, 0);
}

} // namespace

Result<GateFds> create_gate_page() {
    UniqueFd fd(::memfd_create("berth-gate", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd)
        return fail_errno("memfd_create(berth-gate)");
    if (::fallocate(fd.get(), 0, 0, kGateBytes) != 0)
        return fail_errno("reserving the gate page");
    void* at = ::mmap(nullptr, kGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED)
        return fail_errno("mapping the gate page");
    auto* page = static_cast<GatePage*>(at);
    page->magic = kGateMagic;
    page->version = kGateVersion;
    ::munmap(at, kGateBytes);
    if (::fcntl(fd.get(), F_ADD_SEALS, kPageSeals) != 0)
        return fail_errno("sealing the gate page's size");
    return adopt_gate_page(std::move(fd));
}

Result<GateFds> adopt_gate_page(UniqueFd writable) {
    BERTH_TRY(check_file(writable.get()));
    BERTH_ASSIGN(GatePage * page, map_page(writable.get(), PROT_READ | PROT_WRITE));
    unmap_page(page);
    GateFds fds;
    BERTH_ASSIGN(fds.read_only, writable.reopen(O_RDONLY));
    fds.writable = std::move(writable);
    return fds;
}

Status set_gate_share(const GateFds& fds, uint32_t share) {
    BERTH_ASSIGN(GatePage * page, map_page(fds.writable.get(), PROT_READ | PROT_WRITE));
    page->share.store(share == kShareBySlo ? share : std::min(share, kShareMax));
    unmap_page(page);
    return {};
}

Result<GateRaiser> GateRaiser::open(const UniqueFd& writable, uint32_t slot, int64_t class_value) {
    if (slot >= kGateSlots)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("gate slot {}: the page has slots 0 to {}", slot, kGateSlots - 1));
    BERTH_TRY(check_file(writable.get()));
    GateRaiser raiser;
    // An open file description of its own: the lock lives and dies with this object, whoever else
    // holds the page.
    BERTH_ASSIGN(raiser.lock_fd_, writable.reopen(O_RDWR));
    struct flock range = slot_range(slot, F_WRLCK);
    bool taken = ::fcntl(raiser.lock_fd_.get(), F_OFD_SETLK, &range) != 0;
    if (taken && errno != EAGAIN && errno != EACCES)
        return fail_errno(fmt::format("locking gate slot {}", slot));
    BERTH_ASSIGN(GatePage * page, map_page(raiser.lock_fd_.get(), PROT_READ | PROT_WRITE));
    GateSlot& mine = page->slots[slot];
    if (taken) {
        uint32_t holder = __atomic_load_n(&mine.pid, __ATOMIC_ACQUIRE);
        unmap_page(page);
        return fail(ErrorCode::kAlreadyExists,
                    fmt::format("gate slot {} is held by process {}, which lives", slot, holder));
    }
    // What a dead predecessor left does not count for the newcomer.
    mine.demand.store(0);
    mine.spare.store(0);
    mine.turns.store(Turns::kTaken);
    __atomic_store_n(&mine.class_value, class_value, __ATOMIC_RELEASE);
    __atomic_store_n(&mine.pid, static_cast<uint32_t>(::getpid()), __ATOMIC_RELEASE);
    page->generation.fetch_add(1);
    wake_sleepers(page);
    raiser.page_ = page;
    raiser.slot_ = slot;
    return raiser;
}

GateRaiser::GateRaiser(GateRaiser&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)), slot_(other.slot_),
      lock_fd_(std::move(other.lock_fd_)) {}

GateRaiser& GateRaiser::operator=(GateRaiser&& other) noexcept {
    if (this != &other) {
        GateRaiser old(std::move(*this));
        page_ = std::exchange(other.page_, nullptr);
        slot_ = other.slot_;
        lock_fd_ = std::move(other.lock_fd_);
    }
    return *this;
}

GateRaiser::~GateRaiser() {
    if (page_ == nullptr)
        return;
    page_->slots[slot_].demand.store(0);
    page_->generation.fetch_add(1);
    wake_sleepers(page_);
    unmap_page(page_);
}

void GateRaiser::raise() {
    if (page_ == nullptr)
        return;
    GateSlot& mine = page_->slots[slot_];
    if (mine.demand.fetch_add(1) == 0)
        __atomic_store_n(&mine.raised_at_ns, now_ns(), __ATOMIC_RELEASE);
    page_->generation.fetch_add(1);
}

void GateRaiser::lower() {
    if (page_ == nullptr)
        return;
    GateSlot& mine = page_->slots[slot_];
    uint32_t before = mine.demand.load();
    do {
        if (before == 0)
            return; // lowered more often than raised: the count must not wrap
    } while (!mine.demand.compare_exchange_weak(before, before - 1));
    page_->generation.fetch_add(1);
    if (before == 1)
        wake_sleepers(page_);
}

uint32_t GateRaiser::demand() const {
    return page_ == nullptr ? 0 : page_->slots[slot_].demand.load();
}

void GateRaiser::set_spare(uint32_t thousandths) {
    if (page_ != nullptr)
        page_->slots[slot_].spare.store(std::min(thousandths, kShareMax));
}

uint32_t GateRaiser::share_to_give() const {
    if (page_ == nullptr)
        return 0;
    const uint32_t share = page_->share.load();
    return share == kShareBySlo ? page_->slots[slot_].spare.load() : std::min(share, kShareMax);
}

bool GateRaiser::spares_by_targets() const {
    return page_ != nullptr && page_->share.load() == kShareBySlo;
}

bool GateRaiser::begin_turn() {
    if (page_ == nullptr)
        return false;
    page_->slots[slot_].turns.store(Turns::kUnderWay);
    page_->generation.fetch_add(1);
    if (wake_sleepers(page_) > 0)
        return true;
    end_turn();
    return false;
}

void GateRaiser::end_turn() {
    if (page_ == nullptr)
        return;
    page_->slots[slot_].turns.store(Turns::kGiven);
    page_->generation.fetch_add(1);
}

Result<GateWatcher> GateWatcher::open(const UniqueFd& fd, int64_t class_value) {
    BERTH_TRY(check_file(fd.get()));
    GateWatcher watcher;
    // A description of its own here too: asking about locks through the raiser's would find none.
    BERTH_ASSIGN(watcher.fd_, fd.reopen(O_RDONLY));
    BERTH_ASSIGN(watcher.page_, map_page(watcher.fd_.get(), PROT_READ));
    watcher.class_value_ = class_value;
    watcher.local_ = std::make_unique<Local>();
    watcher.local_->open_at.store(kNeverOpen);
    return watcher;
}

GateWatcher::GateWatcher(GateWatcher&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)), class_value_(other.class_value_),
      fd_(std::move(other.fd_)), local_(std::move(other.local_)) {}

GateWatcher& GateWatcher::operator=(GateWatcher&& other) noexcept {
    if (this != &other) {
        unmap_page(page_);
        page_ = std::exchange(other.page_, nullptr);
        class_value_ = other.class_value_;
        fd_ = std::move(other.fd_);
        local_ = std::move(other.local_);
    }
    return *this;
}

GateWatcher::~GateWatcher() {
    unmap_page(page_);
}

bool GateWatcher::closed() const {
    if (page_ == nullptr)
        return false;
    uint32_t generation = page_->generation.load();
    // Nothing was raised since it was found open: one load instead of one a slot.
    if (local_->open_at.load(std::memory_order_relaxed) == generation)
        return false;
    for (uint32_t slot = 0; slot < kGateSlots; ++slot) {
        const GateSlot& other = page_->slots[slot];
        if (other.demand.load() == 0 || other.turns.load() == Turns::kUnderWay ||
            __atomic_load_n(&other.class_value, __ATOMIC_ACQUIRE) <= class_value_)
            continue;
        struct flock range = slot_range(slot, F_WRLCK);
        // When the question itself fails the raiser gets the benefit of the doubt.
        if (::fcntl(fd_.get(), F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK)
            return true;
    }
    local_->open_at.store(generation, std::memory_order_relaxed);
    return false;
}

uint32_t GateWatcher::share() const {
    if (page_ == nullptr)
        return 0;
    const uint32_t share = page_->share.load();
    if (share == 0)
        return 0;
    uint32_t least = share == kShareBySlo ? kShareMax : std::min(share, kShareMax);
    bool given = false, taken = false; // by clocks, if one raiser at least gives no turns
    for (const GateSlot& other : page_->slots) {
        if (other.demand.load() == 0 ||
            __atomic_load_n(&other.class_value, __ATOMIC_ACQUIRE) <= class_value_)
            continue;
        (other.turns.load() == Turns::kTaken ? taken : given) = true;
        if (share == kShareBySlo)
            least = std::min(least, other.spare.load());
    }
    return given && !taken ? 0 : least;
}

bool GateWatcher::wait(Nanoseconds timeout) const {
    if (page_ == nullptr)
        return true;
    uint64_t start = now_ns();
    uint64_t limit = timeout.count() <= 0 ? 0 : static_cast<uint64_t>(timeout.count());
    uint64_t deadline = limit > UINT64_MAX / 2 - start ? UINT64_MAX / 2 : start + limit;
    for (;;) {
        uint32_t seen = page_->generation.load();
        if (local_->woken.exchange(0) != 0)
            return !closed();
        if (!closed())
            return true;
        uint64_t now = now_ns();
        if (now >= deadline)
            return false;
        auto look_again = now + static_cast<uint64_t>(kLookAgain.count());
        sleep_on(page_->generation, seen, local_->woken, std::min(deadline, look_again));
    }
}

void GateWatcher::wake() const {
    if (local_ == nullptr)
        return;
    local_->woken.store(1);
    ::syscall(SYS_futex, word(local_->woken), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace berth
