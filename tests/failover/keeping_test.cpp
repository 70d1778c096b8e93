// SPDX-License-Identifier: Apache-2.0
// Goal: what a process leaves in a journal and in the kernel is what its successor finds, and
// nothing of a request stays once it is over. Method: two Keepings on the same descriptors, one for
// the process that is gone; real TCP connections over loopback.
#include "base/http/in_flight.h"
#include "base/http/keeping.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

namespace berth::http {
namespace {

constexpr uint64_t kJournalBytes = uint64_t{16} << 20;
constexpr auto kNoPatience = std::chrono::milliseconds(0);

struct Pair {
    UniqueFd ours, theirs; // the server's end, the client's
};

// A listening socket, a journal and a parking pair, as berthd holds them.
class Held {
  public:
    Held() {
        listener.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
        EXPECT_EQ(::listen(listener.get(), 16), 0);
        journal.reset(::memfd_create("journal", MFD_CLOEXEC));
        EXPECT_EQ(::ftruncate(journal.get(), kJournalBytes), 0);
        int ends[2] = {};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        in.reset(ends[0]);
        out.reset(ends[1]);
    }
    std::shared_ptr<Keeping> open(uint64_t generation, const std::string& identity = "") const {
        auto keeping = Keeping::open(journal.duplicate().value(), in.duplicate().value(),
                                     out.duplicate().value(), identity);
        EXPECT_TRUE(keeping) << keeping.error().message;
        const Status claimed = (*keeping)->claim(generation, kNoPatience);
        EXPECT_TRUE(claimed) << claimed.error().message;
        return *keeping;
    }
    Pair connect() const {
        sockaddr_in address{};
        socklen_t size = sizeof address;
        EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
        Pair pair;
        pair.theirs.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(pair.theirs.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
        pair.ours.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        EXPECT_TRUE(pair.ours);
        return pair;
    }
    bool holds(std::string_view text) const {
        std::string all(kJournalBytes, '\0');
        EXPECT_EQ(::pread(journal.get(), all.data(), all.size(), 0), ssize_t{kJournalBytes});
        return all.find(text) != std::string::npos;
    }

    UniqueFd listener, journal, in, out;
};

void send_text(int fd, std::string_view text) {
    ASSERT_EQ(::send(fd, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
}

std::string receive_text(int fd) {
    std::string text(4096, '\0');
    const ssize_t got = ::recv(fd, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
}

// As the server does: straight into the journal.
void receive_into(KeptConnection& kept, int fd, bool is_told = true) {
    const std::span<char> room = kept.room();
    pollfd readable{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 5000), 1);
    const ssize_t got = ::recv(fd, room.data(), room.size(), MSG_DONTWAIT);
    ASSERT_GT(got, 0);
    if (is_told)
        kept.received(static_cast<size_t>(got));
}

bool is_ended(int fd, int patience_ms = 5000) {
    pollfd end{fd, POLLRDHUP, 0};
    return ::poll(&end, 1, patience_ms) == 1;
}

TEST(TcpCount, IsExactWhateverThePeerHasDone) {
    const Held held;
    Pair pair = held.connect();
    auto count = [&] { return tcp_count(pair.ours.get()).value(); };
    EXPECT_EQ(count().taken, 0U);
    EXPECT_EQ(count().given, 0U);
    send_text(pair.theirs.get(), "0123456789");
    char bytes[4];
    ASSERT_EQ(::recv(pair.ours.get(), bytes, 4, MSG_WAITALL), 4);
    EXPECT_EQ(count().taken, 4U);
    send_text(pair.ours.get(), "abcdef");
    EXPECT_EQ(count().given, 6U);
    receive_text(pair.theirs.get());
    EXPECT_EQ(count().given, 6U);
    ::shutdown(pair.theirs.get(), SHUT_WR);
    ASSERT_TRUE(is_ended(pair.ours.get()));
    EXPECT_EQ(count().taken, 4U) << "the end is no byte, with others unread";
    receive_text(pair.ours.get());
    EXPECT_EQ(count().taken, 10U);
    EXPECT_EQ(receive_text(pair.ours.get()), "");
    EXPECT_EQ(count().taken, 10U) << "nor once it was read";
    send_text(pair.ours.get(), "gh");
    EXPECT_EQ(count().given, 8U);
    EXPECT_FALSE(count().is_over) << "the peer may still read";
    ::shutdown(pair.ours.get(), SHUT_WR);
    EXPECT_TRUE(count().is_over);
}

TEST(TcpCount, IsNotOfferedForUnixSockets) {
    int ends[2] = {};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd one(ends[0]), other(ends[1]);
    const auto count = tcp_count(one.get());
    ASSERT_FALSE(count);
    EXPECT_EQ(count.error().code, ErrorCode::kUnsupported);
}

// Connections of slots 0, 1, ... with serials 100, 101, ...
std::vector<Pair> park_some(const Held& held, Parking& parking, uint32_t count) {
    std::vector<Pair> pairs;
    for (uint32_t slot = 0; slot < count; ++slot) {
        pairs.push_back(held.connect());
        EXPECT_TRUE(parking.park({{slot, slot + 100}, pairs.back().ours.get()}));
    }
    return pairs;
}

TEST(Parking, ClearingEndsAllAlsoAfterAnotherEndedWhileItLooked) {
    const Held held;
    Parking parking(held.in.duplicate().value(), held.out.duplicate().value());
    const std::vector<Pair> pairs = park_some(held, parking, 5);
    const int middle = 2 * 16; // bytes of entries that it has seen
    ASSERT_EQ(::setsockopt(held.out.get(), SOL_SOCKET, SO_PEEK_OFF, &middle, sizeof middle), 0);
    Parking other(held.in.duplicate().value(), held.out.duplicate().value());
    const auto ended = other.clear();
    ASSERT_TRUE(ended.has_value()) << ended.error().message;
    EXPECT_EQ(*ended, 5U);
    for (const Pair& pair : pairs) {
        char byte = 0;
        EXPECT_EQ(::recv(pair.theirs.get(), &byte, 1, 0), 0) << "its end is told";
    }
    EXPECT_TRUE(other.look().value().empty());
    EXPECT_EQ(other.clear().value(), 0U);
}

TEST(Parking, LookingTakesNothingOutAndReplacingLeavesTheLiveAlone) {
    const Held held;
    Parking parking(held.in.duplicate().value(), held.out.duplicate().value());
    const std::vector<Pair> pairs = park_some(held, parking, 20);
    for (int round = 0; round < 2; ++round) {
        const auto found = parking.look();
        ASSERT_TRUE(found);
        ASSERT_EQ(found->size(), 20U);
        EXPECT_EQ((*found)[7].name.slot, 7U);
        EXPECT_EQ((*found)[7].name.serial, 107U);
    }
    EXPECT_EQ(parking.messages(), 20U);
    const std::vector<Parking::Live> live = {{{3, 103}, pairs[3].ours.get()},
                                             {{9, 109}, pairs[9].ours.get()}};
    ASSERT_TRUE(parking.replace(live));
    EXPECT_EQ(parking.messages(), 1U);
    Parking successor(held.in.duplicate().value(), held.out.duplicate().value());
    const auto found = successor.look();
    ASSERT_TRUE(found);
    ASSERT_EQ(found->size(), 2U);
    EXPECT_EQ((*found)[1].name.slot, 9U);
    send_text((*found)[1].fd.get(), "it is the same connection");
    EXPECT_EQ(receive_text(pairs[9].theirs.get()), "it is the same connection");
}

TEST(Parking, AFullQueueRefusesAndKeepsWhatLiesThere) {
    const Held held;
    Parking parking(held.in.duplicate().value(), held.out.duplicate().value());
    const int few = 4096;
    ASSERT_EQ(::setsockopt(held.in.get(), SOL_SOCKET, SO_SNDBUF, &few, sizeof few), 0);
    const Pair pair = held.connect();
    size_t parked = 0;
    while (parked < 1000 && parking.park({{1, 1}, pair.ours.get()}))
        ++parked;
    EXPECT_LT(parked, 1000U);
    EXPECT_EQ(parking.look()->size(), parked);
}

// In a child, without the rights that lift the limit; its exit status says what it found.
TEST(Parking, TheKernelsLimitsOfDescriptorsRefuseInWordsAndLoseNothing) {
    const Held held;
    const Pair pair = held.connect();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const auto limit = [](rlim_t soft) {
            rlimit now{};
            ::getrlimit(RLIMIT_NOFILE, &now);
            now.rlim_cur = soft;
            ::setrlimit(RLIMIT_NOFILE, &now);
        };
        if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0)
            ::_exit(2);
        limit(40);
        Parking parking(held.in.duplicate().value(), held.out.duplicate().value());
        size_t parked = 0;
        Status last;
        while (parked < 1000 && (last = parking.park({{1, 1}, pair.ours.get()})))
            ++parked;
        if (last || last.error().source != ETOOMANYREFS || parked < 30)
            ::_exit(3);
        const auto few = parking.look();
        if (few || few.error().message.find("RLIMIT_NOFILE") == std::string::npos)
            ::_exit(4);
        limit(500);
        const auto all = parking.look();
        ::_exit(all && all->size() == parked ? 0 : 5);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Journal, OneProcessServesAtATimeAndLaterGenerationsAlone) {
    const Held held;
    int ready[2] = {};
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        auto journal = Journal::open(held.journal.duplicate().value());
        const char word = (*journal)->claim(5, kNoPatience) ? 'y' : 'n';
        (void)!::write(ready[1], &word, 1);
        ::pause();
        ::_exit(0);
    }
    char word = 0;
    ASSERT_EQ(::read(ready[0], &word, 1), 1);
    EXPECT_EQ(word, 'y');
    auto journal = Journal::open(held.journal.duplicate().value()).value();
    const Status fenced = journal->claim(6, std::chrono::milliseconds(20));
    ASSERT_FALSE(fenced);
    EXPECT_EQ(fenced.error().reason, "Fenced");
    EXPECT_NE(fenced.error().message.find(std::to_string(child)), std::string::npos);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const uint64_t stale : {uint64_t{4}, uint64_t{5}}) {
        const Status refused = journal->claim(stale, kNoPatience);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().reason, "StaleGeneration");
    }
    EXPECT_TRUE(journal->claim(6, kNoPatience));
    EXPECT_EQ(journal->generation(), 6U);
    EXPECT_TRUE(journal->claim(6, kNoPatience)) << "it is this process's own";
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST(Journal, WhatIsTooSmallIsRefusedInWords) {
    UniqueFd small(::memfd_create("journal", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(small.get(), 4096), 0);
    const auto journal = Journal::open(std::move(small));
    ASSERT_FALSE(journal);
    EXPECT_NE(journal.error().message.find("4.0 KiB"), std::string::npos)
        << journal.error().message;
}

// What another process has left, found by a successor.
class TakeOver : public testing::Test {
  protected:
    // The one before ends without a word.
    std::vector<Keeping::TakenOver> take_over(const std::string& identity = "") {
        kept.reset();
        before.reset();
        after = held.open(++generation, identity);
        return after->take_over();
    }
    // One connection with a request that was begun, and one between two requests.
    std::shared_ptr<KeptConnection> begin_one_beside(const Pair& idle) {
        send_text(pair.theirs.get(), "request");
        receive_into(*kept, pair.ours.get());
        kept->begin_request(7);
        kept->note("memo");
        kept->append(11);
        return before->keep(idle.ours.get());
    }

    Held held;
    uint64_t generation = 1;
    std::shared_ptr<Keeping> before = held.open(1);
    std::shared_ptr<Keeping> after;
    Pair pair = held.connect();
    std::shared_ptr<KeptConnection> kept = before->keep(pair.ours.get());
};

TEST_F(TakeOver, BytesThatWereTakenButNotNotedAreThere) {
    send_text(pair.theirs.get(), "GET / HT");
    receive_into(*kept, pair.ours.get());
    send_text(pair.theirs.get(), "TP/1.1\r\n");
    receive_into(*kept, pair.ours.get(), /*is_told=*/false); // killed before it could note it
    const auto taken = take_over();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].kept->inbound(), "GET / HTTP/1.1\r\n");
    EXPECT_FALSE(taken[0].kept->resumes());
}

TEST_F(TakeOver, ARequestUnderWayComesWithItsEntriesAndWhatTheKernelHadNotTaken) {
    send_text(pair.theirs.get(), "request and the next");
    receive_into(*kept, pair.ours.get());
    kept->begin_request(7);
    kept->note("memo");
    kept->append(11);
    kept->append(12);
    kept->append(13);
    kept->cover(2, 2);
    ASSERT_TRUE(kept->begin_write("0123456789", Phase::kAnswering, false));
    send_text(pair.ours.get(), "0123"); // the kernel took a part
    const auto taken = take_over();
    ASSERT_EQ(taken.size(), 1U);
    const KeptConnection& found = *taken[0].kept;
    EXPECT_EQ(found.unsent(), "456789");
    EXPECT_TRUE(found.resumes());
    EXPECT_EQ(found.inbound(), "request and the next");
    EXPECT_EQ(found.memo(), "memo");
    EXPECT_EQ(found.covered(), 2U);
    EXPECT_EQ(found.stage(), 2U);
    ASSERT_EQ(found.entries().size(), 3U);
    EXPECT_EQ(found.entries()[2], 13U);
}

TEST_F(TakeOver, BetweenRequestsNothingOfTheOldOneIsLeft) {
    for (int round = 0; round < 3; ++round) {
        send_text(pair.theirs.get(), "secret prompt");
        receive_into(*kept, pair.ours.get());
        kept->begin_request(13);
        kept->note("memo");
        kept->append(0x746579656b6f74);
        ASSERT_TRUE(kept->begin_write("secret answer", Phase::kAnswered, false));
        send_text(pair.ours.get(), "secret answer");
        EXPECT_TRUE(held.holds("secret prompt"));
        kept->end_request();
        EXPECT_FALSE(held.holds("secret"));
        EXPECT_FALSE(held.holds(std::string_view("tokey", 5)));
    }
    const auto taken = take_over();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_FALSE(taken[0].kept->resumes());
    EXPECT_EQ(taken[0].kept->inbound(), "");
    EXPECT_EQ(taken[0].kept->unsent(), "");
    EXPECT_EQ(taken[0].kept->entries().size(), 0U);
    EXPECT_EQ(taken[0].kept->requests(), 3U);
}

TEST_F(TakeOver, PipelinedRequestsMoveUpOnceThereIsRoom) {
    send_text(pair.theirs.get(), "the first one is long; second");
    receive_into(*kept, pair.ours.get());
    kept->begin_request(23);
    kept->end_request();
    EXPECT_EQ(kept->inbound(), "second");
    EXPECT_FALSE(held.holds("long"));
    const size_t room = kept->room().size();
    const auto taken = take_over();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].kept->inbound(), "second");
    EXPECT_EQ(taken[0].kept->room().size(), room);
}

