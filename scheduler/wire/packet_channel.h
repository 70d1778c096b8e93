// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace berth {

class ReadRound;

// One SEQPACKET connection on the decision thread: whole messages in and out, descriptors beside
// them.
//
// Thread rule: the io_context's one thread. Nothing blocks: what the socket does not take at once
// waits in a queue, and until the peer has taken it nothing more is read from that peer. A peer
// that lets kQueueMax messages wait is cut off, and so is one for whom descriptors would wait when
// it has kQueuedFdsPerChannelMax of those, or all channels together kQueuedFdsMax. A peer that says
// more than kMessagesPerSecond is read that fast and no faster. The channel keeps itself alive
// until it is closed; on_close is called once, from the io_context's turn, never from within send()
// or close().
class PacketChannel : public std::enable_shared_from_this<PacketChannel> {
  public:
    static constexpr size_t kQueueMax = 256;
    static constexpr size_t kQueuedFdsMax = 32;
    static constexpr size_t kQueuedFdsPerChannelMax = 16;
    // Messages taken from one connection before others get their turn.
    static constexpr int kReadsPerTurn = 4;
    static constexpr double kMessagesPerSecond = 10'000;
    static constexpr double kMessagesBurst = 20'000;

    struct Handlers {
        std::function<void(Packet packet)> on_packet;
        // A message that could not be taken whole: too large, too many descriptors. May answer;
        // the channel is closed after. None: closed at once.
        std::function<void(const Error& error)> on_bad_packet;
        std::function<void(const std::string& why)> on_close;
    };

    // With a round the channel is read, and its end is told, in its turns.
    static std::shared_ptr<PacketChannel> open(boost::asio::io_context& context, UniqueFd socket,
                                               Handlers handlers,
                                               std::shared_ptr<ReadRound> round = {});
    PacketChannel(const PacketChannel&) = delete;
    PacketChannel& operator=(const PacketChannel&) = delete;

    // `fds` are the caller's: what cannot be sent at once is duplicated into the queue.
    void send(const std::string& payload, const std::vector<int>& fds = {});
    // Closes when what is queued has been sent, or after kDrainMax; nothing is read any more.
    static constexpr std::chrono::seconds kDrainMax{5};
    void close_after_sending(std::string why);
    void close(std::string why);
    bool is_open() const { return open_; }
    bool is_ending() const { return !open_ || draining_; }

  private:
    friend class ReadRound;
    // Its descriptors count towards kQueuedFdsMax while it waits.
    struct Outgoing {
        explicit Outgoing(std::string bytes) : payload(std::move(bytes)) {}
        Outgoing(const Outgoing&) = delete;
        Outgoing& operator=(const Outgoing&) = delete;
        ~Outgoing();
        Status add(const std::vector<int>& copied);
        std::string payload;
        std::vector<UniqueFd> fds;
    };

    PacketChannel(boost::asio::io_context& context, UniqueFd socket, Handlers handlers,
                  std::shared_ptr<ReadRound> round);
    void wait_readable();
    void wait_writable();
    void take_turn();
    void read_turn();
    void end();
    bool may_read_now(); // else it goes on by itself later
    void write_turn();
    void enqueue(const std::string& payload, const std::vector<int>& fds);

    boost::asio::posix::stream_descriptor socket_;
    Handlers handlers_;
    std::shared_ptr<ReadRound> round_;
    boost::asio::steady_timer pace_;
    double credit_ = kMessagesBurst;
    std::chrono::steady_clock::time_point credited_ = std::chrono::steady_clock::now();
    std::deque<Outgoing> queue_;
    size_t queued_fds_ = 0;
    bool open_ = true;
    bool reading_ = false;  // a wait for the next message is under way
    bool draining_ = false; // no more reads; close when the queue is empty
    std::string drain_reason_;
    std::string end_reason_;
};

} // namespace berth
