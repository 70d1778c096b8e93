// SPDX-License-Identifier: Apache-2.0
#include "scheduler/wire/read_round.h"

#include "scheduler/wire/packet_channel.h"

#include <boost/asio/post.hpp>

#include <utility>

namespace berth {

void ReadRound::ready(std::shared_ptr<PacketChannel> channel) {
    if (stopped_)
        return alone(std::move(channel));
    ready_.push_back(std::move(channel));
    if (!std::exchange(posted_, true))
        boost::asio::post(context_, [self = shared_from_this()] { self->run(); });
}

void ReadRound::alone(std::shared_ptr<PacketChannel> channel) {
    boost::asio::post(context_, [channel = std::move(channel)] { channel->take_turn(); });
}

void ReadRound::stop() {
    stopped_ = true;
    for (std::shared_ptr<PacketChannel>& channel : std::exchange(ready_, {}))
        alone(std::move(channel));
}

void ReadRound::run() {
    posted_ = false;
    if (ready_.empty())
        return;
    auto until = std::chrono::steady_clock::now() + kTurnMax;
    do {
        std::shared_ptr<PacketChannel> channel = std::move(ready_.front());
        ready_.pop_front();
        channel->take_turn();
    } while (!ready_.empty() && std::chrono::steady_clock::now() < until);
    if (!ready_.empty() && !std::exchange(posted_, true))
        boost::asio::post(context_, [self = shared_from_this()] { self->run(); });
}

} // namespace berth