TEST_F(TakeOver, AConnectionThatIsOverIsNotFoundAndFreesItsSlot) {
    kept->end();
    EXPECT_EQ(before->counts().kept, 0U);
    EXPECT_EQ(take_over().size(), 0U);
    EXPECT_TRUE(is_ended(pair.theirs.get())) << "the parked duplicate is shut down";
}

TEST_F(TakeOver, WhatDoesNotFitIsGivenUpAndTheNextRequestComesAlong) {
    send_text(pair.theirs.get(), "big one|next");
    receive_into(*kept, pair.ours.get());
    kept->begin_request(8);
    const std::string large(uint64_t{1} << 20, 'x');
    EXPECT_FALSE(kept->begin_write(large, Phase::kAnswered, false));
    EXPECT_FALSE(kept->active());
    EXPECT_EQ(kept->leftover(), "next");
    EXPECT_EQ(before->counts().too_large, 1U);
    EXPECT_FALSE(held.holds("big one"));
    EXPECT_FALSE(held.holds("next"));
}

// Its request did not fit; the next one on the same connection does.
TEST_F(TakeOver, AConnectionThatWasGivenUpAndKeptAgainIsLive) {
    send_text(pair.theirs.get(), "too large");
    receive_into(*kept, pair.ours.get());
    kept->give_up();
    kept = before->keep(pair.ours.get());
    ASSERT_NE(kept, nullptr);
    send_text(pair.theirs.get(), "next");
    receive_into(*kept, pair.ours.get());
    const auto taken = take_over();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].kept->inbound(), "next");
    EXPECT_FALSE(is_ended(pair.theirs.get(), 0));
}

