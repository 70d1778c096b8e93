// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler/node/types.h"
#include "scheduler/simulate/dice.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace berth::simulate {

// What kind of node a seed stands for: its devices, its documents, and what its programs are like.
struct Shape {
    struct Device {
        node::DeviceId id;
        DeviceKind kind = DeviceKind::kHost;
        uint64_t bytes = 0;
    };
    struct Model {
        uint64_t bytes = 0;          // of its weight set
        uint64_t overhead_bytes = 0; // of its loader
    };
    std::vector<Device> devices;
    policies::Documents documents;
    std::map<std::string, Model> models; // by path
    std::set<std::string> jobs;          // instances that have lines to answer, and then end
    size_t drawn = 0;                    // instances, those that are left out included
    uint64_t scale = 1;                  // gigabytes on a GPU for each on a host device
    bool rolls = false; // documents are rolled out all the time, to other numbers of ranks too
};

struct ShapeLimits {
    size_t devices_min = 1, devices_max = 16;
    size_t instances_min = 1, instances_max = 1000;
    // Instances of two classes that do not fit beside each other come and go, and the policy lets a
    // victim give way but once in a while: what is to protect victims is in use all the time.
    bool contested = false;
};

// Mostly small nodes: one or two devices with two to six instances; one seed in forty has up to 16
// devices, one in 200 hundreds of instances; one in six rolls. `without`: instances that are left
// out.
Shape draw_shape(uint64_t seed, const std::set<std::string>& without = {}, ShapeLimits limits = {});

// A policy of that node: what a change of documents may turn to.
policies::PolicySpec draw_policy(Dice dice, const Shape& shape);

} // namespace berth::simulate
