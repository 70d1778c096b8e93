// SPDX-License-Identifier: Apache-2.0
// Goal: what was decided is carried out as long as it is wanted, and what has a deadline does not
// wait for what has none. Method: the real acting side, store and processes, without a keeper and
// with a stand-in for MPS's control program that begins when the test says so.
#include "scheduler/act/node_actor.h"

#include "policies/yaml.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

namespace fs = std::filesystem;
const node::InstanceName kJob("job");
constexpr const char* kGpu = "GPU-1";

constexpr const char* kPolicy = R"(
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: node}
spec:
  priorityClasses: [{name: online, value: 1000, globalDefault: true, preemptible: false}]
  sharing: {compute: MPS, batchShareWhenBusy: 50%}
)";
constexpr const char* kInstance = R"(
---
apiVersion: berth/v1
kind: Instance
metadata: {name: job}
spec:
  resources: {requests: {memory: 1Mi}, limits: {memory: 1Mi}}
  engine: {driver: process, command: [sleep, "600"]}
)";

class NodeActorTest : public testing::Test {
  protected:
    NodeActorTest() : context_(io_) {
        std::string pattern = (fs::temp_directory_path() / "berth-actor-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
        place_control_program();
        context_.node_name = "node";
        context_.paths.runtime_dir = folder_ / "run";
        context_.paths.state_dir = folder_ / "state";
        context_.paths.program_dir = folder_ / "bin";
        context_.zygote_off = "not here";
        context_.environments[node::DeviceId(kGpu)].device_kind = "cuda";
        context_.device_order.emplace_back(kGpu);
        auto opened = Store::open(context_.paths.state_dir);
        EXPECT_TRUE(opened) << opened.error().message;
        store_ = std::move(opened->store);
        actor_ =
            std::make_unique<NodeActor>(context_, *store_, PeerPolicy::of(::geteuid(), "").value());
        context_.post(
            node::DeviceSeen{node::DeviceId(kGpu), DeviceKind::kCuda, "a GPU", uint64_t{80} << 30});
    }
    ~NodeActorTest() override {
        for (const auto& [name, start] : context_.starts)
            if (::kill(start.process.pid, SIGKILL) == 0)
                ::waitpid(start.process.pid, nullptr, 0);
        touch("fail"); // whoever still waits for it need not
        actor_->stop();
        store_.reset();
        int control = 0;
        if (std::ifstream(folder_ / "run/mps/nvidia-cuda-mps-control.pid") >> control)
            ::kill(control, SIGKILL);
        ::setenv("PATH", path_.c_str(), 1);
        actor_.reset();
        fs::remove_all(folder_);
    }
    // It becomes MPS's control daemon when there is a file "go", and fails when there is "fail".
    void place_control_program() const {
        fs::create_directories(folder_ / "bin");
        fs::create_directories(folder_ / "stand-in");
        const fs::path stand_in = folder_ / "stand-in/nvidia-cuda-mps-control";
        fs::create_symlink(BERTH_FAKE_MPS, stand_in);
        const fs::path program = folder_ / "bin/nvidia-cuda-mps-control";
        std::ofstream(program) << "#!/bin/sh\nwhile [ ! -e " << folder_.string()
                               << "/go ]; do [ ! -e " << folder_.string()
                               << "/fail ] || exit 1; sleep 0.02; done\nexec " << stand_in.string()
                               << " \"$@\"\n";
        fs::permissions(program, fs::perms::owner_all);
        ::setenv("PATH", ((folder_ / "bin").string() + ":" + path_).c_str(), 1);
    }
    void touch(const char* name) const { std::ofstream(folder_ / name).close(); }
    void go() const { touch("go"); }
    static std::string gated() {
        std::string policy = kPolicy;
        return policy.replace(policy.find("MPS"), 3, "Gate");
    }
    void apply(const std::string& text) {
        context_.post(node::DocumentsApplied{policies::parse_documents(text, "test.yaml").value()});
    }
    bool until(const std::function<bool()>& reached) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!reached() && std::chrono::steady_clock::now() < end)
            io_.run_one_for(std::chrono::milliseconds(10));
        return reached();
    }
    const node::Instance* instance() const {
        const auto found = context_.state().instances.find(kJob);
        return found == context_.state().instances.end() ? nullptr : &found->second;
    }
    // Decided and carried out, as far as it is possible without MPS.
    bool waits_for_mps() {
        return until([this] {
            return instance() != nullptr && instance()->state == node::InstanceState::kStarting &&
                   context_.loop->idle();
        });
    }

    const std::string path_ = std::getenv("PATH");
    boost::asio::io_context io_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
        io_.get_executor()};
    fs::path folder_;
    NodeContext context_;
    std::unique_ptr<Store> store_;
    std::unique_ptr<NodeActor> actor_;
};

