// SPDX-License-Identifier: Apache-2.0
// What a stimulus does to the node.
#include "scheduler/simulate/world.h"

#include "policies/yaml.h"

#include <algorithm>

namespace berth::simulate {

using std::chrono::milliseconds;
using std::chrono::seconds;

node::OperationId World::ask(const Stimulus& stimulus) {
    node::OperationId id("op" + std::to_string(stimulus.number));
    judge_.asked(id);
    return id;
}

node::WeightSetId World::set_of(const std::string& model) const {
    const policies::ModelSpec* found = shape_.documents.find_model(model);
    return loaders_.set_of(found == nullptr ? model : found->path);
}

void World::happen(const Stimulus& stimulus) {
    if (operators_do(stimulus))
        return;
    programs_do(stimulus);
    node_suffers(stimulus);
}

bool World::operators_do(const Stimulus& s) {
    const node::InstanceName instance(s.object);
    const node::DeviceId device(s.object);
    const bool dry = s.b == 7;
    switch (s.kind) {
    case Stimulus::Kind::kPreempt:
        daemon_.post(node::OperatorPreempt{ask(s), instance, static_cast<policies::Rung>(s.a % 4),
                                           std::nullopt, "", dry});
        return true;
    case Stimulus::Kind::kResume:
        daemon_.post(node::OperatorResume{ask(s), instance, "", dry});
        return true;
    case Stimulus::Kind::kHold:
    case Stimulus::Kind::kRelease:
        daemon_.post(
            node::OperatorHold{ask(s), instance, s.kind == Stimulus::Kind::kHold, "", dry});
        return true;
    case Stimulus::Kind::kDrain:
        daemon_.post(node::OperatorDrain{ask(s), instance, milliseconds(s.a * 5), "", dry});
        return true;
    case Stimulus::Kind::kCordon:
    case Stimulus::Kind::kUncordon:
        daemon_.post(
            node::DeviceCordon{ask(s), device, s.kind == Stimulus::Kind::kCordon, "", dry});
        return true;
    case Stimulus::Kind::kDrainDevice:
        daemon_.post(node::DeviceDrain{ask(s), device, milliseconds(s.a * 5), "", dry});
        return true;
    case Stimulus::Kind::kPromote:
        daemon_.post(node::OperatorPromote{ask(s), node::InstanceName(s.object), "", dry});
        return true;
    case Stimulus::Kind::kRollout:
        roll_out(s);
        return true;
    case Stimulus::Kind::kRolloutAsked: {
        node::OperatorRollout asked;
        asked.operation = ask(s);
        asked.instance = instance;
        asked.verb = static_cast<node::OperatorRollout::Verb>(1 + s.a % 3);
        asked.in_place = s.b == 3;
        asked.dry_run = dry;
        daemon_.post(std::move(asked));
        return true;
    }
    case Stimulus::Kind::kLoad:
        daemon_.post(node::LoadRequested{
            node::ModelName(s.object), "", "auto",
            s.b == 0 ? shape_.devices[s.a % shape_.devices.size()].id : node::DeviceId(), ask(s)});
        return true;
    case Stimulus::Kind::kEvictWeights:
        daemon_.post(node::WeightsEvict{ask(s), set_of(s.object), dry, s.b == 1});
        return true;
    case Stimulus::Kind::kPin:
    case Stimulus::Kind::kUnpin:
        daemon_.post(node::WeightsPin{ask(s), set_of(s.object), s.kind == Stimulus::Kind::kPin});
        return true;
    default:
        return false;
    }
}

void World::programs_do(const Stimulus& s) {
    const node::InstanceName instance(s.object);
    switch (s.kind) {
    case Stimulus::Kind::kEngineDies:
        if (const Engines::Engine* one = engines_.of(instance);
            one != nullptr && one->ranks > 1 && s.b % 2 == 0)
            return engines_.lose_rank(instance, s.a);
        return engines_.die(instance, false, "killed by SIGSEGV");
    case Stimulus::Kind::kProgramExits:
        // An engine with lines left does not end as if it had none.
        if (!shape_.jobs.contains(s.object))
            engines_.die(instance, true, "exit code 0");
        return;
    case Stimulus::Kind::kDisconnects:
        return engines_.disconnect(instance);
    case Stimulus::Kind::kFallsSilent:
        return engines_.fall_silent(instance);
    case Stimulus::Kind::kSticks:
        return engines_.stick(instance);
    case Stimulus::Kind::kArrivals:
        return engines_.arrivals(instance, s.a, s.b == 1);
    case Stimulus::Kind::kGuestTakes:
        return guests_.takes(s.a, set_of(s.object), shape_.devices[s.b % shape_.devices.size()].id);
    case Stimulus::Kind::kGuestLeaves:
        return guests_.leaves(s.a);
    case Stimulus::Kind::kGuestPublishes:
        return guests_.publishes(100 + s.number, node::DeviceId(s.object),
                                 (s.a + 100) * shape_.scale << 20, s.b % 2 == 1);
    case Stimulus::Kind::kCheckpointChanges:
        if (const policies::ModelSpec* model = shape_.documents.find_model(s.object))
            loaders_.checkpoint_changes(model->path);
        return;
    default:
        return;
    }
}

void World::node_suffers(const Stimulus& s) {
    switch (s.kind) {
    case Stimulus::Kind::kDocuments:
        return change_documents(s);
    case Stimulus::Kind::kBerthdKilled:
        return daemon_.kill_in(s.a, milliseconds(s.b));
    case Stimulus::Kind::kKeeperKilled:
        return daemon_.kill_in(s.a, milliseconds(s.b), true);
    case Stimulus::Kind::kBerthdStops:
        daemon_.post(node::Shutdown{});
        stage_.after(milliseconds(100), [this] { daemon_.kill(); });
        return;
    case Stimulus::Kind::kDiskFull:
        return daemon_.disk_fills_up(milliseconds(s.a));
    case Stimulus::Kind::kClockJumps:
        stage_.wall += s.b == 1 ? -seconds(s.a) : seconds(s.a);
        return daemon_.tell_wall_clock();
    case Stimulus::Kind::kLateWords:
        return late_word(s);
    default:
        return;
    }
}

// Documents as an operator would change them; what does not hold together is never applied.
void World::change_documents(const Stimulus& s) {
    if (!daemon_.up())
        return;
    policies::Documents documents = daemon_.documents();
    auto& instances = documents.instances;
    const auto found = std::find_if(instances.begin(), instances.end(),
                                    [&s](const auto& one) { return one.name == s.object; });
    const policies::InstanceSpec* original = shape_.documents.find_instance(s.object);
    const bool is_job = shape_.jobs.contains(s.object);
    const auto model = found == instances.end() ? documents.models.end()
                                                : std::ranges::find(documents.models, found->model,
                                                                    &policies::ModelSpec::name);
    switch (s.a % 7) {
    case 0:
        if (found != instances.end())
            instances.erase(found);
        else if (original != nullptr)
            instances.push_back(*original);
        break;
    case 1:
        if (found != instances.end())
            found->engine.command = {"engine", std::to_string(s.b)};
        break;
    case 2:
        if (found != instances.end())
            found->memory_limit_bytes =
                found->memory_request_bytes + (1 + s.b) * (128ULL << 20) * shape_.scale;
        break;
    case 3:
        documents.policy = draw_policy(stage_.dice.of("policy change", s.number), shape_);
        break;
    case 4:
        if (found != instances.end())
            found->class_name = s.b % 2 == 0 || is_job ? "middle" : "online";
        break;
    case 5:
        if (model != documents.models.end() &&
            shape_.devices.front().kind == shape_.devices.back().kind)
            model->tensor_parallel = model->tensor_parallel == 1 ? 2 : 1;
        break;
    default:
        documents = shape_.documents;
    }
    if (policies::check_documents(documents))
        daemon_.apply(std::move(documents));
}

// A changed document of one instance, complete among all others.
void World::roll_out(const Stimulus& s) {
    policies::Documents documents = daemon_.documents();
    const auto one =
        std::ranges::find(documents.instances, s.object, &policies::InstanceSpec::name);
    if (one == documents.instances.end() || !daemon_.up())
        return;
    const std::string command = std::to_string(s.number);
    switch (shape_.rolls && s.a % 8 > 4 ? 1 : s.a % 8) {
    case 0:
        one->memory_limit_bytes += (1 + s.b) * (128ULL << 20) * shape_.scale;
        break;
    case 1:
        if (!one->model.empty())
            one->model = "m" + std::to_string(s.b % shape_.documents.models.size());
        break;
    case 2:
        if (!one->engine.listen.empty() && one->standby_of.empty())
            one->engine.listen = "127.0.0.1:" + std::to_string(10'000 + s.number % 50'000);
        break;
    default:
        one->engine.command = {"engine", command};
    }
    node::OperatorRollout asked;
    asked.spec = *one;
    if (!policies::check_documents(documents))
        return;
    asked.spec = *documents.find_instance(s.object);
    asked.operation = ask(s);
    asked.instance = node::InstanceName(s.object);
    asked.pause = s.b == 1 || s.b == 2;
    asked.in_place = s.b == 3;
    asked.may_stop = s.b == 4 || s.b == 5;
    asked.dry_run = s.b == 7;
    daemon_.post(std::move(asked));
}

namespace {

bool is_thought_alive(const node::NodeState& state, const node::InstanceName& instance,
                      const node::ProcessRef& process) {
    const auto found = state.instances.find(instance);
    return found != state.instances.end() && found->second.process_alive &&
           (!found->second.process || found->second.process == process);
}

} // namespace

// What has been overtaken and still arrives. All of it must change nothing.
void World::late_word(const Stimulus& s) {
    const node::InstanceName instance(s.object);
    const node::NodeState* state = daemon_.state();
    if (state == nullptr)
        return;
    switch (s.a % 11) {
    case 0:
    case 1:
        // Of one whose end was told already: nothing else is known to have ended.
        if (const node::ProcessRef earlier = engines_.earlier(instance);
            earlier && !engines_.is_alive(earlier) && !is_thought_alive(*state, instance, earlier))
            daemon_.post(node::ProcessExited{instance, earlier, s.b % 2 == 0, "gone", "log"});
        return;
    case 2:
        return daemon_.post(node::CommandDone{
            instance, node::CommandId{1'000'000'000 + s.b}, std::nullopt, 0, 0, 0, 0, {}});
    case 3:
        return daemon_.post(node::DeadlineExpired{node::TimerId{1'000'000'000 + s.b}});
    case 4:
        return daemon_.post(
            node::LoadSealed{node::LoadId{1'000'000'000 + s.b}, "f", set_of("m0"), 1ULL << 30});
    case 5:
        return daemon_.post(node::ImageWritten{node::LoadId{1'000'000'000 + s.b}, 1ULL << 30});
    case 6:
        return daemon_.post(node::LeaseClosed{node::LeaseId{1'000'000'000 + s.b}});
    case 7:
        return daemon_.post(node::LoaderExited{node::LoadId{1'000'000'000 + s.b}, "gone"});
    case 8:
        return daemon_.post(node::BytesConfirmed{instance, 1ULL << 40, {1, 1}});
    default:
        return late_drop(set_of("m" + std::to_string(s.b % 3)), s.a % 11 == 9);
    }
}

// Of one that is there, and is not being dropped.
void World::late_drop(const node::WeightSetId& id, bool failed) {
    for (const Shape::Device& device : shape_.devices) {
        const node::NodeState* state = daemon_.state();
        const node::WeightSet* set =
            state == nullptr ? nullptr : node::find_set(*state, id, device.id);
        if (set == nullptr || set->dropping)
            continue;
        if (failed)
            daemon_.post(node::DropFailed{id, device.id, Error{ErrorCode::kIo, "late", "", 5}});
        else
            daemon_.post(node::WeightsDropped{id, device.id});
    }
}

} // namespace berth::simulate
