// SPDX-License-Identifier: Apache-2.0
// What one peer may take of the engines' door, and how it is told. A real server on a thread.
#include "scheduler/wire/session_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <poll.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace berth {
namespace {

using namespace std::chrono_literals;

class Counting final : public SessionServer::Observer {
  public:
    void on_session(SessionId, const PeerCredentials&) override { ++opened; }
    void on_message(SessionId, protocol::Message, std::vector<UniqueFd> fds) override {
        ++messages;
        descriptors += fds.size();
    }
    void on_session_closed(SessionId, const std::string&) override { ++closed; }
    std::atomic<size_t> opened{0}, messages{0}, descriptors{0}, closed{0};
};

class Sessions : public testing::Test {
  protected:
    Sessions() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-wire-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
        server_ =
            std::make_unique<SessionServer>(context_, observer_, PeerPolicy{::geteuid(), {}, {}});
        auto listening = server_->listen(path(), 0660);
        EXPECT_TRUE(listening) << listening.error().message;
        thread_ = std::thread([this] { context_.run(); });
    }
    ~Sessions() override {
        boost::asio::post(context_, [this] {
            server_->stop();
            context_.stop();
        });
        thread_.join();
        std::filesystem::remove_all(folder_);
    }
    Sessions(const Sessions&) = delete;
    Sessions& operator=(const Sessions&) = delete;

    std::string path() const { return folder_ + "/berthd.sock"; }
    UniqueFd connect() const {
        auto socket = connect_packets(path());
        EXPECT_TRUE(socket) << socket.error().message;
        return socket ? std::move(*socket) : UniqueFd();
    }
    static void say(const UniqueFd& socket, const protocol::Message& message,
                    const std::vector<int>& fds = {}) {
        auto sent = send_packet(socket.get(), protocol::encode(message), fds,
                                std::chrono::steady_clock::now() + 20s);
        EXPECT_TRUE(sent) << sent.error().message;
    }
    // The refusal that is said unasked; empty when the connection ends without one.
    static Error told(const UniqueFd& socket, std::chrono::seconds within = 20s) {
        auto packet = receive_packet(socket.get(), std::chrono::steady_clock::now() + within);
        if (!packet)
            return {};
        auto message = protocol::decode(packet->payload);
        const auto* failed = message ? std::get_if<protocol::Failed>(&*message) : nullptr;
        return failed != nullptr ? failed->error : Error{};
    }
    size_t on_loop(const std::function<size_t()>& ask) {
        std::promise<size_t> answer;
        boost::asio::post(context_, [&] { answer.set_value(ask()); });
        return answer.get_future().get();
    }
    size_t half_open() {
        return on_loop([this] { return server_->half_open(); });
    }
    static bool eventually(const std::function<bool()>& condition) {
        auto until = std::chrono::steady_clock::now() + 20s;
        while (!condition()) {
            if (std::chrono::steady_clock::now() > until)
                return false;
            ::poll(nullptr, 0, 5);
        }
        return true;
    }

    Counting observer_;
    boost::asio::io_context context_;
    std::string folder_;
    std::unique_ptr<SessionServer> server_;
    std::thread thread_;
};

TEST_F(Sessions, TheSocketIsTheGroupsAlone) {
    struct stat file{};
    ASSERT_EQ(::stat(path().c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777U, 0660U);
}

TEST_F(Sessions, ThoseWhoSayNothingAreSoManyAndAreForgottenWhenTheyLeaveOrSpeak) {
    std::vector<UniqueFd> silent;
    for (size_t i = 0; i < SessionServer::kHalfOpenPerUserMax; ++i)
        silent.push_back(connect());
    ASSERT_TRUE(eventually([&] { return half_open() == SessionServer::kHalfOpenPerUserMax; }));
    Error refusal = told(connect());
    EXPECT_EQ(refusal.reason, "TooManyHalfOpen") << refusal.message;
    say(silent[0], protocol::Hello{});
    silent[1].reset();
    ASSERT_TRUE(eventually([&] { return half_open() == SessionServer::kHalfOpenPerUserMax - 2; }));
    UniqueFd late = connect();
    ASSERT_TRUE(
        eventually([&] { return observer_.opened == SessionServer::kHalfOpenPerUserMax + 1; }));
    silent.clear();
    late.reset();
    EXPECT_TRUE(eventually([&] { return half_open() == 0; }));
    EXPECT_EQ(observer_.closed, observer_.opened);
}

TEST_F(Sessions, WhoSaysNothingIsEndedInWordsAndWhoSaidHelloStays) {
    std::vector<UniqueFd> silent; // more than are ended in one turn
    for (int i = 0; i < 3 * SessionServer::kSilentPerTurn; ++i)
        silent.push_back(connect());
    UniqueFd greeted = connect();
    say(greeted, protocol::Hello{});
    for (const UniqueFd& one : silent) {
        Error refusal = told(one, 2 * SessionServer::kHelloMax);
        EXPECT_EQ(refusal.reason, "NoHello");
        EXPECT_NE(refusal.message.find("hello"), std::string::npos) << refusal.message;
    }
    EXPECT_TRUE(eventually([&] { return observer_.closed == silent.size(); }));
    EXPECT_EQ(on_loop([this] { return server_->size(); }), 1U);
}

TEST_F(Sessions, DescriptorsByTheThousandPassThroughAndNoneStays) {
    UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    auto open_now = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                             std::filesystem::directory_iterator());
    };
    UniqueFd peer = connect();
    say(peer, protocol::Hello{});
    ASSERT_TRUE(eventually([&] { return observer_.messages == 1; }));
    auto before = open_now();
    for (int i = 0; i < 200; ++i)
        say(peer, protocol::Report{}, std::vector<int>(kPacketFdsMax, null.get()));
    ASSERT_TRUE(eventually([&] { return observer_.messages == 201; }));
    EXPECT_EQ(observer_.descriptors, 200 * kPacketFdsMax);
    EXPECT_TRUE(eventually([&] { return open_now() == before; }));
}

// What is posted to the loop waits for a turn of the round, not for all that is to be read.
TEST_F(Sessions, AFloodFromManyLeavesTheLoopToOthersBetweenTurns) {
    constexpr int kPeers = 8;
    constexpr int kEach = 2'000;
    std::vector<std::thread> peers;
    for (int i = 0; i < kPeers; ++i)
        peers.emplace_back([this] {
            UniqueFd socket = connect();
            say(socket, protocol::Hello{});
            for (int n = 0; n < kEach; ++n)
                say(socket, protocol::Report{});
        });
    size_t looks = 0;
    size_t read_between_most = 0;
    size_t last = 0;
    const size_t all = kPeers * (kEach + 1);
    while (observer_.messages < all && looks < 1'000'000) {
        size_t now = on_loop([this] { return observer_.messages.load(); });
        size_t later = on_loop([this] { return observer_.messages.load(); });
        read_between_most = std::max(read_between_most, later - now);
        last = later;
        ++looks;
    }
    for (std::thread& peer : peers)
        peer.join();
    EXPECT_TRUE(eventually([&] { return observer_.messages == all; })) << last;
    EXPECT_GT(looks, 10U) << "the loop was never free in between";
    RecordProperty("messages_between_two_looks_max", static_cast<int>(read_between_most));
}

} // namespace
} // namespace berth
