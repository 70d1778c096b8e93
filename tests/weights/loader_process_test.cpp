// SPDX-License-Identifier: Apache-2.0
// Goal: the program berth-loader keeps its part of the conversation with berthd, and leaves nothing
// behind whoever dies. Method: the real program over a socketpair; the test is berthd.
#include "base/json.h"
#include "base/process.h"
#include "cache/load/verify.h"
#include "engine_shim/protocol/messages.h"
#include "tests/weights/running_loader.h"
#include "tests/weights/test_checkpoint.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace berth {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::loader_path;
using testing::read_bytes;
using testing::RunningLoader;
using testing::safetensors_file;
using testing::TempFolder;
using testing::TestCheckpoint;
using testing::touch_later;
namespace fs = std::filesystem;

// A model with an embedding of zeros of about 400 MiB that takes no room on disk.
void write_large(const TestCheckpoint& made) {
    constexpr uint64_t kVocabulary = 12'000'000;
    json::object config = made.config;
    config["vocab_size"] = kVocabulary;
    testing::write_bytes(made.folder.file("config.json"), json::serialize(config));
    json::object header;
    uint64_t at = 0;
    for (const auto& tensor : made.tensors) {
        std::vector<uint64_t> shape = tensor.shape;
        uint64_t bytes = tensor.bytes.size();
        if (tensor.name == "model.embed_tokens.weight") {
            shape[0] = kVocabulary;
            bytes = kVocabulary * 8 * 4;
        }
        header[tensor.name] = {{"dtype", "F32"},
                               {"shape", json::array(shape.begin(), shape.end())},
                               {"data_offsets", {at, at + bytes}}};
        at += bytes;
    }
    std::string start = safetensors_file(json::serialize(header), "");
    testing::write_bytes(made.folder.file("model.safetensors"), start);
    fs::resize_file(made.folder.file("model.safetensors"), start.size() + at);
}

TEST(LoaderProcess, HandsOverASealedSetWhoseBytesAreTheFiles) {
    TestCheckpoint made("Qwen3ForCausalLM", true);
    made.write_sharded(2);
    RunningLoader loader(made.path());
    auto planned = loader.expect<protocol::Planned>();
    EXPECT_EQ(planned.tensors, made.tensors.size() + 1);
    ASSERT_EQ(planned.segment_bytes.size(), 1U);
    loader.send(protocol::Go{});
    auto last = loader.after_progress();
    ASSERT_TRUE(last) << last.error().message << loader.log();
    ASSERT_TRUE(std::holds_alternative<protocol::Sealed>(*last)) << loader.log();
    const auto& sealed = std::get<protocol::Sealed>(*last);
    EXPECT_EQ(sealed.fingerprint, planned.fingerprint);
    EXPECT_EQ(sealed.segment_bytes, planned.segment_bytes);
    ASSERT_EQ(loader.fds().size(), 2U);
    std::vector<UniqueFd> fds = std::move(loader.fds());
    // The loader stays until the set is kept, and the set outlives it.
    EXPECT_TRUE(process_id(loader.pid()));
    loader.send(protocol::Kept{});
    int status = loader.wait();
    EXPECT_EQ(describe_exit(status), "exit code 0") << loader.log();

    auto manifest = Manifest::open(fds[0], sealed.segment_bytes);
    ASSERT_TRUE(manifest) << manifest.error().message;
    EXPECT_EQ(manifest->fingerprint(), planned.fingerprint);
    EXPECT_EQ(manifest->fingerprint_json(), planned.fingerprint_json);
    EXPECT_EQ(manifest->config_json(), json::serialize(made.config));
    auto device = open_device("host-0").value();
    Segment segment{std::move(fds[1]), sealed.segment_bytes[0]};
    auto mapping = device->map_read_only(segment);
    ASSERT_TRUE(mapping) << mapping.error().message;
    for (const auto& tensor : made.tensors) {
        TensorView view = manifest->at(static_cast<size_t>(manifest->find(tensor.name)));
        EXPECT_EQ(view.bytes, tensor.bytes.size());
        EXPECT_EQ(std::memcmp(mapping->data() + view.offset, tensor.bytes.data(), view.bytes), 0)
            << tensor.name;
    }
    EXPECT_TRUE(verify(*device, *manifest, std::span(&*mapping, 1))->empty());
}

TEST(LoaderProcess, ABrokenCheckpointFailsByNameBeforeAnythingIsPlanned) {
    TestCheckpoint made;
    made.write_single();
    std::string path = made.folder.file("model.safetensors");
    fs::resize_file(path, fs::file_size(path) - 1);
    RunningLoader loader(made.path());
    auto failed = loader.expect<protocol::Failed>();
    EXPECT_EQ(failed.error.reason, "TruncatedFile");
    EXPECT_THAT(failed.error.message,
                HasSubstr("model.safetensors: tensor 'model.layers.1.mlp.down_proj.weight'"));
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1");
}

