// SPDX-License-Identifier: Apache-2.0
// The actor's part that starts engines: by a fork of the zygote where that is the same as by exec,
// else by exec.
#include "scheduler/act/node_actor.h"

#include "base/hash.h"
#include "base/log.h"

namespace berth {

namespace {

const std::string& device_of(const SpawnOptions& options) {
    static const std::string none;
    const auto found = options.environment.find("BERTH_DEVICE");
    return found == options.environment.end() ? none : found->second;
}

} // namespace

void NodeActor::expect_engines(const policies::Documents& documents) {
    for (const policies::InstanceSpec& instance : documents.instances)
        if (!instance.engine.command.empty() &&
            zygote_.is_program(program_of(instance.engine.command.front(), context_.paths)))
            return zygote_.expect();
}

void NodeActor::start_process(const node::StartProcess& start, const Status& recorded) {
    std::string token = tokens_[start.instance];
    tokens_.erase(start.instance);
    auto failed = [&](Error error) {
        context_.post(node::ProcessStartFailed{start.instance, std::move(error)});
    };
    // Without its record an engine could not be found again after a crash: none is started.
    if (!recorded)
        return failed(recorded.error());
    auto device = context_.environments.find(start.devices.front());
    bool on_gpu = device != context_.environments.end() && device->second.device_kind == "cuda";
    auto options = engine_launch(start, context_.paths, token, on_gpu);
    if (!options)
        return failed(options.error());
    const bool from_disk =
        context_.state().policy.attach.on_mismatch == policies::OnMismatch::kDisk;
    options->environment["BERTH_FALLBACK"] = from_disk ? "disk" : "fail";
    options->environment["BERTH_LOADER"] = context_.paths.program_dir + "/berth-loader";
    Starting starting{start.instance, sha256_hex(token), std::move(*options)};
    if (auto why = zygote_.why_not(starting.options))
        return execute(starting, *why);
    zygote_.fork(starting.options, [this, starting](Result<ZygoteLink::Newborn> born) {
        if (!born)
            return execute(starting, born.error().message);
        auto process = processes_.take(starting.instance, std::move(born->process));
        if (!process)
            return context_.post(node::ProcessStartFailed{starting.instance, process.error()});
        started(starting, *process, {});
        born->let_go(); // from here on it may call, and is known
    });
}

void NodeActor::execute(const Starting& starting, const std::string& why) {
    auto process = processes_.start(starting.instance, starting.options);
    if (!process)
        return context_.post(node::ProcessStartFailed{starting.instance, process.error()});
    started(starting, *process, why);
}

void NodeActor::started(const Starting& starting, const node::ProcessRef& process,
                        std::string why_exec) {
    log::info("started instance={} pid={} device={} command={} how={}{}{}", starting.instance.value,
              process.pid, device_of(starting.options), starting.options.command.front(),
              why_exec.empty() ? "forked" : "exec", why_exec.empty() ? "" : ": ", why_exec);
    context_.starts[starting.instance] = {process, std::move(why_exec)};
    context_.post(node::ProcessStarted{starting.instance, process, starting.token_sha256});
}

} // namespace berth
