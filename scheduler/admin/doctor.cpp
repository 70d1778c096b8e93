// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/doctor.h"

#include "base/process.h"
#include "base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

namespace berth {

namespace {

constexpr uint64_t kDiskBytesMin = uint64_t{256} << 20;
constexpr uint64_t kFilesMin = 4096;

Check check_kernel() {
    utsname system{};
    ::uname(&system);
    bool pidfd = process_id(1).has_value();
    Check check{"kernel", true, fmt::format("{} {}", system.sysname, system.release), ""};
    if (!pidfd) {
        check.ok = false;
        check.message += "; /proc cannot be read";
        check.remedy = "mount /proc without hidepid for berthd's user";
    }
    return check;
}

// Tries what segments rest on: a write-sealed memfd that can still be opened for reading.
Check check_seals() {
    UniqueFd memory(::memfd_create("berth-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    bool sealed =
        memory && ::ftruncate(memory.get(), 4096) == 0 &&
        ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) == 0;
    bool reopened = sealed && memory.reopen(O_RDONLY).has_value();
    if (reopened)
        return {"memfd-seals", true, "memory files can be sealed and reopened read-only", ""};
    return {"memfd-seals", false,
            sealed ? "a sealed memory file cannot be reopened through /proc/self/fd"
                   : "memory files cannot be sealed",
            "use Linux 5.4 or newer with /proc mounted"};
}

// Engines start by exec without it, only slower; one that was looked for and may not be is a fault.
Check check_zygote(const ZygoteLink::Report& zygote) {
    if (zygote.state == "ready") {
        auto memory = read_file(fmt::format("/proc/{}/smaps_rollup", zygote.pid));
        const size_t at = memory ? memory->find("\nPss:") : std::string::npos;
        uint64_t kib = 0;
        if (at != std::string::npos)
            (void)std::sscanf(memory->c_str() + at, "\nPss: %" SCNu64, &kib);
        return {"zygote", true,
                fmt::format("pid {}, {} of memory; {} engines were forked from it and its {} "
                            "predecessors",
                            zygote.pid, format_bytes(kib << 10), zygote.forks, zygote.restarts),
                ""};
    }
    return {"zygote", zygote.state != "unfit", fmt::format("engines start by exec: {}", zygote.why),
            zygote.state != "unfit" ? "" : "see the message, or start berthd with --zygote off"};
}

Check check_keeper(const DoctorInput& input) {
    if (input.is_systemd_keeper)
        return {"keeper", true, "descriptors are kept by systemd", ""};
    if (input.keeper_pid != 0 && process_id(input.keeper_pid))
        return {"keeper", true,
                input.keeper_restarts == 0
                    ? fmt::format("berth-keeper runs, pid {}", input.keeper_pid)
                    : fmt::format("berth-keeper runs, pid {}; it was replaced {} times",
                                  input.keeper_pid, input.keeper_restarts),
                ""};
    return {"keeper", false, "berth-keeper is not running",
            fmt::format("look into {}/berth-keeper.log; until it is back the death of berthd would "
                        "lose the weight sets",
                        input.state_dir)};
}

Check check_files() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= kFilesMin)
        return {"open-files", true, fmt::format("RLIMIT_NOFILE is {}", limit.rlim_cur), ""};
    return {"open-files", false, fmt::format("RLIMIT_NOFILE is {}", limit.rlim_cur),
            fmt::format("raise it to {} or more (LimitNOFILE= in the unit)", kFilesMin)};
}

Check check_disk(const std::string& directory) {
    struct statvfs disk{};
    if (::statvfs(directory.c_str(), &disk) != 0)
        return {"disk", false, fmt::format("{} cannot be looked at", directory),
                "make the folder of spec.stateDir"};
    uint64_t free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
    Check check{"disk", free_bytes >= kDiskBytesMin,
                fmt::format("{} free in {}", format_bytes(free_bytes), directory), ""};
    if (!check.ok)
        check.remedy = "free some space: decisions are written down before they are carried out";
    return check;
}

Check check_mps(const NodeContext::Mps& mps) {
    if (mps.ready)
        return {"mps", true,
                fmt::format("engines share the GPU under CUDA MPS (sharing.compute), its pipes are "
                            "in {}; the death of one can break all others",
                            mps.pipe_directory),
                ""};
    if (mps.wanted)
        return {
            "mps", false,
            fmt::format("sharing.compute is MPS, and {}: the node shares by its gates", mps.why),
            "install nvidia-cuda-mps-control, or set sharing.compute to Gate"};
    const char* pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
    std::string control = fmt::format("{}/control", pipe != nullptr ? pipe : "/tmp/nvidia-mps");
    if (::access(control.c_str(), F_OK) != 0)
        return {
            "mps", true,
            "MPS is off, as it should be: under it the death of one engine can break all others",
            ""};
    return {"mps", false,
            fmt::format("an MPS daemon listens at {}: under MPS the death of one engine can break "
                        "all others",
                        control),
            "stop it: echo quit | nvidia-cuda-mps-control"};
}

std::string names_of(const std::vector<int>& pids) {
    return fmt::format("{}", fmt::join(pids, ", "));
}

void check_gpu(const DoctorInput& input, const DoctorInput::Gpu& gpu, std::vector<Check>& checks) {
    std::string name = "gpu/" + gpu.id;
    auto memory = input.nvml->memory(gpu.id);
    if (!memory) {
        checks.push_back({name, false, memory.error().message, "see nvidia-smi"});
        return;
    }
    std::vector<int> strangers;
    uint64_t process_bytes = 0;
    if (auto processes = input.nvml->processes(gpu.id)) {
        for (const NvmlProcess& one : *processes) {
            process_bytes += one.used_bytes.value_or(0);
            if (std::ranges::find(gpu.known_pids, one.pid) == gpu.known_pids.end())
                strangers.push_back(one.pid);
        }
    }
    Check check{name, strangers.empty(),
                fmt::format("the driver counts {} in use ({} by processes), the ledger {}",
                            format_bytes(memory->used_bytes), format_bytes(process_bytes),
                            format_bytes(gpu.ledger_bytes)),
                ""};
    if (!strangers.empty()) {
        check.message += fmt::format("; processes {} are not this node's", names_of(strangers));
        check.remedy = "end them, or raise memory.deviceReserve by what they use";
    }
    checks.push_back(std::move(check));
}

} // namespace