TEST_F(TakeOver, OneOfAnotherIdentityEndsWhatWasBegunAndKeepsTheRest) {
    auto first = take_over("model one");
    ASSERT_EQ(first.size(), 1U);
    before = after;
    kept = first[0].kept;
    pair.ours = std::move(first[0].socket);
    first.clear();
    const Pair idle = held.connect();
    auto beside = begin_one_beside(idle);
    beside.reset();
    auto taken = take_over("model two");
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_TRUE(is_ended(pair.theirs.get()));
    EXPECT_EQ(after->counts().other_identity, 1U);
    EXPECT_EQ(after->counts().cut, 1U);
    EXPECT_FALSE(held.holds("request"));
    // What is begun from here on is its own, and a third one of the same identity goes on with it.
    KeptConnection& next = *taken[0].kept;
    send_text(idle.theirs.get(), "request");
    receive_into(next, taken[0].socket.get());
    next.begin_request(7);
    next.note("memo");
    const UniqueFd ours = std::move(taken[0].socket);
    taken.clear();
    taken = take_over("model two");
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_TRUE(taken[0].kept->resumes());
    EXPECT_EQ(after->counts().other_identity, 0U);
}

TEST_F(TakeOver, WhatIsGivenUpBeforeItIsLeftIsNoBusinessOfTheNext) {
    const Pair idle = held.connect();
    auto beside = begin_one_beside(idle);
    const KeptConnection::Mark mark = kept->mark();
    kept->give_up(KeptConnection::Why::kEndsHere);
    EXPECT_EQ(before->counts().too_large, 0U);
    before->begin_leaving();
    beside->leave();
    after = held.open(++generation);
    auto taken = after->take_over();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_FALSE(is_ended(pair.theirs.get(), 50)) << "the one before still answers it";
    // Its work is marked nowhere any more, not in a slot that is another's by now.
    for (const auto& fresh : {after->keep(pair.ours.get())}) {
        fresh->begin_work();
        KeptConnection::set(mark, Work::kNone);
        KeptConnection::set(mark, Work::kComputed);
    }
    before->begin_leaving(); // said again, it touches nothing
    EXPECT_EQ(take_over().size(), 2U);
}

