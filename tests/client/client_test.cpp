// SPDX-License-Identifier: Apache-2.0
// Goal: an engine keeps mapping, grant and pause whatever berthd does. Method: a real Client
// against a scripted berthd on a socket of the test's own.
#include "engine_shim/client/client.h"
#include "tests/client/fake_daemon.h"

#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <future>
#include <map>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

using namespace std::chrono_literals;
using protocol::CommandDone;
using protocol::CommandKind;
using testing::FakeDaemon;
using ::testing::HasSubstr;
using testing::must;

class ClientTest : public ::testing::Test {
  protected:
    ClientOptions options(bool guest = false) const {
        ClientOptions given;
        given.socket = daemon_.path();
        given.model_path = "/models/tiny";
        if (!guest) {
            given.instance = "nightly-0";
            given.token = "secret";
        }
        given.device = "host-0";
        return given;
    }
    void connect(protocol::Welcome welcome = {}) {
        auto connecting =
            std::async(std::launch::async, [&] { return Client::connect(options()); });
        hello_ = daemon_.accept_and_welcome(std::move(welcome));
        client_ = must(connecting.get());
    }
    // A class that raises the gate; targets in microseconds, 0: none.
    static protocol::Welcome online(uint64_t slo_ttft_us = 0, uint64_t slo_tpot_us = 0) {
        protocol::Welcome welcome;
        welcome.class_value = 1000;
        welcome.raises_gate = true;
        welcome.gate_slot = 2;
        welcome.slo_ttft_us = slo_ttft_us;
        welcome.slo_tpot_us = slo_tpot_us;
        return welcome;
    }
    WeightSet attach(const testing::SealedSet& set) {
        auto attaching = std::async(std::launch::async, [&] { return client_->attach({}); });
        daemon_.send_set(daemon_.expect<protocol::Attach>().id, set);
        return must(attaching.get());
    }
    void command(uint64_t id, CommandKind kind) {
        protocol::Command command;
        command.id = id;
        command.kind = kind;
        daemon_.send(command);
    }
    protocol::Command next() {
        const auto until = std::chrono::steady_clock::now() + 20s; // a wait ends early at any news
        while (std::chrono::steady_clock::now() < until) {
            if (auto command = client_->next_command())
                return *command;
            client_->wait(100ms);
        }
        throw std::runtime_error("no command came");
    }
    void complete(const protocol::Command& command) {
        CommandDone done;
        done.id = command.id;
        client_->complete(done);
    }
    void wait_until(const std::function<bool()>& holds) {
        const auto until = std::chrono::steady_clock::now() + 20s;
        while (!holds() && std::chrono::steady_clock::now() < until)
            client_->wait(10ms);
        ASSERT_TRUE(holds());
    }

    testing::ScratchFolder folder_;
    FakeDaemon daemon_{folder_.path("berthd.sock")};
    std::unique_ptr<Device> device_ = must(open_device("host-0"));
    std::unique_ptr<Client> client_;
    protocol::Hello hello_;
};

TEST_F(ClientTest, HelloPresentsInstanceTokenAndProcess) {
    connect();
    EXPECT_EQ(hello_.instance, "nightly-0");
    EXPECT_EQ(hello_.token, "secret");
    EXPECT_EQ(hello_.pid, ::getpid());
    EXPECT_EQ(hello_.state, "");
    EXPECT_EQ(client_->welcome().instance, "nightly-0");
}

TEST_F(ClientTest, AttachMapsTheSetAndFillsTheEnvironmentFromTheDevice) {
    connect();
    std::vector<std::string> phases;
    auto attaching = std::async(std::launch::async, [&] {
        return client_->attach({}, [&](const protocol::Progress& p) { phases.push_back(p.phase); });
    });
    auto asked = daemon_.expect<protocol::Attach>();
    EXPECT_EQ(asked.environment.device_kind, "host");
    EXPECT_EQ(asked.environment.layout, "berth-1");
    EXPECT_EQ(asked.environment.torch_version, "any");
    EXPECT_EQ(asked.device, "host-0");
    daemon_.send(protocol::Progress{asked.id, "loading", 1, 2});
    daemon_.send_set(asked.id, testing::make_set(*device_));
    WeightSet weights = must(attaching.get());
    EXPECT_EQ(phases, std::vector<std::string>{"loading"});
    EXPECT_EQ(weights.id(), std::string(16, 'a'));
    auto tensor = must(weights.find("a.weight"));
    const auto* numbers = reinterpret_cast<const float*>(weights.address(tensor));
    for (int i = 0; i < 6; ++i)
        EXPECT_EQ(numbers[i], static_cast<float>(i));
    auto missing = weights.find("a.weigth");
    ASSERT_FALSE(missing);
    EXPECT_THAT(missing.error().message, HasSubstr("nearest is 'a.weight'"));
}

