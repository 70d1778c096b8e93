// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine_shim/reference/serve/completion_call.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace berth::serve {

// One line of an OpenAI batch input: {"custom_id", "method": "POST", "url", "body"}.
struct BatchItem {
    uint64_t line = 0; // from 1
    std::string custom_id;
    CallKind kind = CallKind::kCompletion;
    std::string body; // JSON, checked when its turn comes
};

// Reads and checks a whole input before anything starts, as OpenAI does when a file is uploaded: a
// malformed line, an unknown url or a custom_id that is there twice refuses the file; the error
// lists the first ten with their line numbers. What is wrong within a body becomes that item's
// answer instead. Empty lines are skipped. At most kBatchBytesMax.
Result<std::vector<BatchItem>> read_batch_input(const std::string& path);
Result<std::vector<BatchItem>> parse_batch_input(std::string_view text, const std::string& path);
inline constexpr size_t kBatchBytesMax = size_t{4} << 30;

// The output of a batch: one line an answer, appended and on disk before it counts. A second writer
// is refused (flock). What an earlier, killed process wrote is read at opening; half a line at its
// end is cut off. Not thread-safe.
class BatchOutput {
  public:
    // AlreadyExists while another process writes it; Corrupt, with the line number, when a whole
    // line of it is no answer or answers a custom_id for the second time.
    static Result<BatchOutput> open(const std::string& path);

    const std::set<std::string>& answered() const { return answered_; }
    // Appends these lines (each with its line end) and waits for the disk. After a failure the file
    // is cut back to what it was, or nothing more can be appended.
    Status append(const std::string& lines);

  private:
    Status read_answers(const std::string& text);

    std::string path_;
    UniqueFd file_;
    uint64_t bytes_ = 0; // known to be whole lines
    bool is_broken_ = false;
    std::set<std::string> answered_;
};

} // namespace berth::serve
