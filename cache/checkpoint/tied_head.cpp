// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/tied_head.h"

#include "base/unique_fd.h"
#include "cache/checkpoint/fault.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace berth {

namespace {

constexpr uint64_t kStretchBytes = 4096;
constexpr uint64_t kStretches = 16;

tl::unexpected<Error> differs(const Checkpoint& checkpoint, const CheckpointTensor& head,
                              const CheckpointTensor& embedding, std::string_view found) {
    return fail_fault({"TiedHeadDiffers", checkpoint.files[head.file].name, head.stored.name, found,
                       fmt::format("a copy of '{}', since config.json says tie_word_embeddings",
                                   embedding.stored.name),
                       "set tie_word_embeddings to false in config.json if the head is its own, "
                       "else download the checkpoint again"});
}

Result<UniqueFd> open_file(const CheckpointFile& file) {
    UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!fd)
        return fail_errno(file.path);
    return fd;
}

Result<std::string> read_stretch(int fd, uint64_t offset, uint64_t bytes, const std::string& file) {
    std::string stretch(bytes, '\0');
    size_t done = 0;
    while (done < bytes) {
        ssize_t got =
            ::pread(fd, stretch.data() + done, bytes - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(fmt::format("{}: read at offset {}", file, offset + done));
        if (got == 0)
            return fail_fault({"TruncatedFile", file, "",
                               fmt::format("its end at {}", offset + done),
                               fmt::format("{} bytes more", bytes - done),
                               "the file became shorter while it was read"});
        done += static_cast<size_t>(got);
    }
    return stretch;
}

} // namespace

Status check_tied_head(const Checkpoint& checkpoint, const CheckpointTensor& head,
                       const CheckpointTensor& embedding) {
    if (head.stored.dtype_name != embedding.stored.dtype_name)
        return differs(
            checkpoint, head, embedding,
            fmt::format("{} beside {}", head.stored.dtype_name, embedding.stored.dtype_name));
    const CheckpointFile& head_file = checkpoint.files[head.file];
    const CheckpointFile& embedding_file = checkpoint.files[embedding.file];
    BERTH_ASSIGN(UniqueFd head_fd, open_file(head_file));
    BERTH_ASSIGN(UniqueFd embedding_fd, open_file(embedding_file));
    uint64_t bytes = head.stored.bytes;
    uint64_t length = std::min(bytes, kStretchBytes);
    for (uint64_t index = 0; index < kStretches; ++index) {
        uint64_t at = (bytes - length) / (kStretches - 1) * index;
        if (index == kStretches - 1)
            at = bytes - length;
        BERTH_ASSIGN(std::string own,
                     read_stretch(head_fd.get(), head.stored.offset + at, length, head_file.name));
        BERTH_ASSIGN(std::string copied,
                     read_stretch(embedding_fd.get(), embedding.stored.offset + at, length,
                                  embedding_file.name));
        if (own != copied)
            return differs(checkpoint, head, embedding,
                           fmt::format("other bytes within {}..{}", at, at + length));
    }
    return {};
}

} // namespace berth
