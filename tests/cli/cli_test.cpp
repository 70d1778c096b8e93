// SPDX-License-Identifier: Apache-2.0
// Goal: what people and scripts rely on of `berth`: what it prints, what it sends, how it ends.
// Method: the real program against an admin socket with canned answers.
#include "base/json.h"
#include "fake_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>

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

TEST(Cli, AShrinkSendsItsGrantByTheNameThatTheNodeReads) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:preempt", kRunning, 202);
    node.start();
    Ran ran = run_berth(node.socket(), "preempt nightly --mode Shrink --grant 512Mi");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(json_of(node.seen()[0].body), json_of(R"({"mode":"Shrink","grantBytes":"512Mi"})"));
    EXPECT_EQ(run_berth(node.socket(), "preempt nightly --mode Shrink --grant lots").exit_code, 2);
}

TEST(Cli, DeleteEndsAnInstanceWaitsUntilNobodyHasItsNameAndSendsTheTagItIsHeldTo) {
    FakeNode node;
    auto looks = std::make_shared<int>(0);
    auto tag = std::make_shared<std::string>();
    node.on("DELETE", "/v1/instances/{name}", [tag](const http::Request& request) {
        const std::string* wanted = request.headers.find("If-Match");
        *tag = wanted == nullptr ? "" : *wanted;
        return http::json_response(
            json_of(R"({"name":"nightly","state":"Running","removing":true,"dryRun":false,)"
                    R"("message":"nightly (Running, process 7) is ended"})"),
            202);
    });
    node.on("GET", "/v1/instances/{name}", [looks](const http::Request&) {
        if (++*looks > 2)
            return http::error_response(
                Error{ErrorCode::kNotFound, "no instance is named 'nightly'", "NotFound", 0});
        return http::json_response(
            json_of(R"({"name":"nightly","state":"Preempting","removing":true})"));
    });
    node.start();
    Ran ran = run_berth(node.socket(), "delete instance nightly --wait --if-match abc "
                                       "--request-id r1");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, "nightly (Running, process 7) is ended\n");
    EXPECT_EQ(*looks, 3);
    EXPECT_EQ(*tag, "\"abc\"");
    EXPECT_EQ(node.seen()[0].target, "/v1/instances/nightly?requestId=r1");
    const size_t before = node.seen().size();
    EXPECT_EQ(run_berth(node.socket(), "delete instance nightly --dry-run --wait").exit_code, 0);
    EXPECT_EQ(node.seen().back().target, "/v1/instances/nightly?dryRun=true");
    EXPECT_EQ(node.seen().size(), before + 1) << "a rehearsal ends nobody: nothing to wait for";
    for (const char* wrong : {"delete", "delete instance", "delete device host-0"})
        EXPECT_EQ(run_berth(node.socket(), wrong).exit_code, 2) << wrong;
}

TEST(Cli, AProcessThatDoesNotEndEndsTheWaitOfADeleteWithItsReason) {
    FakeNode node;
    node.on("DELETE", "/v1/instances/{name}",
            R"({"name":"job","state":"Running","removing":true,"message":"job is ended"})", 202);
    node.on("GET", "/v1/instances/{name}",
            R"({"name":"job","state":"Unkillable","removing":true,"reason":"Unkillable",)"
            R"("message":"process 7 waits in nvidia_close"})");
    node.start();
    Ran ran = run_berth(node.socket(), "delete instance job --wait");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_EQ(ran.err, "berth: Unkillable: process 7 waits in nvidia_close\n");
}

