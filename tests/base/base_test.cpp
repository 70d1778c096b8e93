// SPDX-License-Identifier: Apache-2.0
// Units, descriptors, files and packet sockets.
#include "base/descriptors.h"
#include "base/folder.h"
#include "base/hash.h"
#include "base/listen_socket.h"
#include "base/packet_socket.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "base/unix_address.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

namespace berth {
namespace {

class Folder {
  public:
    Folder() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "berth-base-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

Deadline soon() {
    return std::chrono::steady_clock::now() + std::chrono::seconds(5);
}

bool is_open(int fd) {
    return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(Entries, AreAllThatLiesInAFolderOrAnError) {
    const Folder folder;
    EXPECT_TRUE(entries_of(folder / "").value().empty());
    for (const char* name : {"a", ".hidden"})
        UniqueFd(::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    std::vector<std::string> found = entries_of(folder / ".").value();
    std::ranges::sort(found);
    EXPECT_EQ(found, (std::vector{folder / "./.hidden", folder / "./a"}));
    EXPECT_EQ(entries_of(folder / "none").error().source, ENOENT);
    EXPECT_EQ(entries_of(folder / "a").error().source, ENOTDIR);
}

TEST(Bytes, AreReadWithTheirUnits) {
    EXPECT_EQ(*parse_bytes("0"), 0U);
    EXPECT_EQ(*parse_bytes("4096"), 4096U);
    EXPECT_EQ(*parse_bytes("64Ki"), 65536U);
    EXPECT_EQ(*parse_bytes("1.5Gi"), uint64_t{3} << 29);
    EXPECT_EQ(*parse_bytes("10G"), 10'000'000'000U);
    EXPECT_EQ(*parse_bytes("18446744073709551615"), UINT64_MAX);
    for (const char* bad : {"", "-1", "1.5", "Gi", "5Qi", "1Gi ", " 1Gi", "1GiGi", "1e9",
                            "18446744073709551616", "99999999999Ti", "0x10", "1,5Gi"})
        EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Bytes, AreWrittenSoThatTheyReadBack) {
    for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1023}, uint64_t{1024}, uint64_t{1537},
                           uint64_t{24} << 30, uint64_t{3} << 40, UINT64_MAX})
        EXPECT_EQ(*parse_bytes(format_bytes_exact(bytes)), bytes);
    EXPECT_EQ(format_bytes_exact(uint64_t{24} << 30), "24Gi");
    EXPECT_EQ(format_bytes(1000), "1000 B");
    EXPECT_EQ(format_bytes(uint64_t{24} << 30), "24.0 GiB");
}

TEST(Durations, AreReadWithTheirUnits) {
    using namespace std::chrono_literals;
    EXPECT_EQ(*parse_duration("200ms"), 200ms);
    EXPECT_EQ(*parse_duration("1h30m"), 90min);
    EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
    EXPECT_EQ(*parse_duration("500us"), 500us);
    EXPECT_EQ(*parse_duration("0"), 0ns);
    for (const char* bad : {"", "5", "s", "-1s", "1d", "1s ", "1 s", "1s2", "999999999999h"})
        EXPECT_FALSE(parse_duration(bad)) << bad;
    for (Nanoseconds one : {Nanoseconds(0), Nanoseconds(1), Nanoseconds(90min), Nanoseconds(1500ms),
                            Nanoseconds(26h + 1ns)})
        EXPECT_EQ(*parse_duration(format_duration_exact(one)), one);
}

TEST(Percentages, StayBetweenNothingAndAll) {
    EXPECT_DOUBLE_EQ(*parse_percentage("30%"), 0.30);
    EXPECT_DOUBLE_EQ(*parse_percentage("0%"), 0);
    for (const char* bad : {"30", "101%", "-1%", "%", "x%"})
        EXPECT_FALSE(parse_percentage(bad)) << bad;
}

TEST(UniqueFd, ClosesOnceAndMovesWhatItOwns) {
    UniqueFd first(::memfd_create("test", MFD_CLOEXEC));
    ASSERT_TRUE(first);
    int number = first.get();
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first); // NOLINT(bugprone-use-after-move): empty is what moving promises
    EXPECT_EQ(second.get(), number);
    UniqueFd& itself = second;
    second = std::move(itself);
    EXPECT_TRUE(is_open(number));
    second.reset();
    second.reset();
    EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, DuplicatesCloseAtExec) {
    UniqueFd fd(::memfd_create("test", 0));
    auto copy = fd.duplicate();
    ASSERT_TRUE(copy);
    EXPECT_NE(::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_FALSE(UniqueFd().duplicate());
    ASSERT_EQ(::write(fd.get(), "abc", 3), 3);
    auto again = fd.reopen(O_RDONLY);
    ASSERT_TRUE(again) << again.error().message;
    char text[4] = {};
    EXPECT_EQ(::read(again->get(), text, 3), 3); // an offset of its own
    EXPECT_LT(::write(again->get(), "x", 1), 0);
}

TEST(Files, AreReplacedWhole) {
    Folder folder;
    std::string path = folder / "file";
    ASSERT_TRUE(write_file_atomic(path, "old"));
    ASSERT_TRUE(write_file_atomic(path, std::string(100'000, 'n'), 0600));
    EXPECT_EQ(read_file(path)->size(), 100'000U);
    auto too_large = read_file(path, 99'999);
    ASSERT_FALSE(too_large);
    EXPECT_EQ(too_large.error().code, ErrorCode::kInvalidArgument);
    auto missing = read_file(folder / "missing");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
    EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
    EXPECT_FALSE(write_file_atomic(folder / "no/file", "x"));
    size_t files = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()))
        ++files;
    EXPECT_EQ(files, 1U); // no temporary is left behind
    ASSERT_TRUE(make_directories(folder / "a/b/c"));
    EXPECT_TRUE(make_directories(folder / "a/b/c"));
    EXPECT_FALSE(make_directories(path + "/under-a-file"));
}

TEST(Hash, IsTheKnownOne) {
    EXPECT_EQ(sha256_hex("abc"),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(random_hex(8).size(), 16U);
    EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(PacketSocket, KeepsMessagesAndTheirDescriptorsTogether) {
    auto pair = packet_pair();
    ASSERT_TRUE(pair);
    UniqueFd memory(::memfd_create("carried", MFD_CLOEXEC));
    ASSERT_EQ(::write(memory.get(), "inside", 6), 6);
    ASSERT_TRUE(send_packet(pair->first.get(), "first", {memory.get()}, soon()));
    ASSERT_TRUE(send_packet(pair->first.get(), "second", {}, soon()));
    auto first = receive_packet(pair->second.get(), soon());
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ(first->payload, "first");
    ASSERT_EQ(first->fds.size(), 1U);
    EXPECT_NE(::fcntl(first->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    char text[7] = {};
    EXPECT_EQ(::pread(first->fds[0].get(), text, 6, 0), 6);
    EXPECT_STREQ(text, "inside");
    auto second = receive_packet(pair->second.get(), soon());
    EXPECT_EQ(second->payload, "second");
    EXPECT_TRUE(second->fds.empty());
}

TEST(PacketSocket, WaitsNoLongerThanItMay) {
    auto pair = packet_pair();
    Packet packet;
    EXPECT_FALSE(*receive_packet_nowait(pair->second.get(), packet));
    auto late = receive_packet(pair->second.get(),
                               std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
    while (*send_packet_nowait(pair->first.get(), std::string(1000, 'x'), {})) {
    }
    auto full = send_packet(pair->first.get(), "x", {},
                            std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
    EXPECT_EQ(full.error().code, ErrorCode::kDeadlineExceeded);
}

TEST(PacketSocket, TellsThatThePeerIsGone) {
    auto pair = packet_pair();
    pair->first.reset();
    EXPECT_EQ(receive_packet(pair->second.get(), soon()).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(send_packet(pair->second.get(), "x", {}, soon()).error().code,
              ErrorCode::kUnavailable);
}

TEST(Descriptors, TheTableIsAsLargeAsTheLimitAndTakesNoneOfThem) {
    const auto open_now = [] {
        size_t count = 0;
        for ([[maybe_unused]] const auto& one :
             std::filesystem::directory_iterator("/proc/self/fd"))
            ++count;
        return count;
    };
    const size_t before = open_now();
    make_descriptor_table();
    EXPECT_EQ(open_now(), before);
    const auto status = read_file("/proc/self/status", 1 << 16);
    ASSERT_TRUE(status);
    const size_t at = status->find("FDSize:");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GE(std::stoull(status->substr(at + 7)), std::min<uint64_t>(descriptor_limit(), 65'536));
}

TEST(Descriptors, AHighNumberIsAboveWhatIsOpenedLaterAndTheSameFile) {
    auto pair = packet_pair();
    ASSERT_TRUE(pair);
    const int low = pair->first.get();
    const UniqueFd high = to_high_number(std::move(pair->first));
    EXPECT_GE(high.get(), 960);
    EXPECT_LT(high.get(), FD_SETSIZE);
    EXPECT_EQ(::fcntl(low, F_GETFD), -1) << "closed";
    EXPECT_EQ(::fcntl(high.get(), F_GETFD), FD_CLOEXEC);
    ASSERT_TRUE(send_packet(high.get(), "x", {}, soon()));
    EXPECT_EQ(receive_packet(pair->second.get(), soon())->payload, "x");
    const UniqueFd next = to_high_number(std::move(pair->second));
    EXPECT_GT(next.get(), high.get());
}

TEST(Descriptors, WhereTheLimitLeavesNoHighNumberOneStaysAsItIs) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{512, before.rlim_max};
    auto pair = packet_pair();
    ASSERT_TRUE(pair);
    const int low = pair->first.get();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const UniqueFd same = to_high_number(std::move(pair->first));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(same.get(), low);
}

// A message over the limits must not leave its descriptors open.
TEST(PacketSocket, ClosesTheDescriptorsOfAMessageThatIsTooLong) {
    auto pair = packet_pair();
    int large = 4 << 20;
    ::setsockopt(pair->first.get(), SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
    ::setsockopt(pair->first.get(), SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
    std::string payload(kPacketBytesMax + 1, 'x');
    EXPECT_EQ(send_packet(pair->first.get(), payload, {}, soon()).error().code,
              ErrorCode::kInternal);
    UniqueFd memory(::memfd_create("carried", MFD_CLOEXEC));
    iovec part{payload.data(), payload.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    int fd = memory.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ASSERT_EQ(::sendmsg(pair->first.get(), &message, 0), static_cast<ssize_t>(payload.size()));
    auto count = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    auto before = count();
    EXPECT_EQ(receive_packet(pair->second.get(), soon()).error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(count(), before);
}

TEST(Sockets, OnlyASocketsFileIsReplacedByOne) {
    Folder folder;
    const std::string path = folder / "file";
    ASSERT_TRUE(write_file_atomic(path, "precious"));
    for (const auto& listened : {listen_on_unix(path, 0600), listen_packets(path, 0600)}) {
        ASSERT_FALSE(listened.has_value());
        EXPECT_EQ(listened.error().code, ErrorCode::kAlreadyExists);
        EXPECT_NE(listened.error().message.find(path), std::string::npos);
    }
    EXPECT_EQ(std::filesystem::file_size(path), 8U);
    std::filesystem::remove(path);
    EXPECT_TRUE(remove_socket(path).has_value()) << "nothing is there";
    ASSERT_TRUE(listen_on_unix(path, 0600).has_value());
    EXPECT_TRUE(listen_on_unix(path, 0600).has_value()) << "nobody listens there any more";
    EXPECT_TRUE(remove_socket(path).has_value());
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PacketSocket, ListensWhereNobodyElseDoes) {
    Folder folder;
    std::string path = folder / "s.sock";
    auto listener = listen_packets(path, 0600);
    ASSERT_TRUE(listener) << listener.error().message;
    EXPECT_EQ(listen_packets(path, 0600).error().code, ErrorCode::kAlreadyExists);
    auto client = connect_packets(path);
    ASSERT_TRUE(client);
    auto accepted = accept_packets(listener->get()); // the probe of the second listener
    while (accepted && receive_packet(accepted->get(), std::chrono::steady_clock::now() +
                                                           std::chrono::milliseconds(20))
                               .error()
                               .code == ErrorCode::kUnavailable)
        accepted = accept_packets(listener->get());
    ASSERT_TRUE(accepted);
    auto peer = peer_credentials(accepted->get());
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->pid, ::getpid());
    EXPECT_EQ(peer->uid, ::getuid());
    listener->reset();
    EXPECT_FALSE(connect_packets(path));
    EXPECT_TRUE(listen_packets(path, 0600)); // the dead one's file is replaced
    EXPECT_EQ(listen_packets(std::string(200, 'x'), 0600).error().code,
              ErrorCode::kInvalidArgument);
}

} // namespace
} // namespace berth
