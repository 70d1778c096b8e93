// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/rank_links.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace berth::engine {

RankLinks::~RankLinks() {
    close(Nanoseconds(0));
}

void RankLinks::hear(RankEars& ears) {
    const std::lock_guard lock(ears_mutex_);
    ears_ = &ears;
    for (auto& [from, note] : unheard_)
        ears.on_note(from, std::move(note));
    unheard_.clear();
}

void RankLinks::hear_no_more() {
    const std::lock_guard lock(ears_mutex_);
    ears_ = nullptr;
}

void RankLinks::tell(uint32_t from, Note note) {
    const std::lock_guard lock(ears_mutex_);
    if (ears_ != nullptr)
        ears_->on_note(from, std::move(note));
    else
        unheard_.emplace_back(from, std::move(note));
}

void RankLinks::send(uint32_t rank, const Note& note) {
    for (const auto& peer : peers_) {
        if (peer->rank != rank)
            continue;
        const std::lock_guard lock(peer->send_mutex);
        (void)send_note(peer->socket.get(), note); // the thread hears of its end
    }
}

void RankLinks::send_to_others(const Note& note) {
    for (const auto& peer : peers_)
        send(peer->rank, note);
}

void RankLinks::say_failed(const std::string& why) {
    if (ending_.exchange(true))
        return;
    Note note{NoteKind::kFailed, {}, why};
    if (self_.rank == 0)
        note = {NoteKind::kLost, {0}, why};
    send_to_others(note);
}

// Rank 0 tells the others who is gone: they only see that rank 0 goes after it.
void RankLinks::lose(uint32_t rank, const std::string& why) {
    if (ending_.exchange(true))
        return;
    if (self_.rank == 0)
        send_to_others({NoteKind::kLost, {rank}, why});
    if (lost_)
        lost_(rank, why);
}

void RankLinks::take(Peer& peer) {
    auto note = receive_note(peer.socket.get());
    if (!note) {
        peer.open = false;
        return lose(peer.rank, note.error().code == ErrorCode::kUnavailable
                                   ? "its process has ended"
                                   : note.error().message);
    }
    if (note->kind == NoteKind::kFailed)
        return lose(peer.rank, note->text);
    if (note->kind == NoteKind::kLost)
        return lose(note->words.empty() ? peer.rank : note->words[0], note->text);
    if (note->kind == NoteKind::kEnd)
        ending_ = true;
    tell(peer.rank, std::move(*note));
}

void RankLinks::listen() {
    while (!stop_) {
        std::vector<pollfd> waiting{{wake_.get(), POLLIN, 0}};
        for (const auto& peer : peers_)
            waiting.push_back({peer->open ? peer->socket.get() : -1, POLLIN, 0});
        if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR)
            return lose(self_.rank, "it cannot listen to the others any more");
        for (size_t at = 0; at < peers_.size() && !stop_; ++at) {
            if (waiting[at + 1].revents != 0)
                take(*peers_[at]);
        }
    }
}

void RankLinks::close(Nanoseconds timeout) {
    ending_ = true;
    if (!thread_.joinable())
        return;
    for (const auto& peer : peers_) {
        pollfd waiting{peer->socket.get(), POLLRDHUP, 0};
        (void)::poll(&waiting, 1,
                     static_cast<int>(
                         std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()));
    }
    stop_ = true;
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    thread_.join();
}

Result<std::unique_ptr<RankLinks>> RankLinks::meet(RankSelf self, RankStore& store,
                                                   Nanoseconds timeout, Lost lost) {
    std::unique_ptr<RankLinks> links(new RankLinks(std::move(self), std::move(lost)));
    links->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!links->wake_)
        return fail_errno("eventfd");
    if (links->self_.rank == 0)
        BERTH_TRY(links->gather(store, timeout));
    else
        BERTH_TRY(links->join(store, timeout));
    links->thread_ = std::thread([raw = links.get()] { raw->listen(); });
    return links;
}

} // namespace berth::engine