TEST_F(TakeOver, BytesThatWereTakenAndNotNotedAreLeftOverToo) {
    send_text(pair.theirs.get(), "GET / HT");
    receive_into(*kept, pair.ours.get());
    send_text(pair.theirs.get(), "TP/1.1\r\n");
    receive_into(*kept, pair.ours.get(), /*is_told=*/false);
    kept->catch_up(tcp_count(pair.ours.get()).value());
    kept->give_up(KeptConnection::Why::kEndsHere);
    EXPECT_TRUE(kept->has_leftover());
    EXPECT_EQ(kept->leftover(), "GET / HTTP/1.1\r\n");
}

TEST_F(TakeOver, WorksAgainAndAgainOnTheSameConnection) {
    for (int round = 0; round < 5; ++round) {
        send_text(pair.theirs.get(), "ab");
        receive_into(*kept, pair.ours.get());
        kept->begin_request(1);
        kept->end_request();
        auto taken = take_over();
        ASSERT_EQ(taken.size(), 1U) << round;
        EXPECT_EQ(taken[0].kept->inbound(), "b") << round;
        before = after;
        kept = taken[0].kept;
        pair.ours = std::move(taken[0].socket);
        kept->begin_request(1);
        kept->end_request();
    }
}

// Both ask; each of many processes in a row ends while it is at work on the first.
TEST_F(TakeOver, ARequestThatEndsThoseWhoAreAtWorkOnItIsLeftAndOthersGoOn) {
    Pair other = held.connect();
    auto beside = before->keep(other.ours.get());
    const uint64_t others_serial = beside->serial();
    for (auto& [one, ends] : {std::tie(kept, pair), std::tie(beside, other)}) {
        send_text(ends.theirs.get(), "request");
        receive_into(*one, ends.ours.get());
        one->begin_request(7);
        one->note("memo");
    }
    for (uint32_t round = 1; round <= 4 * kStrikesMax; ++round) {
        if (kept)
            KeptConnection::set(kept->mark(), Work::kComputed);
        kept.reset();
        beside.reset();
        auto taken = take_over();
        const bool is_tried = round < kStrikesMax;
        ASSERT_EQ(taken.size(), is_tried ? 2U : 1U) << round;
        before = after;
        for (Keeping::TakenOver& one : taken) {
            const bool is_other = one.kept->serial() == others_serial;
            (is_other ? beside : kept) = one.kept;
            (is_other ? other : pair).ours = std::move(one.socket);
        }
        ASSERT_NE(beside, nullptr) << round;
        EXPECT_FALSE(beside->is_suspect()) << "it only waits";
        EXPECT_EQ(is_tried, kept != nullptr);
        if (kept)
            EXPECT_EQ(kept->is_suspect(), round >= kStrikesSuspect) << round;
    }
    EXPECT_TRUE(is_ended(pair.theirs.get())) << "its client is told";
    EXPECT_FALSE(is_ended(other.theirs.get(), 0));
}