TEST(Cli, ACommandsHelpIsItsOwn) {
    Ran help = run_berth("/nowhere", "hold --help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("-o table|json|yaml"));
    EXPECT_THAT(help.out, Not(HasSubstr("Examples:")));
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

constexpr const char* kHeld =
    R"({"id":"op-2","kind":"Hold","object":"instance/nightly","state":"Succeeded",)"
    R"("message":"nightly is neither started nor resumed until it is released","phases":[],)"
    R"("bytesFreed":0,"error":null,"ms":1})";

TEST(Cli, HoldReleaseCordonAndUncordonSendWhatWasAskedAndSayWhatWasDone) {
    FakeNode node;
    for (const char* path : {"/v1/instances/{name}:hold", "/v1/instances/{name}:release",
                             "/v1/devices/{id}:cordon", "/v1/devices/{id}:uncordon"})
        node.on("POST", path, kHeld, 202);
    node.start();
    Ran held = run_berth(node.socket(), "hold nightly --reason upgrade --request-id r1");
    EXPECT_EQ(held.exit_code, 0) << held.err;
    EXPECT_THAT(held.out, HasSubstr("instance/nightly: Hold Succeeded"));
    EXPECT_THAT(held.out, HasSubstr("until it is released"));
    EXPECT_THAT(held.out, Not(HasSubstr("freed")));
    EXPECT_EQ(run_berth(node.socket(), "release nightly").exit_code, 0);
    EXPECT_EQ(run_berth(node.socket(), "cordon host-0 --dry-run").exit_code, 0);
    EXPECT_EQ(run_berth(node.socket(), "uncordon device/host-0").exit_code, 0);
    const auto seen = node.seen();
    ASSERT_EQ(seen.size(), 4u);
    EXPECT_EQ(seen[0].target, "/v1/instances/nightly:hold");
    EXPECT_EQ(json_of(seen[0].body), json_of(R"({"reason":"upgrade","requestId":"r1"})"));
    EXPECT_EQ(seen[1].target, "/v1/instances/nightly:release");
    EXPECT_EQ(seen[2].target, "/v1/devices/host-0:cordon");
    EXPECT_EQ(json_of(seen[2].body), json_of(R"({"dryRun":true})"));
    EXPECT_EQ(seen[3].target, "/v1/devices/host-0:uncordon");
}

TEST(Cli, DrainIsOfAnInstanceOrOfADevice) {
    FakeNode node;
    node.on("POST", "/v1/instances/{name}:drain", kRunning, 202);
    node.on("POST", "/v1/devices/{id}:drain", kRunning, 202);
    node.on("GET", "/v1/operations/{id}", kDone);
    node.start();
    EXPECT_EQ(run_berth(node.socket(), "drain nightly --timeout 5s --wait").exit_code, 0);
    EXPECT_EQ(run_berth(node.socket(), "drain device/host-0").exit_code, 0);
    EXPECT_EQ(run_berth(node.socket(), "drain --device host-1").exit_code, 0);
    const auto seen = node.seen();
    ASSERT_EQ(seen.size(), 4u);
    EXPECT_EQ(seen[0].target, "/v1/instances/nightly:drain");
    EXPECT_EQ(json_of(seen[0].body), json_of(R"({"timeout":"5s"})"));
    EXPECT_EQ(seen[2].target, "/v1/devices/host-0:drain");
    EXPECT_EQ(seen[3].target, "/v1/devices/host-1:drain");
    for (const char* wrong : {"drain", "drain nightly --device host-0", "drain nightly --timeout x",
                              "plan", "plan --class online", "plan --memory lots",
                              "plan -f a.yaml --memory 1Gi", "hold", "cordon", "apply"}) {
        Ran ran = run_berth(node.socket(), wrong);
        EXPECT_EQ(ran.exit_code, 2) << wrong << ": " << ran.err;
    }
}

TEST(Cli, DevicesShowTheirCordonAndItsReason) {
    FakeNode node;
    node.on("GET", "/v1/devices",
            R"({"items":[{"id":"host-0","kind":"host","name":"","totalBytes":1024,)"
            R"("cordoned":true,"cordonReason":"fan","drainedBy":""},)"
            R"({"id":"host-1","kind":"host","name":"","totalBytes":1024,"cordoned":false}]})");
    node.start();
    Ran ran = run_berth(node.socket(), "get devices");
    EXPECT_THAT(ran.out, HasSubstr("cordoned: fan"));
    EXPECT_THAT(ran.out, HasSubstr("in service"));
}

TEST(Cli, PlanAsksForAFileOrForBytesAndPrintsTheAnswerInWords) {
    FakeNode node;
    node.on("POST", "/v1/plan",
            R"({"mode":"Enforce","instances":[{"name":"what-if","priorityClass":"online",)"
            R"("priority":1000,"verdict":"Waits","devices":[],"reason":"InsufficientMemory",)"
            R"("message":"needs 8.0 GiB"}],"steps":[],"decisions":[],"underWay":[]})");
    node.start();
    Ran bytes = run_berth(node.socket(), "plan --class online --memory 8Gi --device host-0");
    EXPECT_EQ(bytes.exit_code, 0) << bytes.err;
    EXPECT_THAT(bytes.out, HasSubstr("would wait: InsufficientMemory: needs 8.0 GiB"));
    Ran file = run_berth(node.socket(), "plan -f -", "kind: Instance\n");
    EXPECT_EQ(file.exit_code, 0) << file.err;
    const auto seen = node.seen();
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_EQ(json_of(seen[0].body),
              json_of(R"({"memory":"8Gi","class":"online","device":"host-0"})"));
    EXPECT_EQ(seen[1].body, "kind: Instance\n");
}

TEST(Cli, ExplainIsOfAnInstanceOrOfADecision) {
    FakeNode node;
    node.on("GET", "/v1/instances/{name}", [](const http::Request& request) {
        return request.params.at("name") == "nightly"
                   ? http::text_response(kInstance, 200, "application/json")
                   : http::error_response(Error{ErrorCode::kNotFound, "none", "NotFound", 0});
    });
    node.on("GET", "/v1/decisions", R"({"items":[]})");
    node.on("GET", "/v1/decisions/{id}", [](const http::Request& request) {
        return request.params.at("id") == "d-1"
                   ? http::text_response(R"({"id":"d-1","timeMs":1000,"kind":"Place",)"
                                         R"("object":"instance/chat","inputs":[],)"
                                         R"("candidates":[],"winner":"host-0",)"
                                         R"("outcome":"started","carriedOut":true})",
                                         200, "application/json")
                   : http::error_response(Error{ErrorCode::kNotFound, "none", "NotFound", 0});
    });
    node.start();
    Ran one = run_berth(node.socket(), "explain nightly");
    EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_THAT(one.out, HasSubstr("nightly is Suspended since 65s"));
    Ran other = run_berth(node.socket(), "explain d-1");
    EXPECT_EQ(other.exit_code, 0) << other.err;
    EXPECT_THAT(other.out, HasSubstr("Place for instance/chat"));
    Ran none = run_berth(node.socket(), "explain nobody");
    EXPECT_EQ(none.exit_code, 1);
    EXPECT_THAT(none.err, HasSubstr("'nobody' is no instance and no decision"));
}

TEST(Cli, TopIsOneFrameOfTextWhereThereIsNoTerminal) {
    FakeNode node;
    node.on("GET", "/v1/node",
            std::string(R"({"name":"gpu-17","ready":true,"uptimeMs":1000,"revision":5,)"
                        R"("devices":[],"instances":[)") +
                kInstance + "]}");
    node.on("GET", "/v1/decisions", R"({"items":[]})");
    node.on("GET", "/v1/events", "");
    node.start();
    Ran ran = run_berth(node.socket(), "top");
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, StartsWith("berth gpu-17  ready"));
    EXPECT_THAT(ran.out, HasSubstr("nightly"));
    EXPECT_THAT(ran.out, Not(HasSubstr("\x1b")));
    Ran once = run_berth(node.socket(), "top --once");
    EXPECT_THAT(once.out, HasSubstr("nightly"));
}

TEST(Cli, AFollowedWatchGoesOnWhereItBrokeWithoutGapOrRepetition) {
    FakeNode node;
    auto calls = std::make_shared<int>(0);
    node.on("GET", "/v1/events", [calls](const http::Request& request) {
        const std::string since = request.query.at("since");
        auto line = [](int revision) {
            return R"({"revision":)" + std::to_string(revision) +
                   R"(,"time":"T","kind":"Normal","object":"o","reason":"R","message":"m"})" + "\n";
        };
        switch ((*calls)++) {
        case 0:
            return http::text_response(line(4) + line(5), 200, "application/x-ndjson");
        case 1: // what was sent before comes again, and an empty line
            EXPECT_EQ(since, "5");
            return http::text_response(line(5) + "\n" + line(106), 200, "application/x-ndjson");
        default:
            EXPECT_EQ(since, "106");
            return http::error_response(
                Error{ErrorCode::kPermissionDenied, "no more", "Enough", 0});
        }
    });
    node.start();
    Ran ran = run_berth(node.socket(), "events --follow -o json");
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_THAT(ran.err, HasSubstr("Enough"));
    std::vector<int64_t> revisions;
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);)
        revisions.push_back(json_of(line).at("revision").to_number<int64_t>());
    EXPECT_THAT(revisions, testing::ElementsAre(4, 5, 106));
}

} // namespace
} // namespace berth::test
