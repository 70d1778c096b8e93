// SPDX-License-Identifier: Apache-2.0
// Goal: descriptors outlive everybody but the keeper, and nothing a peer sends ends it. Method: the
// real program, its real socket, and what /proc says about it.
#include "base/packet_socket.h"
#include "cache/keep/keeper_client.h"
#include "cache/keep/keeper_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace berth {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::string keeper_program() {
    const char* folder = std::getenv("BERTH_BIN_DIR");
    return (folder != nullptr ? std::string(folder) : program_directory() + "/../bin") +
           "/berth-keeper";
}

UniqueFd memfd_with(const std::string& text) {
    UniqueFd fd(::memfd_create("berth-manifest", MFD_CLOEXEC));
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return fd;
}

std::string text_of(const UniqueFd& fd) {
    std::string text(4096, '\0');
    ssize_t got = ::pread(fd.get(), text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
}

class Keeper : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = std::filesystem::temp_directory_path() / "berth-keep-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        start_.directory = pattern;
        start_.log_path = pattern + "/keeper.log";
        start_.program = keeper_program();
    }
    void TearDown() override {
        if (keeper_.process)
            end(SIGKILL);
        std::filesystem::remove_all(start_.directory);
    }

    RunningKeeper& keeper() {
        auto ensured = ensure_keeper(start_);
        EXPECT_TRUE(ensured.has_value()) << (ensured ? "" : ensured.error().message) << log();
        if (ensured && (ensured->started || !keeper_.process))
            keeper_ = std::move(*ensured);
        return keeper_;
    }
    KeeperClient connect() {
        auto client = KeeperClient::connect(start_.directory + "/keeper.sock");
        EXPECT_TRUE(client.has_value()) << (client ? "" : client.error().message);
        return client ? std::move(*client) : KeeperClient();
    }
    int end(int number) {
        EXPECT_TRUE(keeper_.process.signal(number).has_value());
        pollfd waiting{keeper_.process.pidfd(), POLLIN, 0};
        EXPECT_EQ(::poll(&waiting, 1, 20'000), 1);
        int status = keeper_.process.try_wait().value_or(-1);
        keeper_ = RunningKeeper{};
        return status;
    }
    std::string log() const { return read_file(start_.log_path).value_or(""); }
    size_t open_descriptors() const {
        auto folder = fmt::format("/proc/{}/fd", keeper_.process.id().pid);
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                                 std::filesystem::directory_iterator()));
    }

    KeeperStart start_;
    RunningKeeper keeper_;
};

TEST_F(Keeper, DescriptorsOutliveTheClientThatBroughtThem) {
    keeper();
    {
        // A client of its own, which is killed: not closed in good order.
        int pid = ::fork();
        if (pid == 0) {
            KeeperClient client = connect();
            UniqueFd fd = memfd_with("the same bytes");
            UniqueFd second = memfd_with("and more");
            bool put = client.put("set/1", R"({"a":[1,2]})", {fd.get(), second.get()}).has_value();
            if (put)
                ::kill(::getpid(), SIGKILL);
            ::_exit(1);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(pid, &status, 0), pid);
        ASSERT_TRUE(WIFSIGNALED(status));
    }
    KeeperClient client = connect();
    auto all = client.list();
    ASSERT_TRUE(all.has_value()) << all.error().message;
    ASSERT_EQ(all->size(), 1U);
    EXPECT_EQ(all->front().key, "set/1");
    EXPECT_EQ(all->front().meta, R"({"a":[1,2]})");
    EXPECT_EQ(all->front().fds, 2U);
    auto entry = client.get("set/1");
    ASSERT_TRUE(entry.has_value()) << entry.error().message;
    EXPECT_EQ(entry->meta, R"({"a":[1,2]})");
    ASSERT_EQ(entry->fds.size(), 2U);
    EXPECT_EQ(text_of(entry->fds[0]), "the same bytes");
    EXPECT_EQ(text_of(entry->fds[1]), "and more");
}

