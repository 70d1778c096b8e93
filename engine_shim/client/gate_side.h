// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_shim/client/share_meter.h"
#include "engine_shim/protocol/gate_page.h"
#include "engine_shim/protocol/messages.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/types.h>

namespace berth {

// This instance's side of the gate: it raises or it watches, as the welcome says. A later welcome
// with another page, slot or class moves it over, demand included; one with the same changes
// nothing. Thread-safe; closed() takes no lock.
class GateSide {
  public:
    // Without a descriptor the side stays as it is.
    Status take(const protocol::Welcome& welcome, UniqueFd fd);
    // Tries again for a slot whose last owner was still alive; called now and then.
    void retry();

    void raise();
    void lower();
    // Of the time while this side has demand; lowered by how much it leaves idle (BusyTime).
    void set_spare(uint32_t thousandths);
    uint32_t share_to_give() const; // 0 also without demand
    bool spares_by_targets() const; // that is what was set here
    bool begin_turn();              // see GateRaiser
    void end_turn();

    bool closed() const;
    uint32_t share() const;
    // True when it is open; returns early on wake().
    bool wait(Nanoseconds timeout) const;
    void wake() const;
    // GateWatcher::changes() of the page that is watched now; null: none is. Stays valid as long as
    // this.
    const std::atomic<uint32_t>* changes() const;

  private:
    struct Identity {
        dev_t device = 0;
        ino_t inode = 0;
        bool raises = false;
        uint32_t slot = 0;
        int64_t class_value = 0;
        bool operator==(const Identity&) const = default;
    };
    Status take_raiser();

    mutable std::mutex mutex_; // guards all but watcher_
    Identity identity_;
    bool known_ = false;
    bool slot_missing_ = false;
    UniqueFd fd_;
    GateRaiser raiser_;
    uint32_t demand_ = 0;
    BusyTime busy_;
    uint32_t spare_ = 0;
    // Watchers are kept until the end: a reader may still be in an earlier one.
    std::vector<std::unique_ptr<GateWatcher>> watchers_;
    std::atomic<const GateWatcher*> watcher_{nullptr};
};

} // namespace berth
