// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/reducer.h"
#include "scheduler/simulate/calendar.h"
#include "scheduler/simulate/device_account.h"
#include "scheduler/simulate/dice.h"

#include <deque>
#include <optional>
#include <set>
#include <string>

namespace berth::simulate {

// Something that must hold and does not. `rule` is one word, by which two runs are compared.
struct Finding {
    std::string rule;
    std::string text;
};

// What all parts of a simulated node share: its time, its chance, its devices, and what was found.
// Outlives them all. One thread.
class Stage {
  public:
    explicit Stage(uint64_t seed) : dice(seed) {}
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    node::TimePoint now{std::chrono::hours(1)};
    Nanoseconds wall{std::chrono::seconds(1'700'000'000)}; // what the wall clock says, less `now`
    std::optional<Nanoseconds> start_time; // of engines, instead of what would be drawn
    uint64_t load_bytes_per_second = 0;    // of loaders; 0: drawn
    Calendar calendar;
    const Dice dice;
    DeviceAccount account;
    bool faulty = true;             // faults may begin
    bool records_lost = false;      // a write failed for good: what was said may be forgotten
    std::set<std::string> withheld; // faults that do not happen (while a failing run is made small)
    std::set<std::string> happened; // faults that did
    std::optional<Finding> found;   // the first one

    void after(Nanoseconds delay, Calendar::Deed deed) {
        calendar.at(now + delay, std::move(deed));
    }
    // Whether that fault happens: drawn from its name alone.
    bool fault(const std::string& name, uint64_t permille) {
        if (!faulty || withheld.contains(name) || !dice.of(name).permille(permille))
            return false;
        happened.insert(name);
        note("fault: " + name);
        return true;
    }
    void wrong(std::string rule, std::string text) {
        if (!found)
            found = Finding{std::move(rule), std::move(text)};
    }
    void check_account() {
        if (auto over = account.overfull())
            wrong("given-twice", *over);
    }
    // The last lines of what happened, for people.
    void note(std::string line) {
        if (!keeps_log)
            return;
        log.push_back(format_duration(now.time_since_epoch() - std::chrono::hours(1)) + "  " +
                      std::move(line));
        if (log.size() > kLogLinesMax)
            log.pop_front();
    }
    bool keeps_log = false;
    std::deque<std::string> log;

  private:
    static constexpr size_t kLogLinesMax = 4000;
};

} // namespace berth::simulate