DoctorInput doctor_input(const NodeContext& context, const KeeperLink& keeper,
                         const ZygoteLink& zygote) {
    DoctorInput input;
    input.state_dir = context.paths.state_dir;
    input.runtime_dir = context.paths.runtime_dir;
    input.is_systemd_keeper = keeper.is_systemd();
    input.keeper_pid = keeper.pid();
    input.keeper_restarts = keeper.restarts();
    input.zygote = zygote.report();
    input.mps = context.mps;
    if (context.loop->store_error())
        input.store_error = context.loop->store_error()->message;
    input.broken_invariants = node::check_invariants(context.state());
    input.nvml = context.nvml;
    input.nvml_absent = context.nvml_absent;
    for (const auto& [id, device] : context.state().devices) {
        if (device.kind != DeviceKind::kCuda)
            continue;
        DoctorInput::Gpu gpu;
        gpu.id = id.value;
        gpu.ledger_bytes = node::usage(context.state(), id).used_bytes();
        for (const auto& [name, instance] : context.state().instances)
            if (instance.process.pid != 0)
                gpu.known_pids.push_back(instance.process.pid);
        input.gpus.push_back(std::move(gpu));
    }
    return input;
}

std::vector<Check> examine(const DoctorInput& input) {
    std::vector<Check> checks = {check_kernel(),      check_seals(),
                                 check_keeper(input), check_zygote(input.zygote),
                                 check_files(),       check_disk(input.state_dir)};
    if (input.store_error.empty())
        checks.push_back({"database", true, "what is decided is written down", ""});
    else
        checks.push_back({"database", false, input.store_error, "see the message"});
    if (input.broken_invariants.empty())
        checks.push_back({"ledger", true, "all that must hold holds", ""});
    else
        checks.push_back({"ledger", false,
                          fmt::format("{}", fmt::join(input.broken_invariants, "; ")),
                          "this is a fault of berthd: please report it with `berth events`"});
    if (input.nvml == nullptr) {
        checks.push_back({"nvidia-driver", input.gpus.empty(),
                          fmt::format("no NVIDIA driver: {}", input.nvml_absent), ""});
    } else {
        checks.push_back({"nvidia-driver", true,
                          fmt::format("driver {}, CUDA {}", input.nvml->driver_version(),
                                      input.nvml->cuda_version()),
                          ""});
        for (const DoctorInput::Gpu& gpu : input.gpus)
            check_gpu(input, gpu, checks);
        checks.push_back(check_mps(input.mps));
    }
    return checks;
}

} // namespace berth
