// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulate/world.h"

#include "policies/yaml.h"

#include <algorithm>

namespace berth::simulate {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

namespace {

constexpr minutes kSettleTime{75};
constexpr uint64_t kSettleEventsMax = 60'000; // more: it never comes to rest

} // namespace

World::World(const Plan& plan, std::unique_ptr<Records> records)
    : plan_(plan), shape_(draw_shape(plan.seed, plan.without, plan.limits)), stage_(plan.seed),
      records_(records ? std::move(records) : std::make_unique<Records>()), judge_(stage_, shape_),
      daemon_(stage_, shape_, *records_,
              [this](const node::Event& event, const std::vector<node::Action>& actions) {
                  judge_.after_event(event, actions);
                  for (const node::Action& action : actions)
                      reach(action);
              }),
      memory_(stage_), engines_(stage_, shape_, daemon_, memory_),
      loaders_(stage_, shape_, daemon_, memory_), guests_(stage_, daemon_, memory_) {
    stage_.withheld = plan_.withheld;
    stage_.keeps_log = plan_.keeps_log;
    daemon_.use(engines_, loaders_, guests_, memory_);
    join(engines_, loaders_, guests_);
    judge_.use(daemon_, engines_, loaders_);
    daemon_.on_answer = [this](const node::Operation& done) { judge_.answered(done); };
    daemon_.on_start = [this] { judge_.after_start(); };
    for (const Shape::Device& device : shape_.devices)
        stage_.account.add_device(device.id, device.bytes);
    began_ = stage_.now;
}

void World::reach(const node::Action& action) {
    std::set<std::string>& reached = outcome_.reached;
    if (const auto* told = std::get_if<node::EmitEvent>(&action))
        reached.insert(told->reason);
    else if (const auto* command = std::get_if<node::SendCommand>(&action))
        reached.insert("send " + std::string(to_string(command->kind)));
    else if (const auto* load = std::get_if<node::StartLoad>(&action))
        reached.insert("load from " + load->source.value);
    else if (const auto* copy = std::get_if<node::StartCopy>(&action))
        reached.insert("copy from " + copy->source.value + " to " + copy->to.value);
    else if (std::holds_alternative<node::TidyImages>(action))
        reached.insert("tidy images");
    else if (const auto* kept = std::get_if<node::PersistRollout>(&action);
             kept != nullptr && kept->rollout.phase == node::RolloutPhase::kComplete)
        reached.insert("rolled out " + std::to_string(kept->rollout.before.ranks) + " to " +
                       std::to_string(kept->rollout.after.ranks) + " ranks" +
                       (!kept->rollout.is_in_place()         ? ""
                        : kept->rollout.gap > Nanoseconds(0) ? " in place"
                                                             : " at once"));
}

Outcome World::run() {
    policies::Documents copy = shape_.documents;
    if (Status checked = policies::check_documents(copy); !checked)
        stage_.wrong("shape", checked.error().message);
    daemon_.start();
    stage_.after(seconds(60), [this] { tell_time(); });
    storm();
    outcome_.calm_at = stage_.now - began_;
    if (!is_over()) {
        stage_.note("faults cease");
        stage_.faulty = false;
        daemon_.die_no_more();
        engines_.calm_down();
        settle(kSettleTime);
    }
    if (!is_over())
        judge_.when_settled();
    if (!is_over())
        remove_all();
    outcome_.found = stage_.found;
    outcome_.found_at = stage_.now - began_;
    outcome_.events = daemon_.events();
    outcome_.lives = daemon_.lives();
    outcome_.faults = stage_.happened;
    outcome_.log = std::move(stage_.log);
    return std::move(outcome_);
}

void World::tell_time() {
    daemon_.tell_wall_clock();
    stage_.after(seconds(60), [this] { tell_time(); });
}

void World::next_deed() {
    stage_.now = std::max(stage_.now, stage_.calendar.next_at());
    stage_.calendar.take()();
    stage_.check_account();
}

std::optional<Stimulus> World::next_stimulus() {
    if (plan_.script) {
        if (next_ >= plan_.script->size())
            return std::nullopt;
        return (*plan_.script)[next_++];
    }
    Nanoseconds gap{0};
    Stimulus one = draw_stimulus(stage_.dice, next_++, shape_, gap);
    drawn_at_ += gap;
    one.at = drawn_at_;
    return one;
}

void World::storm() {
    waiting_ = next_stimulus();
    const node::TimePoint calm_at =
        plan_.calm_at ? began_ + *plan_.calm_at : node::TimePoint::max();
    while (!is_over()) {
        if (!plan_.calm_at && daemon_.events() >= plan_.events)
            return;
        const node::TimePoint stimulus_at =
            waiting_ ? began_ + waiting_->at : node::TimePoint::max();
        const node::TimePoint next_at = std::min(stimulus_at, stage_.calendar.next_at());
        if (next_at > calm_at) {
            stage_.now = std::max(stage_.now, calm_at);
            return;
        }
        if (stage_.calendar.next_at() <= stimulus_at) {
            next_deed();
            continue;
        }
        stage_.now = std::max(stage_.now, stimulus_at);
        outcome_.script.push_back(*waiting_);
        stage_.note(to_text(*waiting_));
        happen(*waiting_);
        stage_.check_account();
        waiting_ = next_stimulus();
    }
}

void World::settle(Nanoseconds time) {
    const node::TimePoint until = stage_.now + time;
    const uint64_t events = daemon_.events();
    while (!is_over() && stage_.calendar.next_at() <= until) {
        if (daemon_.events() - events > kSettleEventsMax)
            return stage_.wrong("never-settles", std::to_string(kSettleEventsMax) +
                                                     " events after faults have "
                                                     "ceased, and more come");
        next_deed();
    }
    stage_.now = std::max(stage_.now, until);
}

void World::remove_all() {
    stage_.note("all is removed");
    guests_.all_leave();
    policies::Documents none = daemon_.documents();
    none.instances.clear();
    for (policies::ModelSpec& model : none.models)
        model.pin = false;
    daemon_.apply(none);
    settle(minutes(20));
    if (is_over())
        return;
    std::set<node::WeightSetId> sets;
    for (const auto& [place, set] : loaders_.kept())
        sets.insert(place.second);
    for (const auto& [set, file] : loaders_.images())
        sets.insert(set);
    uint64_t number = 0;
    for (const node::WeightSetId& set : sets) {
        daemon_.post(node::WeightsPin{node::OperationId("last-pin-" + std::to_string(++number)),
                                      set, false});
        daemon_.post(node::WeightsEvict{node::OperationId("last-evict-" + std::to_string(number)),
                                        set, false, true});
    }
    settle(minutes(10));
    if (!is_over())
        judge_.when_empty();
}

Outcome simulate(const Plan& plan) {
    return World(plan).run();
}

} // namespace berth::simulate
