// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/cli/bench/colocate/phase_result.h"

#include <string>
#include <vector>

namespace berth::cli::bench {

// Where a run's results go: JSON lines or a table on stdout, and, if a folder is named, all that
// was measured in files there. Each phase is written as soon as it has ended, so that a run that is
// cut short leaves what it had. One thread.
class Report {
  public:
    // Makes the folder; "": no files.
    static Result<Report> open(std::string folder, bool as_json);

    // A line of its own (the set-up, what was found of batch's answers); `words` say it in a
    // table's notes.
    Status add_line(const json::object& line, const std::string& words);
    // The last of `results` is new.
    Status add_phase(const std::vector<PhaseResult>& results, const json::object& line);
    // The table; nothing with JSON lines.
    void print_table() const;
    const std::string& folder() const { return folder_; }

  private:
    Report(std::string folder, bool as_json) : folder_(std::move(folder)), as_json_(as_json) {}
    Status write_samples(const PhaseResult& result) const;

    std::string folder_;
    bool as_json_;
    std::vector<json::object> phases_;
    std::string notes_;
};

} // namespace berth::cli::bench
