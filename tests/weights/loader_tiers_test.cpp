// SPDX-License-Identifier: Apache-2.0
// Goal: berth-loader brings sets from images and from other devices as it brings checkpoints, and
// writes images of what it loads. Method: the real program; the test is berthd, or whoever types.
#include "cache/load/copy_set.h"
#include "cache/load/image.h"
#include "tests/weights/running_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

namespace berth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_bytes;
using testing::RunningLoader;
using testing::TempFolder;
using testing::TestCheckpoint;
using testing::touch_later;
namespace fs = std::filesystem;

constexpr const char* kEnvironment = R"({"device_kind":"host","layout":"berth-1"})";

// The program by hand: its exit and all it printed.
struct Ran {
    std::string end;
    std::string text;
};
Ran by_hand(std::vector<std::string> arguments, std::vector<std::pair<int, int>> fds = {}) {
    TempFolder folder;
    SpawnOptions options;
    options.command = {testing::loader_path()};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    options.log_path = folder.file("log");
    options.inherit_fds = std::move(fds);
    auto process = Process::spawn(options);
    EXPECT_TRUE(process) << process.error().message;
    pollfd watched = {process->pidfd(), POLLIN, 0};
    EXPECT_EQ(::poll(&watched, 1, 20'000), 1) << "the loader did not end";
    return {describe_exit(process->try_wait().value_or(-1)), read_bytes(folder.file("log"))};
}

class LoaderTiers : public ::testing::Test {
  protected:
    LoaderTiers() { made_.write_single(); }

    void write_an_image() {
        Ran ran = by_hand({"--model", made_.path(), "--write-image", image_});
        ASSERT_EQ(ran.end, "exit code 0") << ran.text;
    }
    LoadedSet loaded() {
        LoadRequest request;
        request.path = made_.path();
        request.environment = {"host", "", "", "any"};
        return run_load(plan_load(request).value(), *device_, 1, {}).value();
    }
    static std::vector<std::pair<int, int>> handed(const LoadedSet& set) {
        return {{set.manifest.get(), 4}, {set.segments[0].fd.get(), 5}};
    }
    // The rest of the conversation, and what came of it.
    void expect_whole(RunningLoader& loader) {
        auto planned = loader.expect<protocol::Planned>();
        loader.send(protocol::Go{});
        auto last = loader.after_progress();
        ASSERT_TRUE(last) << last.error().message << loader.log();
        ASSERT_TRUE(std::holds_alternative<protocol::Sealed>(*last)) << loader.log();
        const auto& sealed = std::get<protocol::Sealed>(*last);
        EXPECT_EQ(sealed.fingerprint, planned.fingerprint);
        EXPECT_EQ(sealed.segment_bytes, planned.segment_bytes);
        EXPECT_EQ(planned.tensors, made_.tensors.size());
        ASSERT_EQ(loader.fds().size(), 2U);
        std::vector<UniqueFd> fds = std::move(loader.fds());
        loader.send(protocol::Kept{});
        EXPECT_EQ(describe_exit(loader.wait()), "exit code 0") << loader.log();
        auto manifest = Manifest::open(fds[0], sealed.segment_bytes);
        ASSERT_TRUE(manifest) << manifest.error().message;
        EXPECT_EQ(manifest->fingerprint(), planned.fingerprint);
        EXPECT_EQ(manifest->fingerprint_json(), planned.fingerprint_json);
        auto mapping = device_->map_read_only({std::move(fds[1]), sealed.segment_bytes[0]}).value();
        for (const auto& tensor : made_.tensors) {
            TensorView view = manifest->at(static_cast<size_t>(manifest->find(tensor.name)));
            EXPECT_EQ(std::memcmp(mapping.data() + view.offset, tensor.bytes.data(), view.bytes), 0)
                << tensor.name;
        }
    }

    TestCheckpoint made_;
    TempFolder folder_;
    std::string image_ = folder_.file("set.image");
    std::unique_ptr<Device> device_ = open_device("host-0").value();
};

TEST_F(LoaderTiers, AnImageComesToBerthdAsALoadDoes) {
    write_an_image();
    RunningLoader loader(std::vector<std::string>{"--device", "host-0", "--image", image_,
                                                  "--environment", kEnvironment});
    expect_whole(loader);
}

TEST_F(LoaderTiers, AHandedSetComesToBerthdAsALoadDoes) {
    LoadedSet set = loaded();
    RunningLoader loader({"--device", "host-1", "--source-fds", "4,5", "--source-device", "host-0",
                          "--environment", kEnvironment},
                         handed(set));
    expect_whole(loader);
}

TEST_F(LoaderTiers, AnImageIsWrittenOfAHandedSet) {
    LoadedSet set = loaded();
    std::vector<std::string> command = {"--write-image",   image_,  "--source-fds", "4,5",
                                        "--source-device", "host-0"};
    Ran ran = by_hand(command, handed(set));
    ASSERT_EQ(ran.end, "exit code 0") << ran.text;
    auto again = run_image_load(image_, {}, *device_, 1, {}, {});
    ASSERT_TRUE(again) << again.error().message;

    command[1] = folder_.file("none/image");
    ran = by_hand(command, handed(set));
    EXPECT_EQ(ran.end, "exit code 1");
    EXPECT_THAT(ran.text, HasSubstr("none/image"));
    // A descriptor that is missing.
    ran = by_hand(command, {{set.manifest.get(), 4}});
    EXPECT_EQ(ran.end, "exit code 1");
    EXPECT_THAT(ran.text, HasSubstr("descriptor 5 is not open"));
}

TEST_F(LoaderTiers, ABrokenImageFailsBeforeAnythingIsPlanned) {
    write_an_image();
    fs::resize_file(image_, fs::file_size(image_) - 1);
    RunningLoader loader(std::vector<std::string>{"--device", "host-0", "--image", image_,
                                                  "--environment", kEnvironment});
    auto failed = loader.expect<protocol::Failed>();
    EXPECT_EQ(failed.error.reason, "TruncatedImage");
    EXPECT_EQ(describe_exit(loader.wait()), "exit code 1");
}

TEST_F(LoaderTiers, AnImageOfAnotherRecipeIsRefusedWithTheTable) {
    write_an_image();
    std::vector<std::string> command = {"--model", made_.path(), "--image", image_};
    Ran ran = by_hand(command);
    EXPECT_EQ(ran.end, "exit code 0") << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("loaded"));

    command.insert(command.end(), {"--dtype", "bfloat16"});
    ran = by_hand(command);
    EXPECT_EQ(ran.end, "exit code 1");
    EXPECT_THAT(ran.text, HasSubstr("FingerprintMismatch"));
    EXPECT_THAT(ran.text, ::testing::ContainsRegex("field +cached +wanted"));
    EXPECT_THAT(ran.text, ::testing::ContainsRegex("dtype +auto +bfloat16"));

    command.resize(4);
    touch_later(made_.folder.file("model.safetensors"));
    ran = by_hand(command);
    EXPECT_EQ(ran.end, "exit code 1");
    EXPECT_THAT(ran.text, HasSubstr("checkpoint.files.model.safetensors.mtimeNs"));
    EXPECT_THAT(ran.text, Not(HasSubstr("environment.")));
}

TEST_F(LoaderTiers, ACheckpointThatCannotBeLookedAtIsNoFaultOfItsImage) {
    write_an_image();
    const std::vector<std::string> command = {
        "--model", made_.path(), "--device",      "host-0",
        "--image", image_,       "--environment", R"({"device_kind":"host"})"};
    const std::string weights = made_.folder.file("model.safetensors");
    fs::resize_file(weights, fs::file_size(weights) - 1); // a download that is not done
    for (const char* what : {"cut off", "gone"}) {
        RunningLoader loader(command);
        auto failed = loader.expect<protocol::Failed>();
        EXPECT_EQ(failed.error.reason, "CheckpointAbsent") << what;
        EXPECT_EQ(failed.error.code, ErrorCode::kUnavailable) << what;
        EXPECT_THAT(failed.error.message, HasSubstr(image_));
        EXPECT_THAT(failed.error.message, HasSubstr(made_.path()));
        fs::remove_all(made_.path());
    }
    EXPECT_TRUE(open_image(image_));
}

TEST_F(LoaderTiers, EveryRankHasAnImageOfItsOwn) {
    made_.config["hidden_size"] = 256;
    made_.config["intermediate_size"] = 1024;
    made_.config["num_attention_heads"] = 8;
    made_.config["num_key_value_heads"] = 2;
    made_.config["head_dim"] = 128;
    made_.config["vocab_size"] = 512;
    made_.fill();
    made_.write_single();
    Ran ran =
        by_hand({"--model", made_.path(), "--tp", "2", "--ranks", "all", "--write-image", image_});
    ASSERT_EQ(ran.end, "exit code 0") << ran.text;
    EXPECT_FALSE(fs::exists(image_));
    Image first = open_image(image_ + ".rank0").value();
    Image second = open_image(image_ + ".rank1").value();
    EXPECT_NE(first.fingerprint, second.fingerprint);
    ran = by_hand(
        {"--model", made_.path(), "--tp", "2", "--ranks", "1", "--image", image_ + ".rank0"});
    EXPECT_EQ(ran.end, "exit code 1");
    EXPECT_THAT(ran.text, ::testing::ContainsRegex("slicing.rank +0 +1"));
}

TEST_F(LoaderTiers, WaysThatExcludeEachOtherAreRefusedInWords) {
    std::vector<std::vector<std::string>> wrong = {
        {},
        {"--image", image_, "--write-image", image_},
        {"--source-fds", "4,5"},
        {"--source-fds", "4,5", "--source-device", "host-0"},
        {"--source-fds", "4,5", "--source-device", "host-0", "--image", image_},
        {"--model", made_.path(), "--control-fd", "3", "--write-image", image_},
    };
    for (const std::vector<std::string>& command : wrong) {
        Ran ran = by_hand(command);
        EXPECT_EQ(ran.end, "exit code 2") << ::testing::PrintToString(command);
        EXPECT_THAT(ran.text, HasSubstr("--"));
    }
}

} // namespace
} // namespace berth
