// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>
#include <utility>

// Named places between two writes, or between a write and the action it announces, where a test may
// end the process to see what a restart makes of it. They are compiled into every build, so that
// what is tested is what is shipped, and cost one load of a null pointer. Nothing in berthd can arm
// them, neither an option nor the environment: only a program that links a hook (a test's) does.
namespace berth {

using FaultHook = void (*)(const char* point);
inline std::atomic<FaultHook> fault_hook{nullptr};

inline void fault_point(const char* name) {
    if (FaultHook hook = fault_hook.load(std::memory_order_relaxed)) [[unlikely]]
        hook(name);
}

// The same with a name that is made by `name` only when somebody listens.
template <typename Name>
    requires requires(Name name) { std::string(name()); }
void fault_point(Name&& name) {
    if (FaultHook hook = fault_hook.load(std::memory_order_relaxed)) [[unlikely]]
        hook(std::string(std::forward<Name>(name)()).c_str());
}

} // namespace berth
