// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/long_lists.h"

#include "base/json.h"

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace berth::long_lists {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

class Text {
  public:
    void add(const json::object& item) {
        text_ += text_.size() > 1 ? "," : "";
        text_ += json::serialize(item);
    }
    std::string end() { return std::move(text_) + "]"; }

  private:
    std::string text_ = "[";
};

// Where the next slice begins, if this one has lasted long enough.
class Slice {
  public:
    explicit Slice(const NodeContext& context) : io_(context.io) {}
    bool is_over() const { return steady_clock::now() > until_; }
    asio::awaitable<void> next() {
        co_await asio::post(io_, asio::use_awaitable);
        until_ = steady_clock::now() + kSlice;
    }

  private:
    asio::io_context& io_;
    steady_clock::time_point until_ = steady_clock::now() + kSlice;
};

} // namespace

asio::awaitable<std::string> instances(const NodeContext* context) {
    Text text;
    Slice slice(*context);
    const auto& all = context->state().instances;
    for (auto at = all.begin(); at != all.end();) {
        text.add(views::instance(at->second, steady_clock::now()));
        const node::InstanceName name = at->first;
        if (slice.is_over())
            co_await slice.next();
        at = all.upper_bound(name); // it may be gone by now
    }
    co_return text.end();
}

asio::awaitable<std::string> devices(const NodeContext* context, views::DriverBytes driver) {
    Text text;
    Slice slice(*context);
    for (const node::DeviceId& id : context->device_order) {
        const auto& all = context->state().devices;
        if (auto found = all.find(id); found != all.end())
            text.add(views::device(*context, found->second, driver));
        if (slice.is_over())
            co_await slice.next();
    }
    co_return text.end();
}

asio::awaitable<std::string> weights(const NodeContext* context) {
    Text text;
    Slice slice(*context);
    const std::vector<views::WeightsLine> lines = views::weights_lines(context->state());
    for (const views::WeightsLine& line : lines) {
        if (auto shown = views::weights_line(*context, line))
            text.add(*shown);
        if (slice.is_over())
            co_await slice.next();
    }
    co_return text.end();
}

} // namespace berth::long_lists