TEST_F(ClientTest, WeightsOutliveClientAndDaemonAndAreMappedOnce) {
    connect();
    testing::SealedSet set = testing::make_set(*device_);
    WeightSet first = attach(set);
    WeightSet second = attach(set);
    auto tensor = must(first.find("b.bias"));
    EXPECT_EQ(first.address(tensor), second.address(tensor));
    client_.reset();
    daemon_.die();
    set = {};
    EXPECT_EQ(reinterpret_cast<const uint16_t*>(second.address(tensor))[1], 0x4000);
}

TEST_F(ClientTest, AWriteThroughTheMappingKillsTheWriterAlone) {
    connect();
    WeightSet weights = attach(testing::make_set(*device_));
    auto* bytes = const_cast<std::byte*>(weights.address(must(weights.find("a.weight"))));
    pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGSEGV, SIG_DFL);
        *reinterpret_cast<volatile std::byte*>(bytes) = std::byte{1};
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_EQ(WTERMSIG(status), SIGSEGV);
    EXPECT_EQ(bytes[0], std::byte{0});
}

TEST_F(ClientTest, ARefusedAttachSaysWhatTheDaemonSaid) {
    connect();
    auto attaching = std::async(std::launch::async, [&] { return client_->attach({}); });
    auto asked = daemon_.expect<protocol::Attach>();
    daemon_.refuse(asked.id, {ErrorCode::kMismatch, "cuda_version: 13.0 here, 12.8 there", "", 0});
    auto refused = attaching.get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(refused.error().message, HasSubstr("cuda_version: 13.0 here, 12.8 there"));
}

TEST_F(ClientTest, AManifestOfAnotherSetIsNotMapped) {
    connect();
    auto attaching = std::async(std::launch::async, [&] { return client_->attach({}); });
    testing::SealedSet set = testing::make_set(*device_);
    set.fingerprint = std::string(64, 'b');
    daemon_.send_set(daemon_.expect<protocol::Attach>().id, set);
    auto refused = attaching.get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
}

TEST_F(ClientTest, AReconnectPresentsTokenGrantStateAndEndpoint) {
    protocol::Welcome welcome;
    welcome.grant_bytes_max = 1 << 20;
    connect(welcome);
    WeightSet weights = attach(testing::make_set(*device_));
    auto grant = must(client_->create_grant(0));
    must(grant->resize(1 << 16));
    grant->data()[0] = std::byte{7};
    client_->counters().grant_bytes = grant->bytes();
    client_->set_state(protocol::EngineState::kReady, "http://127.0.0.1:8000");
    EXPECT_EQ(daemon_.expect<protocol::State>().endpoint, "http://127.0.0.1:8000");
    command(5, CommandKind::kPause);
    complete(next());
    EXPECT_EQ(daemon_.expect<CommandDone>().id, 5U);

    daemon_.die();
    std::this_thread::yield();
    daemon_.listen();
    protocol::Hello again = daemon_.accept_and_welcome(welcome);
    EXPECT_EQ(again.instance, "nightly-0");
    EXPECT_EQ(again.token, "secret");
    EXPECT_EQ(again.grant_bytes, grant->bytes());
    EXPECT_EQ(again.state, "Ready");
    EXPECT_EQ(again.endpoint, "http://127.0.0.1:8000");
    EXPECT_EQ(again.held, "Paused");
    const auto mapped = daemon_.expect<protocol::PrivateLoad>();
    EXPECT_TRUE(mapped.shared && mapped.held) << "its lease ended with the connection";
    EXPECT_EQ(mapped.fingerprint, weights.fingerprint());
    EXPECT_EQ(mapped.device, "host-0");
    EXPECT_FALSE(mapped.segment_bytes.empty());
    EXPECT_EQ(daemon_.expect<protocol::State>().held, "Paused");
    EXPECT_TRUE(client_->paused());
    EXPECT_EQ(grant->data()[0], std::byte{7});
}

