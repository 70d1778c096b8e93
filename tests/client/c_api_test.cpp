// SPDX-License-Identifier: Apache-2.0
// Goal: a C program lives under a berthd through libberth.so alone. Method: the C99 program
// c_engine runs against a scripted berthd; and the library is looked at for stray symbols.
#include "base/process.h"
#include "cache/memory/host_meter.h"
#include "tests/client/fake_daemon.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>

namespace berth {
namespace {

using testing::must;

TEST(CInterface, ACProgramAttachesAndObeys) {
    testing::ScratchFolder folder;
    testing::FakeDaemon daemon(folder.path("berthd.sock"));
    auto device = must(open_device("host-0"));
    SpawnOptions spawn;
    spawn.command = {program_directory() + "/c_engine", daemon.path()};
    Process engine = must(Process::spawn(spawn));

    protocol::Welcome welcome;
    welcome.grant_bytes_max = 4 * device->capabilities().grant_step_bytes;
    EXPECT_EQ(daemon.accept_and_welcome(welcome).instance, "c-engine");
    uint64_t id = daemon.expect<protocol::Attach>().id;
    daemon.send(protocol::Progress{id, "loading", 1, 2});
    daemon.send_set(id, testing::make_set(*device));
    auto state = daemon.expect<protocol::State>();
    EXPECT_EQ(state.state, protocol::EngineState::kReady);
    EXPECT_EQ(state.grant_bytes, device->capabilities().grant_step_bytes);
    const uint64_t step = device->capabilities().grant_step_bytes;
    const auto order = [&](uint64_t number, protocol::CommandKind kind, uint64_t bytes) {
        protocol::Command command;
        command.id = number;
        command.kind = kind;
        command.grant_bytes = bytes;
        daemon.send(command);
        auto done = daemon.expect<protocol::CommandDone>();
        EXPECT_EQ(done.id, number);
        // What it says is what the system says.
        EXPECT_EQ(done.grant_bytes, must(host_usage(engine.id().pid)).grant_bytes);
        return done;
    };
    EXPECT_EQ(order(1, protocol::CommandKind::kGrow, 3 * step).grant_bytes, 3 * step);
    const auto shrunk = order(2, protocol::CommandKind::kShrink, 2 * step);
    EXPECT_EQ(shrunk.grant_bytes, 2 * step);
    EXPECT_EQ(shrunk.host_bytes, 4096U);
    const auto refused = order(3, protocol::CommandKind::kShrink, 0);
    EXPECT_EQ(refused.grant_bytes, 2 * step);
    EXPECT_EQ(refused.error.value().message, "the least is 4096");
    protocol::Command command;
    command.id = 4;
    command.kind = protocol::CommandKind::kOffload;
    command.kv = "Drop";
    daemon.send(command);
    EXPECT_EQ(daemon.expect<protocol::CommandDone>().id, 4U);

    pollfd waiting{engine.pidfd(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 20'000), 1);
    EXPECT_EQ(engine.try_wait(), std::optional<int>(0));
}

TEST(CInterface, TheLibraryShowsItsOwnFunctionsAlone) {
    // It stays open: its C++ runtime keeps a pool for exceptions that nobody could find otherwise.
    void* library = ::dlopen(BERTH_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    EXPECT_NE(::dlsym(library, "berth_connect"), nullptr);
    EXPECT_NE(::dlsym(library, "berth_yield"), nullptr);
    // A C++ symbol that the archive inside surely has.
    EXPECT_EQ(::dlsym(library, "_ZN5berth14default_socketB5cxx11Ev"), nullptr);
}

} // namespace
} // namespace berth