TEST_F(TakeOver, ARequestThatComesOnInEachProcessIsNeverASuspect) {
    send_text(pair.theirs.get(), "request");
    receive_into(*kept, pair.ours.get());
    kept->begin_request(7);
    kept->note("memo");
    for (uint32_t round = 0; round < 4 * kStrikesMax; ++round) {
        KeptConnection::set(kept->mark(), Work::kComputed);
        auto taken = take_over();
        ASSERT_EQ(taken.size(), 1U) << round;
        before = after;
        kept = taken[0].kept;
        pair.ours = std::move(taken[0].socket);
        EXPECT_FALSE(kept->is_suspect()) << round;
        kept->append(round);
    }
    EXPECT_EQ(kept->entries().size(), 4 * kStrikesMax);
}

TEST_F(TakeOver, WhatIsLeftByAProcessThatWasNotEndedCountsAgainstNobody) {
    send_text(pair.theirs.get(), "request");
    receive_into(*kept, pair.ours.get());
    kept->begin_request(7);
    for (uint32_t round = 0; round < 4 * kStrikesMax; ++round) {
        kept->begin_work();
        kept->leave();
        auto taken = take_over();
        ASSERT_EQ(taken.size(), 1U) << round;
        before = after;
        kept = taken[0].kept;
        pair.ours = std::move(taken[0].socket);
        EXPECT_FALSE(kept->is_suspect()) << round;
    }
}

