// SPDX-License-Identifier: Apache-2.0
// Goal: what people and scripts rely on of `berth`: what it prints, what it sends, how it ends.
// Method: the real program against an admin socket with canned answers.
#include "base/json.h"
#include "fake_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace berth::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* kInstance =
    R"({"name":"nightly","model":"smollm2","priorityClass":"batch","state":"Suspended",)"
    R"("substate":"","reason":"OperatorPreempt","message":"","device":"host-0",)"
    R"("grantBytes":1073741824,"sinceMs":65000,"phases":{"tensors":12.5,"warmup":350},)"
    R"("counters":{"tokensDone":7,"batchDone":3,"batchTotal":10}})";
constexpr const char* kDone =
    R"({"id":"op-1","kind":"Preempt","instance":"nightly","object":"instance/nightly",)"
    R"("mode":"Offload","reached":"Offload","reason":"","dryRun":false,"state":"Succeeded",)"
    R"("message":"","phases":[{"name":"draining","ms":4.25},{"name":"reclaiming","ms":30}],)"
    R"("bytesFreed":1073741824,"error":null,"ms":35})";
constexpr const char* kRunning =
    R"({"id":"op-1","kind":"Preempt","instance":"nightly","object":"instance/nightly",)"
    R"("mode":"Offload","reached":"Pause","state":"Running","message":"","phases":[],)"
    R"("bytesFreed":0,"error":null,"ms":null})";
constexpr const char* kWeights =
    R"({"items":[{"id":"0123456789abcdef","model":"smollm2","path":"/models/smollm2",)"
    R"("device":"host-0","bytes":269000000,"tensors":272,"state":"Resident","pinned":true,)"
    R"("leases":2,"progress":null,"loadedMs":140.5},)"
    R"({"id":"0123ffffffffffff","model":"other","path":"/m/o","device":"host-0","bytes":1024,)"
    R"("tensors":1,"state":"Resident","pinned":false,"leases":0,"progress":null}]})";

json::value json_of(const std::string& text) {
    auto parsed = json::parse(text, "the program's output");
    EXPECT_TRUE(parsed) << text;
    return parsed ? *parsed : json::value();
}

TEST(Cli, ListsInstancesAsATableWithTheirStateGrantAndProgress) {
    FakeNode node;
    node.on("GET", "/v1/instances", std::string(R"({"items":[)") + kInstance + "]}");
    node.start();
    Ran ran = run_berth(node.socket(), "get instances");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, StartsWith("NAME     CLASS  STATE"));
    EXPECT_THAT(ran.out, HasSubstr("nightly  batch  Suspended  smollm2  host-0  1.0 GiB  3/10"));
    EXPECT_THAT(ran.out, HasSubstr("65s"));
    EXPECT_THAT(ran.out, Not(HasSubstr("\x1b"))) << "colours belong on a terminal";
}

TEST(Cli, PrintsTheReplyItselfAsJsonAndAsYaml) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}", kInstance);
    node.start();
    Ran as_json = run_berth(node.socket(), "get instance nightly -o json");
    EXPECT_EQ(as_json.exit_code, 0);
    EXPECT_EQ(json_of(as_json.out), json_of(kInstance));
    Ran as_yaml = run_berth(node.socket(), "-o yaml get instance nightly");
    EXPECT_THAT(as_yaml.out, HasSubstr("name: nightly\n"));
    EXPECT_THAT(as_yaml.out, HasSubstr("phases:\n  tensors: 12.5\n"));
    EXPECT_THAT(as_yaml.out, HasSubstr("substate: \"\"\n"));
}

