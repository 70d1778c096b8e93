// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/spec.h"
#include "scheduler/store/records.h"

#include <string>
#include <vector>

namespace berth {

// All documents that hold on this node: those of the configuration's files, and over them what was
// applied through the admin interface, in order. Reads files: a few milliseconds, at start and on
// request. Thread rule: one thread.
class PolicyBook {
  public:
    // `config_file` holds the Node document; its spec.policies name further files and folders.
    // `applied` is what the store has kept of earlier applications; one that no longer fits is
    // reported in `warnings`, and left out.
    static Result<PolicyBook> open(const std::string& config_file,
                                   const std::vector<PolicyRecord>& applied,
                                   std::vector<std::string>& warnings);

    const policies::Documents& documents() const { return documents_; }
    const policies::NodeSpec& node() const { return *documents_.node; }

    // Reads the files anew. On failure everything stays as it was.
    Status reload();

    // What applying `text` would make of the documents; nothing changes.
    Result<policies::Documents> preview(const std::string& text, const std::string& file) const;
    // Applies it. Returns what is to be stored and forgotten for it to outlast this process.
    Result<std::vector<StoreWrite>> apply(const std::string& text, const std::string& file);
    // Back to the files alone.
    Result<std::vector<StoreWrite>> forget_applied();

  private:
    struct Applied {
        PolicyRecord record;
        policies::Documents documents;
    };
    static Result<policies::Documents> read_files(const std::string& config_file);
    Result<policies::Documents> merged(const policies::Documents* last = nullptr) const;

    std::string config_file_;
    policies::Documents files_;
    std::vector<Applied> applied_;
    policies::Documents documents_;
    uint64_t next_number_ = 1;
};

} // namespace berth