TEST_F(ClientTest, ASetIsSaidToBeMappedOnceHoweverOftenItIsAndNoLongerOnceItIsNot) {
    connect();
    const testing::SealedSet set = testing::make_set(*device_);
    auto first = std::make_unique<WeightSet>(attach(set));
    auto second = std::make_unique<WeightSet>(attach(set));
    client_->set_state(protocol::EngineState::kReady);
    (void)daemon_.expect<protocol::State>();
    first.reset();
    auto come_back = [this] {
        daemon_.die();
        daemon_.listen();
        daemon_.accept_and_welcome();
    };
    come_back();
    EXPECT_TRUE(daemon_.expect<protocol::PrivateLoad>().shared);
    (void)daemon_.expect<protocol::State>(); // expect() takes nothing in between
    second.reset();
    come_back();
    (void)daemon_.expect<protocol::State>();
}

TEST_F(ClientTest, AnAttachThatLosesItsDaemonIsAskedAgain) {
    connect();
    auto attaching = std::async(std::launch::async, [&] { return client_->attach({}); });
    (void)daemon_.expect<protocol::Attach>();
    daemon_.hang_up();
    daemon_.accept_and_welcome();
    daemon_.send_set(daemon_.expect<protocol::Attach>().id, testing::make_set(*device_));
    EXPECT_TRUE(attaching.get());
}

TEST_F(ClientTest, ACommandOfADeadDaemonIsForgottenAndItsAnswerBecomesAState) {
    connect();
    client_->set_state(protocol::EngineState::kReady, "");
    (void)daemon_.expect<protocol::State>();
    command(1, CommandKind::kOffload);
    protocol::Command offload = next();
    command(2, CommandKind::kStop);
    wait_until([&] { return client_->must_yield(); });
    daemon_.hang_up();
    daemon_.accept_and_welcome();
    EXPECT_EQ(daemon_.expect<protocol::State>().held, "");
    wait_until([&] { return !client_->must_yield(); });
    complete(offload);
    EXPECT_EQ(daemon_.expect<protocol::State>().held, "Offloaded");
}

TEST_F(ClientTest, ARefusedInstanceServesOnAndASecondConnectFailsWithTheReason) {
    connect();
    WeightSet weights = attach(testing::make_set(*device_));
    daemon_.hang_up();
    protocol::Hello hello = daemon_.accept_hello();
    daemon_.refuse(hello.id,
                   {ErrorCode::kPermissionDenied, "instance nightly-0 is not known", "", 0});
    EXPECT_EQ(weights.manifest().size(), 3U);
    EXPECT_FALSE(client_->must_yield());

    auto connecting = std::async(std::launch::async, [&] { return Client::connect(options()); });
    hello = daemon_.accept_hello();
    daemon_.refuse(hello.id, {ErrorCode::kPermissionDenied, "wrong token", "", 0});
    auto refused = connecting.get();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
    EXPECT_EQ(refused.error().message, "wrong token");
}

TEST_F(ClientTest, WithoutADaemonALoaderThatDiesIsReportedWithItsEnd) {
    ClientOptions given = options(true);
    given.mode = AttachMode::kOff;
    auto client = must(Client::connect(given));
    EXPECT_EQ(client->welcome().device, "host-0");
    ::setenv("BERTH_LOADER", "/bin/false", 1);
    auto died = client->attach({});
    ASSERT_FALSE(died);
    EXPECT_THAT(died.error().message, HasSubstr("exit code 1"));
    ::setenv("BERTH_LOADER", "/nowhere/berth-loader", 1);
    auto absent = client->attach({});
    ::unsetenv("BERTH_LOADER");
    ASSERT_FALSE(absent);
    EXPECT_THAT(absent.error().message, HasSubstr("/nowhere/berth-loader"));
    AttachRequest by_name;
    by_name.model = "smollm2";
    EXPECT_EQ(client->attach(by_name).error().code, ErrorCode::kInvalidArgument);
}

