// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/start_book.h"

#include "base/hash.h"

#include <utility>

namespace berth {

void StartBook::announce(const node::StartProcess& start) {
    Tokens& tokens = tokens_[start.instance];
    tokens.number = start.number;
    tokens.by_rank.resize(start.ranks);
    for (std::string& token : tokens.by_rank)
        token = random_hex(32);
}

const std::vector<std::string>* StartBook::tokens_of(const node::StartProcess& start) const {
    const auto found = tokens_.find(start.instance);
    return found == tokens_.end() || found->second.number != start.number ? nullptr
                                                                          : &found->second.by_rank;
}

void StartBook::complete(node::InstanceRecovered& kept, const node::Instance& instance) {
    const auto found = tokens_.find(instance.name);
    if (found == tokens_.end() || instance.starts < found->second.number)
        return;
    const bool under_way = instance.process_alive && instance.token_sha256.empty() &&
                           instance.starts == found->second.number;
    if (!under_way) {
        tokens_.erase(found);
        return;
    }
    const std::vector<std::string>& tokens = found->second.by_rank;
    kept.token_sha256 = sha256_hex(tokens.front());
    kept.others.resize(tokens.size() - 1);
    for (size_t rank = 1; rank < tokens.size(); ++rank)
        kept.others[rank - 1] = {{}, sha256_hex(tokens[rank])};
}

void StartBook::forget(const node::InstanceName& instance) {
    tokens_.erase(instance);
    waiting_.erase(instance);
}

void StartBook::wait(const node::StartProcess& start) {
    waiting_.insert_or_assign(start.instance, start);
}

std::optional<node::StartProcess> StartBook::withdraw(const node::InstanceName& instance) {
    auto taken = waiting_.extract(instance);
    return taken ? std::optional(std::move(taken.mapped())) : std::nullopt;
}

std::vector<node::StartProcess> StartBook::take_waiting() {
    std::vector<node::StartProcess> taken;
    for (auto& [name, start] : std::exchange(waiting_, {}))
        taken.push_back(std::move(start));
    return taken;
}

bool is_expected(const node::NodeState& state, const node::InstanceName& instance,
                 uint64_t number) {
    const auto found = state.instances.find(instance);
    return found != state.instances.end() && found->second.process_alive &&
           !found->second.process && found->second.starts == number;
}

bool is_due(const node::NodeState& state, const node::InstanceName& instance, uint64_t number) {
    if (!is_expected(state, instance, number))
        return false;
    const node::Instance& i = state.instances.at(instance);
    return i.state == node::InstanceState::kStarting && i.substate != "Killed";
}

} // namespace berth
