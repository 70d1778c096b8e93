// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/packet_socket.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace berth {

// The keeper's words, one JSON object a SEQPACKET message, {"v": 1, "id": N, "op": OP, ...}:
//
//   put  {key, meta: object} + descriptors   keeps them; an existing key is replaced at once
//   get  {key}                               -> {key, meta, fds: n} + descriptors
//   list {after: key or ""}                  -> {entries: [{key, meta, fds: n}], more: bool}
//   drop {key}                               closes its descriptors
//   ping                                     -> {pid, entries, descriptors, version}
//
// A reply repeats v and id and says "ok": true, or false with "error": {code, reason, message}.
// Unknown fields are ignored; another version is a Mismatch.
inline constexpr int kKeeperVersion = 1;
inline constexpr size_t kKeeperEntriesMax = 4096;
inline constexpr size_t kKeeperFdsMax = 16;
inline constexpr size_t kKeeperKeyBytesMax = 256;
inline constexpr size_t kKeeperMetaBytesMax = size_t{96} << 10;

// What the keeper holds, and its answers: all but the sockets. Takes any bytes whatever as a
// request and always answers. Not thread-safe; never blocks.
class KeeperStore {
  public:
    // Holds at most `descriptors_max` in all; more is ResourceExhausted.
    explicit KeeperStore(size_t descriptors_max) : descriptors_max_(descriptors_max) {}

    // The reply; its descriptors are duplicates of the store's.
    Packet handle(Packet request);
    // The reply to a message that could not be received whole.
    static Packet refuse(const Error& error);

    size_t entries() const { return entries_.size(); }
    size_t descriptors() const { return descriptors_; }
    // "set/0123@host-0 (2 descriptors), gate/host-0 (1)", for the log.
    std::string summary() const;

  private:
    struct Entry {
        std::string meta; // serialised
        std::vector<UniqueFd> fds;
    };
    struct Request;

    Result<Packet> answer(Request& request);
    Result<Packet> put(Request& request);
    Result<Packet> get(const Request& request) const;
    Result<Packet> list(const Request& request) const;
    Result<Packet> drop(const Request& request);
    Packet ping(const Request& request) const;

    size_t descriptors_max_;
    size_t descriptors_ = 0;
    std::map<std::string, Entry> entries_;
};

} // namespace berth
