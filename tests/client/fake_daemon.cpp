// SPDX-License-Identifier: Apache-2.0
#include "tests/client/fake_daemon.h"

#include "cache/weights/manifest.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <span>
#include <unistd.h>

namespace berth::testing {

SealedSet make_set(Device& device, const std::string& fingerprint) {
    auto writable =
        must(device.create_segment(device.capabilities().granularity_bytes, "berth-weights"));
    constexpr std::array<float, 6> kNumbers = {0, 1, 2, 3, 4, 5};
    constexpr std::array<uint16_t, 4> kHalves = {0x3F80, 0x4000, 0x4040, 0x4080};
    std::memcpy(writable->data(), kNumbers.data(), sizeof kNumbers);
    std::memcpy(writable->data() + kTensorAlignment, kHalves.data(), sizeof kHalves);

    ManifestParts parts;
    Checksum first = checksum_of(std::as_bytes(std::span(kNumbers)));
    parts.entries = {
        {"a.weight", DType::kF32, {2, 3}, 0, 0, sizeof kNumbers, first, ""},
        {"b.bias",
         DType::kBF16,
         {4},
         0,
         kTensorAlignment,
         sizeof kHalves,
         checksum_of(std::as_bytes(std::span(kHalves))),
         ""},
        {"tied.weight", DType::kF32, {2, 3}, 0, 0, sizeof kNumbers, first, "a.weight"},
    };
    parts.segment_bytes = {writable->bytes()};
    parts.fingerprint_json = "{}";
    parts.fingerprint = fingerprint;
    parts.config_json = "{}";
    SealedSet set;
    set.fingerprint = fingerprint;
    set.segment = must(writable->seal());
    set.manifest = must(write_manifest(parts));
    return set;
}

FakeDaemon::FakeDaemon(const std::string& path) : path_(path) {
    listen();
    new_gate();
}

void FakeDaemon::listen() {
    listener_ = must(listen_packets(path_, 0600));
}

void FakeDaemon::die() {
    hang_up();
    listener_.reset();
    ::unlink(path_.c_str());
}

protocol::Hello FakeDaemon::accept_hello() {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 20'000) != 1)
        throw std::runtime_error("nobody connected");
    connection_ = must(accept_packets(listener_.get()));
    return expect<protocol::Hello>();
}

protocol::Hello FakeDaemon::accept_and_welcome(protocol::Welcome welcome) {
    protocol::Hello hello = accept_hello();
    welcome.id = hello.id;
    if (welcome.instance.empty())
        welcome.instance = hello.instance;
    welcome.device = "host-0";
    welcome.device_kind = "host";
    send(welcome, {welcome.raises_gate ? gate_.writable.get() : gate_.read_only.get()});
    return hello;
}

void FakeDaemon::refuse(uint64_t id, const Error& error) {
    send(protocol::Failed{id, error});
}

void FakeDaemon::send(const protocol::Message& message, const std::vector<int>& fds) {
    must(protocol::send(connection_.get(), message, fds, soon()));
}

void FakeDaemon::send_set(uint64_t id, const SealedSet& set) {
    protocol::Attached attached;
    attached.id = id;
    attached.weight_set = set.fingerprint.substr(0, 16);
    attached.fingerprint = set.fingerprint;
    attached.model_path = "/models/tiny";
    attached.segment_bytes = {set.segment.bytes};
    send(attached, {set.manifest.get(), set.segment.fd.get()});
}

ScratchFolder::ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "berth-client-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
        throw std::runtime_error("mkdtemp failed");
    folder_ = pattern;
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

} // namespace berth::testing
