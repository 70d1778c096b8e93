// SPDX-License-Identifier: Apache-2.0
#include "scheduler/wire/packet_channel.h"

#include "scheduler/wire/read_round.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <fcntl.h>
#include <utility>

namespace berth {

namespace asio = boost::asio;

namespace {

// Of all channels: they share the one thread.
size_t g_queued_fds = 0;
// A peer that says too much is looked at again that much later.
constexpr std::chrono::milliseconds kPacePause{10};

} // namespace

PacketChannel::Outgoing::~Outgoing() {
    g_queued_fds -= fds.size();
}

Status PacketChannel::Outgoing::add(const std::vector<int>& copied) {
    if (!copied.empty() && g_queued_fds + copied.size() > kQueuedFdsMax)
        return fail(
            ErrorCode::kResourceExhausted,
            fmt::format("{} descriptors wait already for peers that do not read", g_queued_fds),
            "TooManyDescriptors");
    for (int fd : copied) {
        UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
        if (!copy)
            return fail_errno("a descriptor that waits");
        fds.push_back(std::move(copy));
        ++g_queued_fds;
    }
    return {};
}

PacketChannel::PacketChannel(asio::io_context& context, UniqueFd socket, Handlers handlers,
                             std::shared_ptr<ReadRound> round)
    : socket_(context, socket.release()), handlers_(std::move(handlers)), round_(std::move(round)),
      pace_(context) {}

std::shared_ptr<PacketChannel> PacketChannel::open(asio::io_context& context, UniqueFd socket,
                                                   Handlers handlers,
                                                   std::shared_ptr<ReadRound> round) {
    std::shared_ptr<PacketChannel> channel(
        new PacketChannel(context, std::move(socket), std::move(handlers), std::move(round)));
    channel->wait_readable();
    return channel;
}

void PacketChannel::wait_readable() {
    if (reading_)
        return;
    reading_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](boost::system::error_code error) {
                           self->reading_ = false;
                           if (error)
                               return;
                           if (self->round_)
                               self->round_->ready(self);
                           else
                               self->read_turn();
                       });
}

bool PacketChannel::may_read_now() {
    auto now = std::chrono::steady_clock::now();
    double seconds = std::chrono::duration<double>(now - credited_).count();
    credit_ = std::min(credit_ + seconds * kMessagesPerSecond, kMessagesBurst);
    credited_ = now;
    if (credit_ >= 1) {
        credit_ -= 1;
        return true;
    }
    pace_.expires_after(kPacePause);
    pace_.async_wait([weak = weak_from_this()](boost::system::error_code error) {
        auto self = weak.lock();
        if (!error && self && self->open_)
            self->wait_readable();
    });
    return false;
}

void PacketChannel::read_turn() {
    for (int i = 0; i < kReadsPerTurn && open_ && !draining_ && queue_.empty(); ++i) {
        if (!may_read_now())
            return;
        Packet packet;
        auto received = receive_packet_nowait(socket_.native_handle(), packet);
        if (!received) {
            if (received.error().code != ErrorCode::kUnavailable && handlers_.on_bad_packet)
                handlers_.on_bad_packet(received.error());
            close_after_sending(received.error().message);
            return;
        }
        if (!*received)
            break;
        handlers_.on_packet(std::move(packet));
    }
    // With answers waiting for the peer, write_turn() takes up reading again.
    if (open_ && !draining_ && queue_.empty())
        wait_readable();
}

void PacketChannel::enqueue(const std::string& payload, const std::vector<int>& fds) {
    if (queue_.size() >= kQueueMax) {
        close(fmt::format("{} messages wait for the peer, which does not read them", kQueueMax));
        return;
    }
    if (!fds.empty() && queued_fds_ + fds.size() > kQueuedFdsPerChannelMax) {
        close(fmt::format("the peer does not read: {} descriptors wait for it", queued_fds_));
        return;
    }
    queued_fds_ += fds.size();
    queue_.emplace_back(payload);
    if (auto added = queue_.back().add(fds); !added) {
        close("the peer does not read: " + added.error().message);
        return;
    }
    if (queue_.size() == 1)
        wait_writable();
}

void PacketChannel::send(const std::string& payload, const std::vector<int>& fds) {
    if (!open_ || draining_)
        return;
    if (!queue_.empty()) {
        enqueue(payload, fds);
        return;
    }
    auto sent = send_packet_nowait(socket_.native_handle(), payload, fds);
    if (!sent)
        close(sent.error().message);
    else if (!*sent)
        enqueue(payload, fds);
}

void PacketChannel::wait_writable() {
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](boost::system::error_code error) {
                           if (!error)
                               self->write_turn();
                       });
}

void PacketChannel::write_turn() {
    while (open_ && !queue_.empty()) {
        std::vector<int> fds;
        for (const UniqueFd& fd : queue_.front().fds)
            fds.push_back(fd.get());
        auto sent = send_packet_nowait(socket_.native_handle(), queue_.front().payload, fds);
        if (!sent) {
            close(sent.error().message);
            return;
        }
        if (!*sent) {
            wait_writable();
            return;
        }
        queued_fds_ -= queue_.front().fds.size();
        queue_.pop_front();
    }
    if (open_ && draining_)
        close(drain_reason_);
    else if (open_)
        wait_readable();
}

void PacketChannel::close_after_sending(std::string why) {
    if (!open_ || draining_)
        return;
    draining_ = true;
    drain_reason_ = std::move(why);
    if (queue_.empty()) {
        close(drain_reason_);
        return;
    }
    auto timer = std::make_shared<asio::steady_timer>(socket_.get_executor(), kDrainMax);
    timer->async_wait([timer, weak = weak_from_this()](boost::system::error_code) {
        if (auto self = weak.lock())
            self->close(self->drain_reason_);
    });
}

void PacketChannel::close(std::string why) {
    if (!open_)
        return;
    open_ = false;
    queue_.clear();
    pace_.cancel();
    end_reason_ = std::move(why);
    // The handlers may hold the last reference to whatever called us: tell them from a fresh turn.
    if (round_)
        round_->ready(shared_from_this());
    else
        asio::post(socket_.get_executor(), [self = shared_from_this()] { self->end(); });
}

void PacketChannel::take_turn() {
    if (open_)
        read_turn();
    else
        end();
}

void PacketChannel::end() {
    boost::system::error_code ignored;
    socket_.close(ignored);
    const Handlers handlers = std::exchange(handlers_, {});
    if (handlers.on_close)
        handlers.on_close(end_reason_);
}

} // namespace berth
