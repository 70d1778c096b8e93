// SPDX-License-Identifier: Apache-2.0
#include "base/http/journal.h"

#include "base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace berth::http {

namespace {

// What is given back costs a system call: dearer than to zero less than this.
constexpr uint64_t kPunchBytesMin = uint64_t{64} << 10;
constexpr int kLockAgainMs = 2;

struct flock whole_file(short kind) {
    struct flock wanted = {};
    wanted.l_type = kind;
    wanted.l_whence = SEEK_SET;
    return wanted;
}

} // namespace

Journal::Journal(UniqueFd memfd, std::byte* base, uint64_t bytes)
    : memfd_(std::move(memfd)), base_(base), bytes_(bytes) {
    const uint64_t room = bytes - kJournalPage;
    slots_ = static_cast<uint32_t>(std::min<uint64_t>(kSlotsMax, room / kSlotBytesMin));
    layout_.slot_bytes = SlotLayout::page_floor(room / slots_);
}

Journal::~Journal() {
    ::munmap(base_, bytes_);
}

Result<std::unique_ptr<Journal>> Journal::open(UniqueFd memfd) {
    struct stat file = {};
    if (::fstat(memfd.get(), &file) != 0)
        return fail_errno("the journal");
    const auto bytes = static_cast<uint64_t>(file.st_size);
    if (!S_ISREG(file.st_mode) || bytes < kJournalPage + kSlotBytesMin)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("the journal has {}; expected a memfd of {} or more",
                                format_bytes(bytes), format_bytes(kJournalPage + kSlotBytesMin)));
    void* base =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memfd.get(), 0);
    if (base == MAP_FAILED)
        return fail_errno("mapping the journal");
    return std::unique_ptr<Journal>(
        new Journal(std::move(memfd), static_cast<std::byte*>(base), bytes));
}

// A lock of the process and not of the open file: all share the one that berthd made. The kernel
// drops it as the last thread closes its files, before a driver has returned device memory.
Status Journal::lock(Nanoseconds patience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
        struct flock wanted = whole_file(F_WRLCK);
        if (::fcntl(memfd_.get(), F_SETLK, &wanted) == 0)
            return {};
        if (errno != EACCES && errno != EAGAIN && errno != EINTR)
            return fail_errno("locking the journal");
        if (std::chrono::steady_clock::now() >= until)
            break;
        (void)::poll(nullptr, 0, kLockAgainMs);
    }
    struct flock holder = whole_file(F_WRLCK);
    const bool known = ::fcntl(memfd_.get(), F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK;
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("process {} serves this socket and has not ended within {}: end it "
                            "before its successor serves",
                            known ? holder.l_pid : 0, format_duration(patience)),
                "Fenced");
}

void Journal::begin_anew() {
    (void)::fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      static_cast<off_t>(bytes_));
    JournalHeader first;
    first.version = kJournalVersion;
    first.slots = slots_;
    first.slot_bytes = layout_.slot_bytes;
    header() = first;
    publish(header().magic, kJournalMagic);
}

Status Journal::claim(uint64_t generation, Nanoseconds patience) {
    if (generation == generation_ && generation != 0)
        return {};
    const bool was_mine = generation_ != 0;
    BERTH_TRY(lock(patience));
    const JournalHeader found = header();
    const bool is_known = found.magic == kJournalMagic && found.version == kJournalVersion &&
                          found.slots == slots_ && found.slot_bytes == layout_.slot_bytes;
    if (is_known && generation <= found.generation) {
        if (!was_mine)
            release();
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("generation {} is to serve, and {} has served: a later one is "
                                "expected",
                                generation, found.generation),
                    "StaleGeneration");
    }
    if (!is_known) {
        if (found.magic != 0)
            log::warn("the journal is no journal of version {} with {} slots: it is begun anew, "
                      "connections that it kept end",
                      kJournalVersion, slots_);
        begin_anew();
    }
    publish(header().generation, generation);
    generation_ = generation;
    if (was_mine)
        return {};
    free_.clear();
    for (uint32_t number = slots_; number > 0; --number)
        free_.push_back(number - 1);
    return {};
}

void Journal::release() {
    struct flock none = whole_file(F_UNLCK);
    (void)::fcntl(memfd_.get(), F_SETLK, &none);
    generation_ = 0;
}

std::string Journal::identity() const {
    const auto& stored = header().identity;
    return {stored.begin(), std::find(stored.begin(), stored.end(), '\0')};
}

void Journal::set_identity(std::string_view identity) {
    std::array<char, kIdentityBytesMax> stored{};
    std::copy_n(identity.begin(), std::min(identity.size(), stored.size()), stored.begin());
    header().identity = stored;
}

uint64_t Journal::serial_of(uint32_t number) const {
    return reinterpret_cast<const SlotHead*>(slot(number))->serial;
}

uint64_t Journal::next_serial() {
    const uint64_t serial = std::max<uint64_t>(header().last_serial + 1, 1);
    publish(header().last_serial, serial);
    return serial;
}

int64_t Journal::take_slot() {
    if (free_.empty())
        return -1;
    const uint32_t number = free_.back();
    free_.pop_back();
    return number;
}

void Journal::keep_only(const std::vector<bool>& used) {
    for (uint32_t number = 0; number < slots_;) {
        const uint32_t first = number;
        while (number < slots_ && !used[number])
            ++number;
        if (number > first)
            wipe(slot(first), (number - first) * layout_.slot_bytes);
        else
            ++number;
    }
    free_.clear();
    for (uint32_t number = slots_; number > 0; --number) {
        if (!used[number - 1])
            free_.push_back(number - 1);
    }
}

void Journal::wipe(std::byte* at, uint64_t bytes) {
    if (bytes < kPunchBytesMin) {
        std::memset(at, 0, bytes);
        return;
    }
    const auto from = static_cast<off_t>(at - base_);
    if (::fallocate(memfd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from,
                    static_cast<off_t>(bytes)) != 0)
        std::memset(at, 0, bytes);
}

} // namespace berth::http
