// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "policies/spec.h"
#include "policies/yaml.h"
#include "scheduler/store/records.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth {

// All documents that hold on this node: those of the configuration's files, and over them what was
// applied through the admin interface, in order. A change is prepared, stored by the caller, and
// then committed: what was never stored never holds.
//
// Thread rule: one thread; but a copy is cheap (it shares what does not change), and prepare...()
// on a copy may run on any other, as it should: a thousand documents take a fifth of a second, and
// prepare_reload() reads files.
class PolicyBook {
  public:
    // `config_file` holds the Node document; its spec.policies name further files and folders.
    // `applied` is what the store has kept of earlier applications; one that no longer fits is
    // reported in `warnings`, and left out.
    static Result<PolicyBook> open(const std::string& config_file,
                                   const std::vector<PolicyRecord>& applied,
                                   std::vector<std::string>& warnings);

    const policies::Documents& documents() const { return now_->documents; }
    const policies::NodeSpec& node() const { return *now_->documents.node; }
    // The effective YAML of all documents, and the ETag that stands for it.
    const std::string& effective() const { return now_->effective; }
    const std::string& tag() const { return now_->tag; }
    const std::map<std::string, std::string>& instance_tags() const { return now_->instance_tags; }

    // Documents that the files have otherwise than what was applied over them ("Instance/chat"):
    // a change of these in the files shows nothing until the applied ones are forgotten.
    std::vector<std::string> hidden() const;

    struct Applied {
        PolicyRecord record;
        policies::Documents documents;
    };
    // What the book says at one time. Never changes.
    struct Page {
        policies::Documents files;
        std::vector<Applied> applied;
        policies::Documents documents;
        std::string effective, tag;
        std::map<std::string, std::string> instance_tags; // of each one's document
        uint64_t next_number = 1;
    };
    using PagePtr = std::shared_ptr<const Page>;
    // A change that is ready. `writes` make it outlast this process, `undo` takes them back.
    struct Change {
        PagePtr before, after;
        std::vector<StoreWrite> writes;
        std::vector<StoreWrite> undo;
        bool of_files = false;
    };
    // Reads the files anew; nothing changes yet.
    Result<Change> prepare_reload() const;
    // Applies the texts, all or none of them; nothing changes yet.
    Result<Change> prepare(const std::vector<policies::SourceText>& texts) const;
    // Takes an instance out of what was applied. NotFound; FailedPrecondition `DefinedInFile`: the
    // files have it, and what they say comes back with each reading of them.
    Result<Change> prepare_without(const std::string& instance) const;
    // Back to the files alone.
    Result<Change> prepare_files_alone() const;
    // From now on it holds. Fails, and changes nothing, if another change was committed in the
    // meantime (of the files, while this one is not; or the other way round) and the two do not go
    // together.
    Status commit(const Change& change);

  private:
    static Result<PagePtr> page_of(policies::Documents files, std::vector<Applied> applied,
                                   uint64_t next_number);
    Result<Change> change_to(std::vector<Applied> applied) const;

    std::string config_file_;
    PagePtr now_;
};

} // namespace berth