// BERTH_TEST_MODEL names a checkpoint's folder; the loader must be built beside this program's bin.
TEST_F(ClientTest, WithoutADaemonTheRealLoaderGivesItsSegments) {
    const char* model = std::getenv("BERTH_TEST_MODEL");
    const char* folder = std::getenv("BERTH_BIN_DIR");
    if (model == nullptr || folder == nullptr)
        GTEST_SKIP() << "BERTH_TEST_MODEL or BERTH_BIN_DIR is not set";
    ClientOptions given = options(true);
    given.mode = AttachMode::kOff;
    given.model_path = model;
    ::setenv("BERTH_LOADER", (std::string(folder) + "/berth-loader").c_str(), 1);
    auto client = must(Client::connect(given));
    WeightSet weights = must(client->attach({}));
    ::unsetenv("BERTH_LOADER");
    EXPECT_GT(weights.manifest().size(), 0U);
    for (size_t i = 0; i < weights.manifest().size(); ++i) {
        TensorView tensor = weights.manifest().at(i);
        Checksum found = checksum_of({weights.address(tensor), tensor.bytes});
        EXPECT_EQ(found, tensor.checksum) << tensor.name;
    }
}

TEST_F(ClientTest, AGuestWithoutADaemonIsToldSoAtOnce) {
    daemon_.die();
    auto begun = std::chrono::steady_clock::now();
    auto refused = Client::connect(options(true));
    ASSERT_FALSE(refused);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
    EXPECT_THAT(refused.error().message, HasSubstr("no berthd listens"));
}

TEST_F(ClientTest, DaemonModeNeedsAConfiguration) {
    daemon_.die();
    ::unsetenv("BERTH_CONFIG");
    ClientOptions given = options(true);
    given.mode = AttachMode::kDaemon;
    given.fallback = Fallback::kFail;
    auto refused = Client::connect(given);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("BERTH_CONFIG"));
}

TEST_F(ClientTest, APauseIsCompletedInYieldAndResumeEndsIt) {
    connect();
    command(1, CommandKind::kPause);
    wait_until([&] { return client_->must_yield(); });
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    EXPECT_EQ(daemon_.expect<CommandDone>().id, 1U);
    EXPECT_TRUE(client_->paused());
    EXPECT_TRUE(client_->must_yield());
    EXPECT_EQ(yielding.wait_for(50ms), std::future_status::timeout);
    command(2, CommandKind::kResume);
    EXPECT_EQ(daemon_.expect<CommandDone>().id, 2U);
    EXPECT_TRUE(yielding.get());
    EXPECT_FALSE(client_->paused());
    EXPECT_FALSE(client_->must_yield());
}

TEST_F(ClientTest, AnOffloadDuringYieldGivesTheStepUpAndRestoreEndsThePause) {
    connect();
    command(1, CommandKind::kPause);
    wait_until([&] { return client_->must_yield(); });
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    (void)daemon_.expect<CommandDone>();
    command(2, CommandKind::kOffload);
    EXPECT_FALSE(yielding.get());
    protocol::Command offload = next();
    EXPECT_EQ(offload.kind, CommandKind::kOffload);
    complete(offload);
    EXPECT_EQ(daemon_.expect<CommandDone>().id, 2U);
    EXPECT_TRUE(client_->paused());
    command(3, CommandKind::kRestore);
    complete(next());
    EXPECT_FALSE(client_->paused());
}

TEST_F(ClientTest, AnIdleLoopGetsPauseAsACommand) {
    connect();
    command(1, CommandKind::kPause);
    protocol::Command pause = next();
    EXPECT_EQ(pause.kind, CommandKind::kPause);
    EXPECT_FALSE(client_->paused());
    complete(pause);
    EXPECT_TRUE(client_->paused());
}

TEST_F(ClientTest, AFailedPauseDoesNotHold) {
    connect();
    command(1, CommandKind::kPause);
    CommandDone done;
    done.id = next().id;
    done.error = Error{ErrorCode::kInternal, "no", "", 0};
    client_->complete(done);
    EXPECT_FALSE(client_->paused());
}

TEST_F(ClientTest, TheGateClosesAndOpensWithoutTheDaemon) {
    protocol::Welcome welcome;
    welcome.class_value = 10;
    connect(welcome);
    EXPECT_FALSE(client_->must_yield());
    auto raiser = must(GateRaiser::open(daemon_.gate().writable, 3, 1000));
    daemon_.die();
    raiser.raise();
    EXPECT_TRUE(client_->must_yield());
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    EXPECT_EQ(yielding.wait_for(50ms), std::future_status::timeout);
    raiser.lower();
    EXPECT_TRUE(yielding.get());
    EXPECT_EQ(client_->counters().gate_pauses.load(), 1U);
}

