// SPDX-License-Identifier: Apache-2.0
// Preloaded into an engine: ends it, as a fault of its own would, for a request with the marker.
// With POISON=work while that is being computed; else as soon as the engine serves and the
// request lies in the journal. One that only stands by lives on.
#include "base/http/journal_format.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace berth::http;

constexpr char kMarker[] = "<<poison>>";
int journal = -1;

// The journal's lock is this process's: so the kernel says.
bool serves(ino_t inode) {
    std::FILE* locks = std::fopen("/proc/locks", "re");
    if (locks == nullptr)
        return false;
    bool found = false;
    char line[256], file[64];
    while (std::fgets(line, sizeof line, locks) != nullptr) {
        long pid = 0;
        if (std::sscanf(line, "%*s POSIX %*s WRITE %ld %63s", &pid, file) != 2)
            continue;
        const char* number = std::strrchr(file, ':');
        found = found || (pid == getpid() && number != nullptr &&
                          std::strtoull(number + 1, nullptr, 10) == inode);
    }
    std::fclose(locks);
    return found;
}

// Only what was ever written is looked through: the journal is sparse.
bool has_marker(off_t at, off_t end) {
    std::vector<char> page(1 << 16);
    while ((at = ::lseek(journal, at, SEEK_DATA)) >= 0 && at < end) {
        const size_t most = std::min<size_t>(page.size(), static_cast<size_t>(end - at));
        const ssize_t got = ::pread(journal, page.data(), most, at);
        if (got <= 0)
            return false;
        if (::memmem(page.data(), static_cast<size_t>(got), kMarker, sizeof kMarker - 1) != nullptr)
            return true;
        at += got;
    }
    return false;
}

bool is_computed() {
    JournalHeader header;
    if (::pread(journal, &header, sizeof header, 0) != sizeof header ||
        header.magic != kJournalMagic)
        return false;
    const SlotLayout layout{header.slot_bytes};
    const uint64_t mine = work_by(static_cast<uint32_t>(::getpid()), Work::kComputed);
    for (uint32_t slot = 0; slot < header.slots; ++slot) {
        const auto at = static_cast<off_t>(kJournalPage + slot * layout.slot_bytes);
        SlotHead head;
        if (::pread(journal, &head, sizeof head, at) != sizeof head)
            return false;
        const off_t in = at + static_cast<off_t>(layout.in_at());
        if (head.serial != 0 && head.work == mine &&
            has_marker(in, in + static_cast<off_t>(layout.in_bytes())))
            return true;
    }
    return false;
}

void* watch(void* nothing) {
    const timespec often = {0, 500'000};
    const char* how = std::getenv("POISON");
    const bool at_work = how != nullptr && std::string(how) == "work";
    struct stat facts{};
    if (::fstat(journal, &facts) != 0)
        return nothing;
    for (;; ::nanosleep(&often, nullptr)) {
        if (!(at_work ? is_computed() : has_marker(0, facts.st_size)) || !serves(facts.st_ino))
            continue;
        std::fputs("poisoned\n", stderr);
        std::abort();
    }
}

// An open file of its own, whose position nobody else moves; it is never closed, as that would drop
// the lock.
__attribute__((constructor)) void begin() {
    const char* names = std::getenv("LISTEN_FDNAMES");
    int fd = 3;
    for (; names != nullptr && std::strncmp(names, "berth-journal", 13) != 0; ++fd) {
        names = std::strchr(names, ':');
        names = names == nullptr ? nullptr : names + 1;
    }
    if (names == nullptr)
        return;
    journal = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
    pthread_t thread{};
    if (journal >= 0)
        (void)::pthread_create(&thread, nullptr, watch, nullptr);
}

} // namespace