TEST_F(TakeOver, TheNextRequestOfAConnectionIsTriedAsOftenAsAnyOther) {
    for (uint32_t round = 0; round < 4 * kStrikesMax; ++round) {
        if (round % (kStrikesMax - 1) == 0) {
            if (round > 0)
                kept->end_request();
            send_text(pair.theirs.get(), "request");
            receive_into(*kept, pair.ours.get());
            kept->begin_request(7);
            kept->note("memo");
        }
        kept->begin_work();
        auto taken = take_over();
        ASSERT_EQ(taken.size(), 1U) << round;
        before = after;
        kept = taken[0].kept;
        pair.ours = std::move(taken[0].socket);
    }
}

TEST_F(TakeOver, ManyConnectionsOutgrowNeitherQueueNorSlots) {
    std::vector<Pair> pairs;
    std::vector<std::shared_ptr<KeptConnection>> all;
    for (int round = 0; round < 400; ++round) {
        Pair one = held.connect();
        auto place = before->keep(one.ours.get());
        ASSERT_TRUE(place) << round;
        if (round % 4 == 0) {
            pairs.push_back(std::move(one));
            all.push_back(place);
        } else {
            place->end();
        }
    }
    all.clear();
    EXPECT_EQ(take_over().size(), 101U);
    EXPECT_EQ(after->counts().cut, 0U);
}

TEST_F(TakeOver, WhereEverySlotIsTakenConnectionsAreNotKeptAndCounted) {
    std::vector<Pair> pairs;
    std::vector<std::shared_ptr<KeptConnection>> all;
    for (int round = 0; round < 400 && before->counts().no_slot == 0; ++round) {
        pairs.push_back(held.connect());
        if (auto place = before->keep(pairs.back().ours.get()))
            all.push_back(place);
    }
    EXPECT_EQ(before->counts().no_slot, 1U);
    EXPECT_GT(all.size(), 100U);
}