TEST_F(NodeActorTest, AStartThatWaitsForMpsIsMadeOnceThatIsThere) {
    apply(std::string(kPolicy) + kInstance);
    ASSERT_TRUE(waits_for_mps());
    EXPECT_TRUE(context_.starts.empty());
    go();
    ASSERT_TRUE(until([this] { return !context_.starts.empty(); }));
    EXPECT_TRUE(until([this] { return instance()->state == node::InstanceState::kRunning; }));
    EXPECT_EQ(instance()->process, context_.starts.at(kJob).process);
}

TEST_F(NodeActorTest, OneThatIsDeletedWhileItWaitsForMpsIsNotStarted) {
    apply(std::string(kPolicy) + kInstance);
    ASSERT_TRUE(waits_for_mps());
    apply(kPolicy);
    ASSERT_TRUE(until([this] { return instance() == nullptr; }));
    go();
    ASSERT_TRUE(until([this] { return context_.mps.ready; })) << context_.mps.why;
    EXPECT_TRUE(context_.starts.empty()) << "nobody would count its memory";
}

// The end of the first start and the beginning of the second are one wait for MPS.
TEST_F(NodeActorTest, OneWhoseDocumentChangesWhileItWaitsForMpsIsStartedOnce) {
    apply(std::string(kPolicy) + kInstance);
    ASSERT_TRUE(waits_for_mps());
    std::string changed = kInstance;
    changed.replace(changed.find("600"), 3, "601");
    apply(std::string(kPolicy) + changed);
    ASSERT_TRUE(until([this] { return instance()->starts == 2 && waits_for_mps(); }));
    go();
    ASSERT_TRUE(until([this] { return instance()->state == node::InstanceState::kRunning; }));
    EXPECT_EQ(instance()->starts, 2U);
    EXPECT_EQ(instance()->process, context_.starts.at(kJob).process);
}

TEST_F(NodeActorTest, NoStartIsLeftWaitingWhereMpsIsNotWantedAnyMoreAndDoesNotCome) {
    apply(std::string(kPolicy) + kInstance);
    ASSERT_TRUE(waits_for_mps());
    apply(gated() + kInstance);
    touch("fail");
    EXPECT_TRUE(until([this] { return !context_.starts.empty(); }));
}

TEST_F(NodeActorTest, TheMemoryOfAnEngineIsLookedAtWhileAllElseIsBusy) {
    apply(gated());
    ASSERT_TRUE(until([this] { return context_.loop->idle(); }));
    std::promise<void> go;
    const std::shared_future<void> gone = go.get_future().share();
    Workers& workers = actor_->workers();
    bool held = true;
    for (WorkerPool* pool : {&workers.processes, &workers.checkpoints, &workers.images,
                             &workers.documents, &workers.questions, &workers.driver})
        for (int n = 0; n < 4; ++n)
            pool->run(
                [gone] {
                    gone.wait();
                    return std::string();
                },
                [&held](const std::string&) { held = false; });
    while (io_.poll() > 0) {
    }
    actor_->carry_out(node::ConfirmBytes{kJob, node::DeviceId(kGpu), {::getpid(), 1}}, {});
    EXPECT_EQ(io_.run_one_for(std::chrono::seconds(60)), 1U);
    EXPECT_TRUE(held);
    go.set_value();
}

} // namespace
} // namespace berth