TEST_F(Keeper, IsFoundAgainAndNotStartedTwice) {
    auto first = ensure_keeper(start_);
    ASSERT_TRUE(first.has_value()) << first.error().message << log();
    EXPECT_TRUE(first->started);
    int pid = first->process.id().pid;
    auto again = ensure_keeper(start_);
    ASSERT_TRUE(again.has_value());
    EXPECT_FALSE(again->started);
    EXPECT_EQ(again->process.id().pid, pid);
    EXPECT_EQ(::getsid(pid), pid) << "a session of its own";
    struct stat facts{};
    ASSERT_EQ(::stat((start_.directory + "/keeper.sock").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U, 0600U);
    keeper_ = std::move(*first);

    SpawnOptions second;
    second.command = {keeper_program(), "--socket", start_.directory + "/keeper.sock"};
    second.log_path = start_.log_path;
    auto process = Process::spawn(second);
    ASSERT_TRUE(process.has_value());
    pollfd waiting{process->pidfd(), POLLIN, 0};
    ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
    EXPECT_EQ(WEXITSTATUS(process->try_wait().value_or(0)), 1);
    EXPECT_THAT(log(), HasSubstr("another keeper holds the lock"));
    EXPECT_TRUE(connect().ping().has_value());
}

TEST_F(Keeper, AnotherIsStartedWhenItWasKilled) {
    ASSERT_TRUE(keeper().client.put("k", "{}", {memfd_with("x").get()}).has_value());
    KeeperClient old = connect();
    EXPECT_TRUE(WIFSIGNALED(end(SIGKILL)));
    EXPECT_EQ(old.ping().error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(old.ping().error().code, ErrorCode::kUnavailable);
    RunningKeeper& next = keeper();
    EXPECT_TRUE(next.started);
    EXPECT_EQ(next.client.ping()->entries, 0U);
}

TEST_F(Keeper, SaysInTheErrorWhyItDidNotStart) {
    start_.program = "/bin/false";
    start_.timeout = 2s;
    auto ensured = ensure_keeper(start_);
    ASSERT_FALSE(ensured.has_value());
    EXPECT_THAT(ensured.error().message, HasSubstr("exit code 1"));
    start_.program = "/nowhere/berth-keeper";
    EXPECT_FALSE(ensure_keeper(start_).has_value());
}

TEST_F(Keeper, OneThatHangsIsLeftAloneAndNamed) {
    keeper();
    ASSERT_TRUE(keeper_.process.signal(SIGSTOP).has_value());
    auto ensured = ensure_keeper(start_);
    ASSERT_FALSE(ensured.has_value());
    EXPECT_EQ(ensured.error().reason, "KeeperStuck");
    ASSERT_TRUE(keeper_.process.signal(SIGCONT).has_value());
    EXPECT_TRUE(connect().ping().has_value());
}

TEST_F(Keeper, ReplacesAnExistingKeyAtOnce) {
    KeeperClient& client = keeper().client;
    ASSERT_TRUE(client.put("k", R"({"n":1})", {memfd_with("old").get()}).has_value());
    size_t before = open_descriptors();
    ASSERT_TRUE(client.put("k", R"({"n":2})", {memfd_with("new").get()}).has_value());
    EXPECT_EQ(open_descriptors(), before);
    auto entry = client.get("k");
    ASSERT_TRUE(entry.has_value());
    EXPECT_EQ(entry->meta, R"({"n":2})");
    ASSERT_EQ(entry->fds.size(), 1U);
    EXPECT_EQ(text_of(entry->fds[0]), "new");
    EXPECT_EQ(client.list()->size(), 1U);
    EXPECT_TRUE(client.drop("k").has_value());
    EXPECT_EQ(client.drop("k").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(client.get("k").error().code, ErrorCode::kNotFound);
    EXPECT_TRUE(client.ping().has_value()) << "an error reply leaves the connection usable";
}

TEST_F(Keeper, ThousandPutsAndDropsLeakNothing) {
    KeeperClient& client = keeper().client;
    UniqueFd one = memfd_with("1");
    UniqueFd two = memfd_with("2");
    ASSERT_TRUE(client.ping().has_value());
    size_t before = open_descriptors();
    for (int i = 0; i < 1000; ++i) {
        std::string key = fmt::format("k{}", i % 7);
        ASSERT_TRUE(client.put(key, "{}", {one.get(), two.get()}).has_value());
        if (i % 3 == 0)
            ASSERT_EQ(client.get(key)->fds.size(), 2U);
        ASSERT_TRUE(client.drop(key).has_value());
    }
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_EQ(client.ping()->descriptors, 0U);
}

TEST_F(Keeper, SurvivesMalformedMessagesAndRudePeers) {
    keeper();
    ASSERT_TRUE(keeper_.client.put("kept", "{}", {memfd_with("kept").get()}).has_value());
    size_t before = open_descriptors();
    UniqueFd fd = memfd_with("stray");
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    std::string path = start_.directory + "/keeper.sock";
    {
        auto rude = connect_packets(path);
        ASSERT_TRUE(rude.has_value());
        std::vector<int> many(kPacketFdsMax, fd.get());
        for (const std::string& text :
             {std::string("x"), std::string(1, '\0'), std::string(kPacketBytesMax, '{'),
              std::string(R"({"v":1,"op":"put","key":"k","meta":{}})")}) {
            ASSERT_TRUE(send_packet(rude->get(), text, many, deadline).has_value());
            auto reply = receive_packet(rude->get(), deadline);
            ASSERT_TRUE(reply.has_value()) << reply.error().message;
            EXPECT_THAT(reply->payload, HasSubstr(R"("ok":false)"));
        }
        // Over the limit of one message: cut short, answered, closed.
        std::string large(kPacketBytesMax + 1, ' ');
        ASSERT_EQ(::send(rude->get(), large.data(), large.size(), 0),
                  static_cast<ssize_t>(large.size()));
        EXPECT_THAT(receive_packet(rude->get(), deadline)->payload, HasSubstr("Corrupt"));
    }
    // A peer that asks and asks and never takes an answer gets no further than its socket.
    auto deaf = connect_packets(path);
    std::string meta = fmt::format(R"({{"x":"{}"}})", std::string(90'000, 'x'));
    ASSERT_TRUE(keeper_.client.put("large", meta, {}).has_value());
    for (int i = 0; i < 200; ++i)
        (void)send_packet_nowait(deaf->get(), R"({"v":1,"op":"get","key":"large"})", {});
    // More connections than it keeps: the newest are served.
    std::vector<UniqueFd> crowd;
    for (int i = 0; i < 200; ++i)
        crowd.push_back(std::move(*connect_packets(path)));
    KeeperClient late = connect();
    ASSERT_TRUE(late.ping().has_value());
    EXPECT_EQ(text_of(late.get("kept")->fds.at(0)), "kept");
    crowd.clear();
    deaf = UniqueFd();
    ASSERT_TRUE(late.drop("large").has_value());
    // The oldest connection was displaced; its client is told, and comes again.
    EXPECT_EQ(keeper_.client.ping().error().code, ErrorCode::kUnavailable);
    late = KeeperClient();
    for (int i = 0; i < 100 && open_descriptors() > before; ++i)
        ::poll(nullptr, 0, 20);
    EXPECT_LE(open_descriptors(), before);
}

TEST_F(Keeper, SaysSoWhenDescriptorsRunOut) {
    // The test's own way in: a keeper that may have 100 descriptors.
    SpawnOptions options;
    options.command = {"/bin/sh", "-c", "ulimit -n 100 && exec \"$0\" --socket \"$1\"",
                       keeper_program(), start_.directory + "/keeper.sock"};
    options.log_path = start_.log_path;
    auto process = Process::spawn(options);
    ASSERT_TRUE(process.has_value());
    for (int i = 0; i < 500 && !KeeperClient::connect(start_.directory + "/keeper.sock"); ++i)
        ::poll(nullptr, 0, 10);
    keeper_.process = std::move(*process);
    KeeperClient client = connect();
    UniqueFd fd = memfd_with("x");
    std::vector<int> eight(8, fd.get());
    int held = 0;
    Status put;
    for (; held < 20 && put; ++held)
        put = client.put(fmt::format("k{}", held), "{}", eight);
    ASSERT_FALSE(put.has_value());
    EXPECT_EQ(put.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(put.error().reason, "NoDescriptors");
    EXPECT_GE(held, 5);
    EXPECT_EQ(client.get("k0")->fds.size(), 8U);
    ASSERT_TRUE(client.drop("k0").has_value());
    EXPECT_TRUE(client.put("again", "{}", eight).has_value());
}

TEST_F(Keeper, IgnoresHangupAndOnTerminationLogsWhatItHeld) {
    ASSERT_TRUE(keeper().client.put("set/7", "{}", {memfd_with("x").get()}).has_value());
    ASSERT_TRUE(keeper_.process.signal(SIGHUP).has_value());
    EXPECT_TRUE(keeper_.client.ping().has_value());
    EXPECT_EQ(end(SIGTERM), 0);
    EXPECT_THAT(log(), HasSubstr("SIGTERM; held entries=1 descriptors=1: set/7 (1)"));
}

} // namespace
} // namespace berth