TEST_F(ClientTest, AnOffloadWakesALoopThatSleepsAtTheGate) {
    connect();
    auto raiser = must(GateRaiser::open(daemon_.gate().writable, 3, 1000));
    raiser.raise();
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    EXPECT_EQ(yielding.wait_for(50ms), std::future_status::timeout);
    command(1, CommandKind::kOffload);
    EXPECT_FALSE(yielding.get());
}

TEST_F(ClientTest, AShrinkReachesALoopThatIsPausedAndLeavesItPaused) {
    connect();
    command(1, CommandKind::kPause);
    wait_until([&] { return client_->must_yield(); });
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    (void)daemon_.expect<CommandDone>();
    for (const CommandKind kind : {CommandKind::kShrink, CommandKind::kGrow}) {
        command(2, kind);
        EXPECT_FALSE(yielding.get());
        protocol::Command sized = next();
        EXPECT_EQ(sized.kind, kind);
        complete(sized);
        EXPECT_EQ(daemon_.expect<CommandDone>().id, 2U);
        EXPECT_TRUE(client_->paused());
        yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    }
    command(3, CommandKind::kResume);
    EXPECT_TRUE(yielding.get());
}

TEST_F(ClientTest, ADaemonThatDiesDuringAShrinkLearnsTheTrueGrantFromTheNextStateAndHello) {
    protocol::Welcome welcome;
    const uint64_t step = device_->capabilities().grant_step_bytes;
    welcome.grant_bytes_max = 4 * step;
    connect(welcome);
    auto grant = must(client_->create_grant(0));
    must(grant->resize(4 * step));
    client_->counters().grant_bytes = grant->bytes();
    client_->set_state(protocol::EngineState::kReady, "");
    EXPECT_EQ(daemon_.expect<protocol::State>().grant_bytes, 4 * step);
    command(1, CommandKind::kShrink);
    protocol::Command shrink = next();
    daemon_.hang_up();
    EXPECT_EQ(daemon_.accept_and_welcome(welcome).grant_bytes, 4 * step) << "not yet done";
    (void)daemon_.expect<protocol::State>();
    must(grant->resize(step));
    client_->counters().grant_bytes = grant->bytes();
    complete(shrink);
    const auto state = daemon_.expect<protocol::State>();
    EXPECT_EQ(state.grant_bytes, step);
    EXPECT_EQ(state.held, "");
    daemon_.hang_up();
    EXPECT_EQ(daemon_.accept_and_welcome(welcome).grant_bytes, step);
}

TEST_F(ClientTest, DemandMovesToTheNewGatePage) {
    protocol::Welcome welcome;
    welcome.raises_gate = true;
    welcome.gate_slot = 2;
    welcome.class_value = 1000;
    connect(welcome);
    client_->raise_gate();
    EXPECT_FALSE(client_->must_yield()) << "raisers do not watch";
    auto before = must(GateWatcher::open(daemon_.gate().read_only, 0));
    EXPECT_TRUE(before.closed());
    daemon_.hang_up();
    daemon_.new_gate();
    daemon_.accept_and_welcome(welcome);
    auto after = must(GateWatcher::open(daemon_.gate().read_only, 0));
    wait_until([&] { return after.closed(); });
    EXPECT_FALSE(before.closed());
    client_->lower_gate();
    EXPECT_FALSE(after.closed());
}

TEST_F(ClientTest, ALaterWelcomeMakesAWatcherARaiserAndARaiserAWatcher) {
    protocol::Welcome welcome;
    welcome.class_value = 10;
    connect(welcome);
    auto batch = must(GateWatcher::open(daemon_.gate().read_only, 0));
    auto online = must(GateRaiser::open(daemon_.gate().writable, 3, 1000));
    client_->raise_gate();
    online.raise();
    EXPECT_TRUE(client_->must_yield());
    welcome.device = "host-0";
    welcome.device_kind = "host";
    welcome.class_value = 2000;
    daemon_.send(welcome, {daemon_.gate().read_only.get()});
    wait_until([&] { return !client_->must_yield(); }); // its class is above the raiser's
    online.lower();
    welcome.raises_gate = true;
    welcome.gate_slot = 2;
    daemon_.send(welcome, {daemon_.gate().writable.get()});
    wait_until([&] { return batch.closed(); }); // what it had raised before counts
    welcome.raises_gate = false;
    daemon_.send(welcome, {daemon_.gate().read_only.get()});
    wait_until([&] { return !batch.closed(); });
}

