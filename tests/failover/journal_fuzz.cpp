// SPDX-License-Identifier: Apache-2.0
// A successor survives whatever a journal holds: the input is a slot's head and the beginnings of
// its areas, with a connection that has come a few bytes.
#include "base/http/keeping.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using namespace berth;
using namespace berth::http;

constexpr uint64_t kBytes = kJournalPage + 2 * kSlotBytesMin;

std::shared_ptr<Keeping> keeping() {
    UniqueFd journal(::memfd_create("journal", MFD_CLOEXEC));
    if (::ftruncate(journal.get(), kBytes) != 0)
        std::abort();
    auto opened = Keeping::open(std::move(journal), UniqueFd(), UniqueFd());
    if (!opened || !(*opened)->claim(1, std::chrono::seconds(0)))
        std::abort();
    return *opened;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const std::shared_ptr<Keeping> held = keeping();
    static auto* memory = static_cast<std::byte*>(std::aligned_alloc(kJournalPage, kSlotBytesMin));
    SlotLayout layout;
    layout.slot_bytes = kSlotBytesMin;
    std::memset(memory, 0, kSlotBytesMin);
    const size_t head = std::min(size, sizeof(SlotHead));
    std::memcpy(memory, data, head);
    const size_t rest = std::min(size - head, size_t{4096});
    for (const uint64_t at : {layout.in_at(), layout.entries_at(), layout.out_at()})
        std::memcpy(memory + at, data + head, rest);
    KeptConnection kept(held, 0, memory, layout);
    TcpCount count;
    count.taken = size % 7 * 1000;
    count.given = size % 5 * 1000;
    if (!kept.take_over(count))
        return 0;
    size_t read = kept.inbound().size() + kept.unsent().size() + kept.memo().size();
    for (const uint64_t entry : kept.entries())
        read += entry & 1;
    kept.begin_request(std::min<size_t>(kept.inbound().size(), read % 100));
    kept.append(read);
    kept.cover(1, 1);
    (void)kept.begin_write("some text", Phase::kAnswering, false);
    kept.end_request();
    kept.end();
    return 0;
}
