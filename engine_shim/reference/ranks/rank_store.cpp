// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/ranks/rank_store.h"

#include "engine_shim/reference/ranks/c10d_store.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <string_view>

namespace berth::engine {

namespace {

constexpr std::string_view kFile = "file://";
constexpr std::string_view kTcp = "tcp://";

std::chrono::milliseconds in_milliseconds(Nanoseconds time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

// torch's exceptions say what it was in their first line.
template <typename F>
auto guarded(std::string_view what, F&& call) -> Result<decltype(call())> {
    try {
        return call();
    } catch (const std::exception& thrown) {
        const std::string_view text = thrown.what();
        return fail(ErrorCode::kUnavailable,
                    fmt::format("{}: {}", what, text.substr(0, text.find('\n'))), "NoRendezvous");
    }
}

class C10dRankStore final : public C10dStore {
  public:
    C10dRankStore(std::string where, c10::intrusive_ptr<c10d::Store> store)
        : where_(std::move(where)), store_(std::move(store)) {}

    Status set(const std::string& name, const std::string& text) override {
        auto made = guarded(fmt::format("writing '{}' to {}", name, where_), [&] {
            store_->set(name, std::vector<uint8_t>(text.begin(), text.end()));
            return true;
        });
        return made ? Status() : fail(made.error());
    }

    Result<std::string> get(const std::string& name, Nanoseconds timeout) override {
        return guarded(
            fmt::format("waiting for '{}' at {}, which another rank writes", name, where_), [&] {
                store_->wait({name}, in_milliseconds(timeout));
                const std::vector<uint8_t> found = store_->get(name);
                return std::string(found.begin(), found.end());
            });
    }

    const c10::intrusive_ptr<c10d::Store>& store() const override { return store_; }

  private:
    const std::string where_;
    const c10::intrusive_ptr<c10d::Store> store_;
};

tl::unexpected<Error> refuse(const std::string& rendezvous) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("rendezvous '{}': expected file:///PATH or tcp://HOST:PORT", rendezvous),
        "BadRendezvous");
}

} // namespace

Result<std::unique_ptr<RankStore>> open_rank_store(const std::string& rendezvous, uint32_t rank,
                                                   uint32_t ranks, Nanoseconds timeout) {
    using Store = c10::intrusive_ptr<c10d::Store>;
    std::string_view rest = rendezvous;
    Result<Store> store = refuse(rendezvous);
    if (rest.starts_with(kFile) && rest.size() > kFile.size() + 1 && rest[kFile.size()] == '/') {
        rest.remove_prefix(kFile.size());
        store = guarded(fmt::format("opening {}", rendezvous), [&]() -> Store {
            return c10::make_intrusive<c10d::FileStore>(std::string(rest), static_cast<int>(ranks));
        });
    } else if (const size_t colon = rest.rfind(':');
               rest.starts_with(kTcp) && colon != std::string_view::npos && colon > kTcp.size()) {
        c10d::TCPStoreOptions options;
        const std::string_view port = rest.substr(colon + 1);
        const auto [end, error] =
            std::from_chars(port.data(), port.data() + port.size(), options.port);
        if (error != std::errc() || end != port.data() + port.size())
            return refuse(rendezvous);
        options.isServer = rank == 0;
        options.numWorkers = ranks;
        options.waitWorkers = false;
        options.timeout = in_milliseconds(timeout);
        store = guarded(fmt::format("opening {}", rendezvous), [&]() -> Store {
            return c10::make_intrusive<c10d::TCPStore>(
                std::string(rest.substr(kTcp.size(), colon - kTcp.size())), options);
        });
    }
    if (!store)
        return fail(store.error());
    return std::make_unique<C10dRankStore>(rendezvous, std::move(*store));
}

} // namespace berth::engine