TEST_F(ClientTest, AShareOfTheTimeIsTakenInTurnsThroughAClosedGate) {
    protocol::Welcome welcome;
    welcome.class_value = 10;
    connect(welcome);
    auto online = must(GateRaiser::open(daemon_.gate().writable, 3, 1000));
    must(set_gate_share(daemon_.gate(), 500));
    online.raise();
    EXPECT_TRUE(client_->must_yield()) << "online comes first";
    for (int turn = 0; turn < 3; ++turn) {
        EXPECT_TRUE(client_->yield_here());
        wait_until([&] { return client_->must_yield(); }); // its turn is over
    }
    must(set_gate_share(daemon_.gate(), 0));
    auto yielding = std::async(std::launch::async, [&] { return client_->yield_here(); });
    EXPECT_EQ(yielding.wait_for(200ms), std::future_status::timeout);
    online.lower();
    EXPECT_TRUE(yielding.get());
}

TEST_F(ClientTest, WithoutTargetsAnEngineLeavesNothingToOthersAndWithThemItsSlack) {
    protocol::Welcome welcome = online();
    connect(welcome);
    must(set_gate_share(daemon_.gate(), kShareBySlo));
    auto batch = must(GateWatcher::open(daemon_.gate().read_only, 0));
    client_->raise_gate();
    client_->note_latency(1ms, 1ms);
    EXPECT_EQ(batch.share(), 0U);
    welcome.slo_ttft_us = 200'000;
    welcome.slo_tpot_us = 40'000;
    daemon_.send(welcome, {daemon_.gate().writable.get()});
    wait_until([&] {
        client_->note_latency(20ms, 10ms);
        return batch.share() > 300;
    });
    const uint32_t before = batch.share();
    client_->note_latency(20ms, 41ms);
    EXPECT_EQ(batch.share(), before / 2);
}