TEST(Cli, DescribesAnInstanceWithEachStartUpPhase) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}", kInstance);
    node.on("GET", "/v1/events",
            R"({"revision":4,"time":"T","kind":"Normal","object":"instance/nightly",)"
            R"("reason":"Started","message":"pid 9"})"
            "\n"
            R"({"revision":5,"time":"T","kind":"Normal","object":"instance/chat",)"
            R"("reason":"Elsewhere","message":""})"
            "\n");
    node.start();
    Ran ran = run_berth(node.socket(), "describe instance nightly");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("Grant bytes:     1.0 GiB"));
    EXPECT_THAT(ran.out, HasSubstr("START-UP PHASES"));
    EXPECT_THAT(ran.out, HasSubstr("warmup   350.0 ms"));
    EXPECT_THAT(ran.out, HasSubstr("Started"));
    EXPECT_THAT(ran.out, Not(HasSubstr("Elsewhere")));
}

TEST(Cli, PreemptWithWaitSendsWhatWasAskedAndShowsPhasesAndBytes) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:preempt", kRunning, 202);
    node.on("GET", "/v1/operations/{id}", kDone);
    node.start();
    Ran ran = run_berth(node.socket(), "preempt nightly --mode Offload --grace-period 200ms "
                                       "--reason 'for a test' --wait");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("instance/nightly: Preempt Succeeded in 35.0 ms by Offload, "
                                   "1.0 GiB freed"));
    EXPECT_THAT(ran.out, HasSubstr("draining    4.2 ms"));
    ASSERT_EQ(node.seen().size(), 2u);
    EXPECT_EQ(json_of(node.seen()[0].body),
              json_of(R"({"mode":"Offload","gracePeriod":"200ms","reason":"for a test"})"));
    EXPECT_THAT(node.seen()[1].target, StartsWith("/v1/operations/op-1?wait=30000ms"));
}

TEST(Cli, WithoutWaitItNamesTheOperationAndDoesNotAskAgain) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:resume", kRunning, 202);
    node.start();
    Ran ran = run_berth(node.socket(), "resume nightly");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("operation op-1"));
    EXPECT_EQ(node.seen().size(), 1u);
}

TEST(Cli, AFailedOperationEndsWithOneAndItsReason) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:resume", kRunning, 202);
    node.on("GET", "/v1/operations/{id}",
            R"({"id":"op-1","kind":"Resume","object":"instance/nightly","state":"Failed",)"
            R"("message":"","phases":[],"error":{"code":"ResourceExhausted",)"
            R"("reason":"InsufficientMemory","message":"needs 4 GiB"},"ms":3})");
    node.start();
    Ran ran = run_berth(node.socket(), "resume nightly --wait");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_EQ(ran.err, "berth: InsufficientMemory: needs 4 GiB\n");
    EXPECT_THAT(ran.out, IsEmpty());
}

TEST(Cli, ARefusalEndsWithOneAndADaemonThatIsNotThereWithThree) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}",
            R"({"code":"NotFound","reason":"NotFound","message":"no instance is named 'x'"})", 404);
    node.start();
    Ran refused = run_berth(node.socket(), "get instance x");
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_EQ(refused.err, "berth: NotFound: no instance is named 'x'\n");
    for (const char* command : {"status", "events", "doctor", "preempt x --wait"}) {
        Ran absent = run_berth(node.folder() + "/nobody.sock", command);
        EXPECT_EQ(absent.exit_code, 3) << command << ": " << absent.err;
        EXPECT_THAT(absent.err, StartsWith("berth: DaemonNotReachable: berthd does not answer"));
        EXPECT_THAT(absent.err, HasSubstr("nobody.sock"));
        EXPECT_THAT(absent.out, IsEmpty());
    }
}

