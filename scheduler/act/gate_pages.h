// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/log.h"
#include "engine_shim/protocol/gate_page.h"
#include "scheduler/node/types.h"

#include <map>
#include <optional>
#include <set>

namespace berth {

// Each device's gate page and who has which slot of it. Slot 0 is berthd's own. Each rank has a
// slot (see rank_name.h). A slot stays its instance's for as long as the instance is known, also
// over a restart of berthd (it is in the instance's record), so that a raiser that lives on keeps
// its lock. Thread rule: one thread.
class GatePages {
  public:
    // With the keeper's descriptor, or a new page when there is none.
    Status open(const node::DeviceId& device, UniqueFd kept) {
        if (kept) {
            BERTH_ASSIGN(pages_[device], adopt_gate_page(std::move(kept)));
            return {};
        }
        BERTH_ASSIGN(pages_[device], create_gate_page());
        return {};
    }
    // What lower classes may have of the time while a gate is closed (GatePage.share).
    void set_share(uint32_t share) {
        for (const auto& [device, page] : pages_)
            if (Status set = set_gate_share(page, share); !set)
                log::warn("device={}: {}", device.value, set.error().message);
    }
    const GateFds* find(const node::DeviceId& device) const {
        auto found = pages_.find(device);
        return found == pages_.end() ? nullptr : &found->second;
    }
    const std::map<node::DeviceId, GateFds>& all() const { return pages_; }

    // The instance's slot on that device; a new one if it has none. ResourceExhausted: all taken.
    Result<uint32_t> assign(const node::InstanceName& instance, const node::DeviceId& device) {
        auto at = slots_.find(instance);
        if (at != slots_.end() && at->second.device == device)
            return at->second.slot;
        std::set<uint32_t> taken;
        for (const auto& [name, held] : slots_)
            if (held.device == device)
                taken.insert(held.slot);
        for (uint32_t slot = 1; slot < kGateSlots; ++slot) {
            if (taken.contains(slot))
                continue;
            slots_[instance] = {device, slot};
            return slot;
        }
        return fail(ErrorCode::kResourceExhausted,
                    "every slot of the device's gate page has its raiser", "NoGateSlot");
    }
    void restore(const node::InstanceName& instance, const node::DeviceId& device, uint32_t slot) {
        if (slot > 0 && slot < kGateSlots)
            slots_[instance] = {device, slot};
    }
    void release(const node::InstanceName& instance) { // of all its ranks
        std::erase_if(slots_, [&](const auto& one) {
            return one.first == instance || one.first.value.starts_with(instance.value + "/");
        });
    }
    uint32_t slot_of(const node::InstanceName& instance) const {
        auto found = slots_.find(instance);
        return found == slots_.end() ? 0 : found->second.slot;
    }

  private:
    struct Held {
        node::DeviceId device;
        uint32_t slot = 0;
    };
    std::map<node::DeviceId, GateFds> pages_;
    std::map<node::InstanceName, Held> slots_;
};

} // namespace berth