TEST_F(ClientTest, WhatIsLateTakesFromOthersBeforeAnyAnswerHasEnded) {
    connect(online(200'000, 40'000));
    must(set_gate_share(daemon_.gate(), kShareBySlo));
    auto batch = must(GateWatcher::open(daemon_.gate().read_only, 0));
    client_->raise_gate();
    const auto grow = [&] {
        wait_until([&] {
            client_->note_first_token(20ms);
            client_->note_pace(10ms);
            client_->note_answered(20ms, 10ms);
            return batch.share() > 300;
        });
        return batch.share();
    };
    const std::map<std::string, std::function<void()>> late{
        {"a first token", [&] { client_->note_first_token(201ms); }},
        {"later ones", [&] { client_->note_pace(41ms); }},
        {"one that does not come", [&] { client_->note_awaited(201ms); }}};
    for (const auto& [what, tell] : late) {
        const uint32_t before = grow();
        ::poll(nullptr, 0, 260); // what was late before has shown
        tell();
        EXPECT_LE(batch.share(), before / 2 + 1) << what;
        EXPECT_GT(batch.share(), 0U);
    }
    // The first tokens count in the reports, each once.
    for (;;) {
        const auto report = daemon_.expect<protocol::Report>();
        if (!report.ttft_us.empty() && report.ttft_us.back() == 201'000)
            break;
    }
}

TEST_F(ClientTest, ATurnByTargetsIsNoLongerThanWhatAnAnswerUnderWayCanBear) {
    connect(online(1'000'000, 1'000'000));
    must(set_gate_share(daemon_.gate(), kShareBySlo));
    auto batch = must(GateWatcher::open(daemon_.gate().read_only, 0));
    client_->raise_gate();
    wait_until([&] {
        client_->note_latency(20ms, 10ms);
        return batch.share() > 500;
    });
    EXPECT_EQ(client_->between_steps(1s).count(), 0) << "nobody waits";
    // Somebody waits all along, as a batch engine does between its turns.
    std::atomic<bool> over{false};
    auto waiting = std::async(std::launch::async, [&] {
        while (!over)
            batch.wait(1ms);
    });
    const auto slept = [&](uint64_t later, Nanoseconds since_first) {
        Nanoseconds longest{0};
        for (int n = 0; n < 50; ++n) {
            client_->note_progress(later, since_first);
            longest = std::max(longest, client_->between_steps(10ms));
            ::poll(nullptr, 0, 2); // it is asleep again
        }
        return longest;
    };
    EXPECT_GT(slept(9, 1s).count(), 0) << "of 8 s 7 are left";
    EXPECT_EQ(slept(0, 799ms).count(), 0) << "1 ms is left of 0.8 s";
    must(set_gate_share(daemon_.gate(), 500));
    EXPECT_GT(slept(0, 799ms).count(), 0) << "a percentage asks for no targets";
    over = true;
    waiting.get();
}

TEST_F(ClientTest, WhatIsComputedBesideTheLoopWaitsAtAClosedGateForAWhile) {
    protocol::Welcome welcome;
    welcome.class_value = 10;
    connect(welcome);
    EXPECT_LT(client_->wait_at_gate(1h), 1h) << "an open gate lets it on";
    auto online = must(GateRaiser::open(daemon_.gate().writable, 3, 1000));
    online.raise();
    EXPECT_GE(client_->wait_at_gate(50ms), 50ms);
    must(set_gate_share(daemon_.gate(), 500));
    EXPECT_LT(client_->wait_at_gate(1h), 1h) << "its share comes while the gate is closed";
    must(set_gate_share(daemon_.gate(), 0));
    auto waiting = std::async(std::launch::async, [&] { return client_->wait_at_gate(1h); });
    EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
    online.lower();
    EXPECT_LT(waiting.get(), 1h);
    online.raise();
    auto told = std::async(std::launch::async, [&] { return client_->wait_at_gate(1h); });
    protocol::Command stop;
    stop.kind = protocol::CommandKind::kStop;
    daemon_.send(stop);
    EXPECT_LT(told.get(), 1h) << "a command ends the wait";
}

TEST_F(ClientTest, OneThatWorksInStepsGivesTurnsBetweenThemToThoseWhoWait) {
    connect(online());
    must(set_gate_share(daemon_.gate(), 500));
    auto batch = must(GateWatcher::open(daemon_.gate().read_only, 0));
    EXPECT_EQ(client_->between_steps(1s).count(), 0) << "without demand the gate is open anyway";
    client_->raise_gate();
    EXPECT_TRUE(batch.closed());
    EXPECT_EQ(batch.share(), 500U) << "it may not know of turns";
    EXPECT_EQ(client_->between_steps(1s).count(), 0) << "nobody waits";
    EXPECT_TRUE(batch.closed());
    EXPECT_EQ(batch.share(), 0U) << "from now on turns are given";
    auto waiting = std::async(std::launch::async, [&] { return batch.wait(20s); });
    Nanoseconds slept{0};
    wait_until([&] {
        slept += client_->between_steps(10ms);
        return slept.count() > 0;
    });
    EXPECT_TRUE(waiting.get()) << "its turn came";
    EXPECT_TRUE(batch.closed()) << "and is over";
    // A request that comes in ends the turn.
    auto again = std::async(std::launch::async, [&] { return batch.wait(20s); });
    auto stepping = std::async(std::launch::async, [&] {
        for (slept = Nanoseconds(0); slept.count() == 0;) {
            ::poll(nullptr, 0, 20); // until it sleeps
            slept = client_->between_steps(10s);
        }
        return slept;
    });
    EXPECT_TRUE(again.get());
    client_->notify();
    EXPECT_GT(stepping.get().count(), 0);
    client_->lower_gate();
    EXPECT_FALSE(batch.closed());
}

TEST_F(ClientTest, ReportsCarryTheCounters) {
    connect();
    client_->counters().tokens_done = 42;
    for (;;) {
        auto report = daemon_.expect<protocol::Report>();
        if (report.tokens_done == 42)
            break;
    }
}

TEST_F(ClientTest, TheLastStateIsSentBeforeTheConnectionCloses) {
    connect();
    client_->set_state(protocol::EngineState::kSucceeded);
    client_.reset();
    EXPECT_EQ(daemon_.expect<protocol::State>().state, protocol::EngineState::kSucceeded);
}

TEST_F(ClientTest, AGrantOverTheAllowanceIsRefused) {
    protocol::Welcome welcome;
    welcome.grant_bytes_max = 1 << 20;
    connect(welcome);
    auto refused = client_->create_grant(2 << 20);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

} // namespace
} // namespace berth