TEST(Cli, WrongUsageEndsWithTwoAndHelpAndVersionWithNought) {
    for (const char* wrong :
         {"", "nonsense", "get pods", "preempt", "preempt x --mode Sleep",
          "preempt x --grace-period soon", "status -o xml", "bench preempt", "events --since -4"}) {
        Ran ran = run_berth("/nowhere", wrong);
        EXPECT_EQ(ran.exit_code, 2) << wrong << ": " << ran.err;
        EXPECT_THAT(ran.err, Not(IsEmpty())) << wrong;
    }
    Ran help = run_berth("/nowhere", "--help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("berth preempt nightly --mode Offload --wait"));
    Ran version = run_berth("/nowhere", "--version");
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_THAT(version.out, StartsWith("berth 0."));
}

TEST(Cli, AWeightSetIsNamedByIdByItsStartOrByModelAndAmbiguityIsRefused) {
    FakeNode node;
    node.on("GET", "/v1/weights", kWeights);
    node.on("POST", "/v1/weights/{id}:pin", kDone, 202);
    node.on("GET", "/v1/operations/{id}", kDone);
    node.start();
    for (const char* name : {"0123456789abcdef", "01234", "smollm2"})
        EXPECT_EQ(run_berth(node.socket(), std::string("pin ") + name).exit_code, 0) << name;
    for (const auto& seen : node.seen())
        if (seen.method == "POST")
            EXPECT_EQ(seen.target, "/v1/weights/0123456789abcdef:pin");
    Ran ambiguous = run_berth(node.socket(), "pin 0123");
    EXPECT_EQ(ambiguous.exit_code, 1);
    EXPECT_THAT(ambiguous.err, StartsWith("berth: Ambiguous:"));
    EXPECT_EQ(run_berth(node.socket(), "pin nothing").exit_code, 1);
}

// The load's progress: half, then done.
void add_load(FakeNode& node) {
    auto looks = std::make_shared<int>(0);
    node.on("POST", "/v1/weights:load",
            R"({"id":"op-2","kind":"Load","object":"model/smollm2","state":"Running"})", 202);
    node.on("GET", "/v1/weights", [](const http::Request&) {
        return http::text_response(
            R"({"items":[{"id":"load-1","model":"smollm2","state":"Loading","progress":)"
            R"({"phase":"loading","bytesDone":1073741824,"bytesTotal":2147483648}}]})",
            200, "application/json");
    });
    node.on("GET", "/v1/operations/{id}", [looks](const http::Request&) {
        bool done = ++*looks > 2;
        return http::text_response(
            std::string(R"({"id":"op-2","kind":"Load","object":"model/smollm2",)"
                        R"("message":"weight set 0123456789abcdef is resident",)"
                        R"("state":")") +
                (done ? "Succeeded" : "Running") + "\"}",
            200, "application/json");
    });
    node.start();
}

TEST(Cli, LoadWithWaitShowsBytesOnOneLineOfATerminalAndNoEscapesWithNoColor) {
    {
        FakeNode node;
        add_load(node);
        Ran ran = run_on_terminal(node.socket(), "load smollm2 --wait");
        EXPECT_EQ(ran.exit_code, 0) << ran.err;
        EXPECT_THAT(ran.err, HasSubstr("loading smollm2: loading 1.0 GiB of 2.0 GiB (50%)"));
        EXPECT_THAT(ran.err, HasSubstr("\x1b["));
        EXPECT_THAT(ran.err, Not(HasSubstr("\n"))) << "one status line";
    }
    FakeNode node;
    add_load(node);
    Ran ran = run_on_terminal(node.socket(), "load smollm2 --wait", "NO_COLOR=1");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("\rloading smollm2: loading 1.0 GiB of 2.0 GiB (50%)"));
    EXPECT_THAT(ran.err, Not(HasSubstr("\x1b")));
}

TEST(Cli, LoadElsewhereWritesALineForEachPhaseAndTheIdItGot) {
    FakeNode node;
    add_load(node);
    Ran ran = run_berth(node.socket(), "load smollm2 --wait");
    EXPECT_EQ(ran.exit_code, 0);
    EXPECT_EQ(ran.err, "loading smollm2: loading 1.0 GiB of 2.0 GiB (50%)\n");
    EXPECT_THAT(ran.out, StartsWith("smollm2: weight set 0123456789abcdef is resident, in "));
    EXPECT_EQ(json_of(node.seen().front().body), json_of(R"({"model":"smollm2"})"));
}