TEST(LoaderProcess, AFileThatChangesWhileRoomIsMadeFailsTheLoad) {
    TestCheckpoint made;
    made.write_single();
    RunningLoader loader(made.path());
    loader.expect<protocol::Planned>();
    touch_later(made.folder.file("model.safetensors"));
    loader.send(protocol::Go{});
    auto last = loader.after_progress();
    ASSERT_TRUE(last) << last.error().message;
    ASSERT_TRUE(std::holds_alternative<protocol::Failed>(*last));
    EXPECT_EQ(std::get<protocol::Failed>(*last).error.reason, "FileChanged");
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1");
}

TEST(LoaderProcess, ARefusalOfRoomEndsIt) {
    TestCheckpoint made;
    made.write_single();
    RunningLoader loader(made.path());
    loader.expect<protocol::Planned>();
    loader.send(
        protocol::Failed{0, {ErrorCode::kResourceExhausted, "no room for it", "NoRoom", 0}});
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1");
    EXPECT_THAT(loader.log(), HasSubstr("no room for it"));
}

TEST(LoaderProcess, ItEndsWhenBerthdDiesBeforeTheGo) {
    TestCheckpoint made;
    made.write_single();
    RunningLoader loader(made.path());
    loader.expect<protocol::Planned>();
    loader.hang_up();
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1");
}

TEST(LoaderProcess, ItEndsWhenBerthdDiesWhileItReads) {
    TestCheckpoint made("LlamaForCausalLM", true);
    write_large(made);
    RunningLoader loader(made.path(), {"--threads", "1"});
    loader.expect<protocol::Planned>();
    loader.send(protocol::Go{});
    auto progress = loader.expect<protocol::Progress>();
    EXPECT_EQ(progress.phase, "loading");
    EXPECT_GT(progress.bytes_total, uint64_t{380'000'000});
    loader.hang_up();
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1") << loader.log();
}

TEST(LoaderProcess, KilledWhileItReadsItHandsOverNothing) {
    TestCheckpoint made("LlamaForCausalLM", true);
    write_large(made);
    RunningLoader loader(made.path(), {"--threads", "1"});
    loader.expect<protocol::Planned>();
    loader.send(protocol::Go{});
    loader.expect<protocol::Progress>();
    loader.kill();
    EXPECT_EQ(describe_exit(loader.wait()), "killed by SIGKILL");
    auto last = loader.after_progress();
    ASSERT_FALSE(last) << "a message came after the loader's death";
    EXPECT_EQ(last.error().code, ErrorCode::kUnavailable);
}

TEST(LoaderProcess, ProgressComesAtMostTenTimesASecond) {
    TestCheckpoint made("LlamaForCausalLM", true);
    write_large(made);
    RunningLoader loader(made.path(), {"--threads", "1"});
    loader.expect<protocol::Planned>();
    auto start = std::chrono::steady_clock::now();
    loader.send(protocol::Go{});
    auto last = loader.after_progress();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(last) << last.error().message << loader.log();
    ASSERT_TRUE(std::holds_alternative<protocol::Sealed>(*last));
    EXPECT_LE(loader.progress_count(), static_cast<int>(took.count() * 10) + 1);
    loader.send(protocol::Kept{});
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 0");
}

TEST(LoaderProcess, ByHandItChecksAndVerifies) {
    TestCheckpoint made("LlamaForCausalLM", true);
    made.write_single();
    TempFolder folder;
    struct Case {
        std::vector<std::string> arguments;
        std::string exit;
        std::string words;
    };
    const std::vector<Case> cases = {
        {{"--model", made.path(), "--check"},
         "exit code 0",
         "alias        lm_head.weight = model."},
        {{"--model", made.path(), "--check", "--json"}, "exit code 0", "\"segmentBytes\":"},
        {{"--model", made.path(), "--verify"}, "exit code 0", "verified: every tensor's bytes"},
        {{"--model", made.path(), "--verify", "--json", "--dtype", "bfloat16"},
         "exit code 0",
         "\"different\":[]"},
        {{"--model", folder.path(), "--check"}, "exit code 1", "no safetensors file"},
        {{"--help"}, "exit code 0", "--control-fd"},
        {{"--model"}, "exit code 2", "--model"},
    };
    for (const Case& one : cases) {
        SpawnOptions options;
        options.command = {loader_path()};
        options.command.insert(options.command.end(), one.arguments.begin(), one.arguments.end());
        options.log_path = folder.file("out");
        fs::remove(options.log_path);
        auto process = Process::spawn(options);
        ASSERT_TRUE(process) << process.error().message;
        pollfd watched = {process->pidfd(), POLLIN, 0};
        ASSERT_EQ(::poll(&watched, 1, 20'000), 1);
        EXPECT_EQ(describe_exit(process->try_wait().value_or(-1)), one.exit) << one.words;
        EXPECT_THAT(read_bytes(options.log_path), HasSubstr(one.words));
    }
}

} // namespace
} // namespace berth
