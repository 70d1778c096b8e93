// SPDX-License-Identifier: Apache-2.0
#include "base/http/keeping.h"

#include "base/log.h"

#include <set>
#include <sys/socket.h>
#include <sys/stat.h>

namespace berth::http {

namespace {

// Entries of the queue before it is written anew without those that are over. The kernel's default
// holds about 270.
constexpr size_t kMessagesMax = 96;
// Connections that are over and still lie there.
constexpr size_t kOverMax = 256;

ino_t inode_of(int fd) {
    struct stat facts{};
    return ::fstat(fd, &facts) == 0 ? facts.st_ino : 0;
}

} // namespace

Keeping::Keeping(std::unique_ptr<Journal> journal, Parking parking, std::string identity)
    : journal_(std::move(journal)), parking_(std::move(parking)),
      identity_(identity.substr(0, kIdentityBytesMax)), tidy_at_(kMessagesMax) {}

Result<std::shared_ptr<Keeping>> Keeping::open(UniqueFd journal, UniqueFd parked_in,
                                               UniqueFd parked_out, std::string identity) {
    BERTH_ASSIGN(auto opened, Journal::open(std::move(journal)));
    return std::shared_ptr<Keeping>(
        new Keeping(std::move(opened), Parking(std::move(parked_in), std::move(parked_out)),
                    std::move(identity)));
}

void Keeping::say_once(uint64_t& count, const char* why) {
    if (count++ == 0)
        log::warn("a connection is not kept for a successor, {}: it ends with this process; "
                  "said once, counted in the metrics",
                  why);
}

std::shared_ptr<KeptConnection> Keeping::place(uint32_t slot) {
    return std::make_shared<KeptConnection>(shared_from_this(), slot, journal_->slot(slot),
                                            journal_->layout());
}

std::shared_ptr<KeptConnection> Keeping::reserve() {
    const int64_t slot = leaving_ ? -1 : journal_->take_slot();
    if (slot < 0)
        return nullptr;
    std::shared_ptr<KeptConnection> reserved = place(static_cast<uint32_t>(slot));
    reserved->begin(journal_->next_serial(), TcpCount());
    return reserved;
}

bool Keeping::park(int socket, KeptConnection& place) {
    const Parking::Live live{{place.slot(), place.serial()}, socket};
    if (Status parked = parking_.park(live); !parked) {
        say_once(counts_.not_parked, parked.error().message.c_str());
        place.end();
        return false;
    }
    open_[place.slot()] = {place.serial(), socket};
    if (parking_.messages() >= tidy_at_ || over_ >= kOverMax)
        tidy();
    return true;
}

std::shared_ptr<KeptConnection> Keeping::keep(int socket) {
    const Result<TcpCount> count = tcp_count(socket);
    if (!count) {
        say_once(counts_.not_offered, count.error().message.c_str());
        return nullptr;
    }
    std::shared_ptr<KeptConnection> place = reserve();
    if (!place) {
        say_once(counts_.no_slot, "all slots of the journal are in use");
        return nullptr;
    }
    place->begin(place->serial(), *count);
    return park(socket, *place) ? place : nullptr;
}

std::vector<Parking::Live> Keeping::live() const {
    std::vector<Parking::Live> all;
    for (const auto& [slot, open] : open_)
        all.push_back({{slot, open.serial}, open.fd});
    return all;
}

void Keeping::begin_leaving() {
    if (!leaving_)
        tidy();
    leaving_ = true;
}

// Tokens of another vocabulary would be read as this one's, and gone on with by other weights.
bool Keeping::is_foreign(const KeptConnection& connection) const {
    return connection.resumes() && journal_->identity() != identity_;
}

void Keeping::tidy() {
    if (leaving_)
        return; // those that were left are nobody's to send again
    over_ = 0;
    tidy_at_ = kMessagesMax;
    if (Status done = parking_.replace(live()); !done) {
        log::warn("parked connections stay with those that are over: {}", done.error().message);
        tidy_at_ += parking_.messages(); // not at once again
    }
}

void Keeping::freed(const KeptConnection& connection) {
    over_ += open_.erase(connection.slot());
    journal_->free_slot(connection.slot());
}

void Keeping::note_too_large() {
    say_once(counts_.too_large, "a request or its answer does not fit the journal's slot");
}

Keeping::Counts Keeping::counts() const {
    Counts counts = counts_;
    counts.kept = open_.size();
    return counts;
}

// What no slot speaks of was over, unless it is a connection that has a slot again: its place was
// given up when something did not fit, and taken anew for its next request.
std::vector<Keeping::TakenOver> Keeping::take_over() {
    std::vector<bool> used(journal_->slots(), false);
    auto found = parking_.look();
    if (!found) {
        log::error("connections of the process before cannot be taken over and are ended: {}",
                   found.error().message);
        counts_.cut += parking_.clear().value_or(0);
        journal_->keep_only(used);
        journal_->set_identity(identity_);
        return {};
    }
    std::vector<TakenOver> taken;
    std::set<ino_t> live;
    std::vector<UniqueFd> over;
    for (Parking::Found& one : *found) {
        const uint32_t slot = one.name.slot;
        if (slot >= used.size() || one.name.serial == 0 ||
            journal_->serial_of(slot) != one.name.serial) {
            over.push_back(std::move(one.fd));
            continue;
        }
        if (used[slot])
            continue; // a double
        live.insert(inode_of(one.fd.get()));
        const Result<TcpCount> count = tcp_count(one.fd.get());
        std::shared_ptr<KeptConnection> kept = place(slot);
        const bool lives = count && !count->is_over;
        const bool is_whole = lives && kept->take_over(*count);
        if (!is_whole || is_foreign(*kept)) {
            counts_.cut += lives ? 1 : 0;
            counts_.other_identity += is_whole ? 1 : 0;
            ::shutdown(one.fd.get(), SHUT_RDWR);
            continue;
        }
        used[slot] = true;
        open_[slot] = {one.name.serial, one.fd.get()};
        taken.push_back({std::move(one.fd), std::move(kept)});
    }
    for (const UniqueFd& fd : over)
        if (!live.contains(inode_of(fd.get())))
            ::shutdown(fd.get(), SHUT_RDWR);
    journal_->keep_only(used);
    if (counts_.other_identity > 0)
        log::warn(
            "requests not gone on with count={}: the process before was of identity '{}' (model, "
            "tokenizer, names, context), this one is of '{}'; their connections are ended",
            counts_.other_identity, journal_->identity(), identity_);
    journal_->set_identity(identity_); // last: what is in it now means what it means here
    tidy();
    counts_.taken_over += taken.size();
    return taken;
}

} // namespace berth::http