TEST(Cli, EventsArePrintedAsTheyAreAndTooOldIsRefused) {
    FakeNode node;
    node.on("GET", "/v1/events", [](const http::Request& request) {
        if (request.query.at("since") == "1")
            return http::error_response(Error{ErrorCode::kNotFound, "the oldest is 9", "TooOld", 0},
                                        410);
        return http::text_response("{\"revision\":12,\"object\":\"node/n\"}\n\n", 200,
                                   "application/x-ndjson");
    });
    node.start();
    EXPECT_EQ(run_berth(node.socket(), "events --since 11 -o json").out,
              "{\"revision\":12,\"object\":\"node/n\"}\n");
    Ran old = run_berth(node.socket(), "events --since 1");
    EXPECT_EQ(old.exit_code, 1);
    EXPECT_EQ(old.err, "berth: TooOld: the oldest is 9\n");
}

TEST(Cli, DoctorFailsWhenACheckDoes) {
    FakeNode node;
    node.on("GET", "/v1/doctor",
            R"({"checks":[{"name":"ledger","ok":true,"message":"balanced","remedy":""},)"
            R"({"name":"keeper","ok":false,"message":"gone","remedy":"start it"}]})");
    node.start();
    Ran ran = run_berth(node.socket(), "doctor");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.out, HasSubstr("keeper  FAIL    gone      start it"));
}

TEST(Cli, VerifyFailsWithTheTensorsThatDiffer) {
    FakeNode node;
    node.on("GET", "/v1/weights", kWeights);
    node.on("POST", "/v1/weights/{id}:verify",
            R"({"id":"0123456789abcdef","ok":false,"tensors":272,"bytes":1024,"ms":1.5,)"
            R"("mismatchedCount":1,"mismatched":["lm_head.weight"]})");
    node.start();
    Ran ran = run_berth(node.socket(), "verify smollm2");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.err, StartsWith("berth: ChecksumMismatch:"));
    EXPECT_THAT(ran.err, HasSubstr("lm_head.weight"));
}

TEST(Cli, ApplySendsFilesOfAFolderInOnePieceAndAnErrorNamesFileAndLineBeforeItSends) {
    FakeNode node;
    node.on("PUT", "/v1/policy", "kind: Model\n");
    node.start();
    std::ofstream(node.folder() + "/a.yaml")
        << "apiVersion: berth/v1\nkind: Model\nmetadata: {name: m}\nspec: {path: /models/m}\n";
    std::ofstream(node.folder() + "/b.yaml")
        << "apiVersion: berth/v1\nkind: Model\nmetadata: {name: n}\nspec: {pth: /models/n}\n";
    std::string a = node.folder() + "/a.yaml";
    Ran wrong = run_berth(node.socket(), "apply -f " + a + " " + node.folder() + "/b.yaml");
    EXPECT_EQ(wrong.exit_code, 1);
    EXPECT_THAT(wrong.err, HasSubstr("b.yaml:4:"));
    EXPECT_THAT(node.seen(), IsEmpty()) << "nothing may be applied of a wrong whole";
    Ran right = run_berth(node.socket(), "apply -f " + a);
    EXPECT_EQ(right.exit_code, 0) << right.err;
    EXPECT_EQ(right.out, "applied Model/m\n");
    ASSERT_EQ(node.seen().size(), 1u);
    EXPECT_THAT(node.seen()[0].body, HasSubstr("name: m"));
    EXPECT_THAT(node.seen()[0].target, HasSubstr("a.yaml"));
}

TEST(Cli, ValidateNeedsNoDaemonAndPrintsTheDefaults) {
    FakeNode folder;
    std::string file = folder.folder() + "/a.yaml";
    std::ofstream(file) << "apiVersion: berth/v1\nkind: Model\nmetadata: {name: m}\n"
                           "spec: {path: /models/m}\n";
    Ran ran = run_berth("/nowhere", "validate " + file);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("reclaimDeadline"));
    EXPECT_THAT(ran.out, HasSubstr("/models/m"));
    Ran as_json = run_berth("/nowhere", "validate -o json " + file);
    EXPECT_EQ(json_of(as_json.out).at("documents"), json_of(R"(["Model/m"])"));
}

} // namespace
} // namespace berth::test
