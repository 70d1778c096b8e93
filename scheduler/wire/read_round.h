// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <deque>
#include <memory>

namespace berth {

class PacketChannel;

// The channels that have something to say or have ended, one turn each and round again. A turn of
// the loop takes as many as fit into kTurnMax, so that whatever else waits for the loop (a timer, a
// decision, an operator) waits that long at most, however many peers talk or leave at once.
//
// Thread rule: the io_context's one thread, which outlives it. Keeps a channel alive until its
// turn.
class ReadRound : public std::enable_shared_from_this<ReadRound> {
  public:
    static constexpr std::chrono::microseconds kTurnMax{500};

    explicit ReadRound(boost::asio::io_context& context) : context_(context) {}
    ReadRound(const ReadRound&) = delete;
    ReadRound& operator=(const ReadRound&) = delete;

    void ready(std::shared_ptr<PacketChannel> channel);
    // No more rounds: each has its turn by itself, and nothing is kept alive here.
    void stop();

  private:
    void run();
    void alone(std::shared_ptr<PacketChannel> channel);

    boost::asio::io_context& context_;
    std::deque<std::shared_ptr<PacketChannel>> ready_;
    bool posted_ = false;
    bool stopped_ = false;
};

} // namespace berth