TEST_F(TakeOver, SurvivesAnyContentOfTheJournal) {
    std::minstd_rand chance(7);
    int gone_on = 0;
    for (int round = 0; round < 300; ++round) {
        send_text(pair.theirs.get(), "some bytes");
        receive_into(*kept, pair.ours.get());
        kept->begin_request(4);
        kept->note("memo");
        kept->append(1);
        if (round % 2 == 0)
            ASSERT_TRUE(kept->begin_write("part", Phase::kAnswering, false));
        // Some bytes of the slot's head become others.
        std::byte* slot = nullptr;
        auto* mapped = static_cast<std::byte*>(::mmap(
            nullptr, kJournalBytes, PROT_READ | PROT_WRITE, MAP_SHARED, held.journal.get(), 0));
        ASSERT_NE(mapped, MAP_FAILED);
        const uint64_t slots = (kJournalBytes - kJournalPage) / kSlotBytesMin;
        const uint64_t slot_bytes = SlotLayout::page_floor((kJournalBytes - kJournalPage) / slots);
        slot = mapped + kJournalPage + kept->slot() * slot_bytes;
        for (int i = 0; i < 1 + round % 3; ++i) {
            const size_t at = 8 + chance() % (sizeof(SlotHead) - 8); // its serial stays
            slot[at] = static_cast<std::byte>(round % 5 == 0 ? 0xff : chance());
        }
        ::munmap(mapped, kJournalBytes);
        auto taken = take_over();
        for (const Keeping::TakenOver& one : taken) {
            EXPECT_LE(one.kept->inbound().size(), kJournalBytes);
            EXPECT_LE(one.kept->memo().size(), kMemoBytesMax);
            EXPECT_LE(one.kept->covered(), one.kept->entries().size());
            EXPECT_LE(one.kept->unsent().size(), kJournalBytes);
            one.kept->end_request();
            one.kept->end();
            ++gone_on;
        }
        if (taken.empty()) {
            EXPECT_TRUE(is_ended(pair.theirs.get())) << "it is cut, not left to hang";
        }
        before = after;
        pair = held.connect();
        kept = before->keep(pair.ours.get());
        ASSERT_TRUE(kept) << round;
    }
    EXPECT_GT(gone_on, 0);
}

TEST_F(TakeOver, AJournalOfAnotherFormatIsBegunAnew) {
    const std::string other(64, 'z');
    ASSERT_EQ(::pwrite(held.journal.get(), other.data(), other.size(), 0), 64);
    EXPECT_EQ(take_over().size(), 0U);
    EXPECT_TRUE(is_ended(pair.theirs.get()));
    EXPECT_FALSE(held.holds("zzzz"));
}

// One whose process has ended: what it had, as that left it.
TEST(InFlight, RequestsThatWereThereBeforeAreEndedAndThoseThatCameLaterGoOn) {
    const Held held;
    Pair old = held.connect(), answered = held.connect(), idle = held.connect();
    Parking parking(held.in.duplicate().value(), held.out.duplicate().value());
    EXPECT_EQ(requests_in_flight(held.journal.get(), parking).error().code, ErrorCode::kCorrupt)
        << "nobody has begun one";
    const auto keep = [](Keeping& keeping, const Pair& pair) {
        return keeping.keep(pair.ours.get());
    };
    const auto ask = [](KeptConnection& kept, const Pair& pair, const char* what = "a question") {
        send_text(pair.theirs.get(), what);
        receive_into(kept, pair.ours.get());
        kept.begin_request(10);
    };
    std::set<RequestInFlight> noted;
    {
        const auto keeping = held.open(1);
        const auto first = keep(*keeping, old), second = keep(*keeping, answered),
                   third = keep(*keeping, idle);
        ask(*first, old, "a bad one.");
        ask(*second, answered);
        noted = requests_in_flight(held.journal.get(), parking).value();
        EXPECT_EQ(noted.size(), 2U) << "the idle one has none";
        second->end_request();
        ask(*second, answered);
        ask(*third, idle);
        EXPECT_EQ(requests_in_flight(held.journal.get(), parking).value().size(), 3U);
        keeping->release();
    }
    EXPECT_TRUE(held.holds("a bad one."));
    EXPECT_EQ(end_requests(held.journal.get(), parking, noted).value(), 1U);
    EXPECT_TRUE(is_ended(old.theirs.get()));
    EXPECT_FALSE(held.holds("a bad one.")) << "it does not wait for the next process";
    EXPECT_TRUE(held.holds("a question"));
    const auto next = held.open(2);
    EXPECT_EQ(next->take_over().size(), 2U);
    EXPECT_EQ(next->counts().cut, 0U);
    EXPECT_FALSE(is_ended(answered.theirs.get(), 0));
    EXPECT_FALSE(is_ended(idle.theirs.get(), 0));
}

} // namespace
} // namespace berth::http
