// SPDX-License-Identifier: Apache-2.0
// The daemon put together. Order of a start: lock, store, devices, keeper (everything it holds is
// adopted), instances and operations of the records, sockets, policies; from then on events.
#include "scheduler/main/daemon.h"

#include "base/descriptors.h"
#include "base/http/server.h"
#include "base/log.h"
#include "base/units.h"
#include "cache/keep/service_manager.h"
#include "scheduler/act/node_actor.h"
#include "scheduler/act/policy_book.h"
#include "scheduler/admin/admin_api.h"
#include "scheduler/main/lock_file.h"
#include "scheduler/main/node_setup.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <grp.h>
#include <malloc.h>
#include <unistd.h>

namespace berth {

namespace asio = boost::asio;

namespace {

// Descriptors are what this process is made of: as many as it may have.
void raise_file_limit() {
    auto limit = raise_descriptor_limit();
    if (!limit)
        log::warn("{}, going on with {}", limit.error().message, descriptor_limit());
    else
        log::info("descriptors soft={} hard={} (soft was {})", limit->soft, limit->hard,
                  limit->before);
}

Status give_to_group(const std::string& path, const std::string& group_name) {
    if (group_name.empty())
        return {};
    group entry{};
    group* found = nullptr;
    std::vector<char> buffer(16 << 10);
    ::getgrnam_r(group_name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr)
        return fail(ErrorCode::kNotFound,
                    fmt::format("spec.group names the group '{}', which this system does not have",
                                group_name));
    if (::chown(path.c_str(), static_cast<uid_t>(-1), found->gr_gid) != 0)
        return fail_errno(fmt::format("giving {} to group '{}'", path, group_name));
    return {};
}

// "127.0.0.1:7070" -> host and port. Only loopback passes the policy's reader.
Result<std::pair<std::string, uint16_t>> host_and_port(const std::string& listen) {
    size_t colon = listen.rfind(':');
    int port = 0;
    if (colon != std::string::npos)
        for (char c : listen.substr(colon + 1))
            port = c >= '0' && c <= '9' && port <= 65535 ? port * 10 + (c - '0') : 70000;
    if (colon == std::string::npos || port > 65535)
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("admin.listen: expected HOST:PORT, found '{}'", listen));
    return std::pair(listen.substr(0, colon), static_cast<uint16_t>(port));
}

// Everything of a running node; members are destroyed from the last to the first.
class Daemon {
  public:
    Daemon(const DaemonOptions& options, Store::Opened opened, PolicyBook book, NodePaths paths,
           LockFile lock, std::shared_ptr<ServiceManager> manager)
        : options_(options), lock_(std::move(lock)), manager_(std::move(manager)),
          book_(std::move(book)), store_(std::move(opened.store)), stored_(std::move(opened.state)),
          context_(io_), signals_(io_) {
        context_.node_name = book_.node().name;
        context_.group = book_.node().group;
        context_.paths = std::move(paths);
        context_.events.restore(stored_.events, stored_.first_revision,
                                // An event may have been shown whose record was lost with its
                                // daemon: no revision is given twice.
                                stored_.last_revision == 0 ? 0 : stored_.last_revision + 100);
        for (DecisionRecord& record : stored_.decisions)
            context_.decisions.push_back(std::move(record));
    }

    Status start();
    void run() { io_.run(); }
    // After run(): the last words go to the store.
    void finish();

  private:
    Status listen_admin();
    void watch_signals();
    void reload();
    void stop(int signal);
    Status open_keeper();
    void tell_manager(const std::string& lines) const;

    const DaemonOptions& options_;
    LockFile lock_;
    std::shared_ptr<ServiceManager> manager_;
    PolicyBook book_;
    std::unique_ptr<Store> store_;
    StoredState stored_;
    asio::io_context io_{1};
    NodeContext context_;
    std::unique_ptr<NodeActor> actor_;
    std::unique_ptr<AdminApi> admin_;
    std::unique_ptr<http::Server> server_;
    asio::signal_set signals_;
};

Status Daemon::start() {
    int64_t started_ms = wall_clock_ms();
    BERTH_ASSIGN(std::vector<node::DeviceSeen> devices, find_devices(book_.node(), context_));
    BERTH_TRY(open_keeper());
    PeerPolicy peers{static_cast<uint32_t>(::geteuid()), context_.group};
    actor_ = std::make_unique<NodeActor>(context_, *store_, peers);
    BERTH_ASSIGN(Recovery recovery, actor_->recover(devices, std::move(stored_)));
    stored_ = {};

    AdminApi::Parts parts{context_, *actor_,          *store_, book_,
                          peers,    options_.version, "",      started_ms};
    if (const auto& tcp = book_.node().admin_tcp) {
        BERTH_ASSIGN(parts.tcp_token, read_file(tcp->token_file, 4096));
        while (!parts.tcp_token.empty() && parts.tcp_token.back() <= ' ')
            parts.tcp_token.pop_back();
        if (parts.tcp_token.size() < 16)
            return fail(ErrorCode::kInvalidArgument,
                        fmt::format("{}: a token has 16 characters or more", tcp->token_file));
    }
    admin_ = std::make_unique<AdminApi>(std::move(parts));
    BERTH_TRY(listen_admin());
    BERTH_TRY(actor_->listen());
    watch_signals();
    context_.post(node::DocumentsApplied{book_.documents()});
    context_.metrics.recovery_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - options_.started).count();
    admin_->set_ready(true);
    tell_manager("READY=1");
    ::malloc_trim(0); // what reading the records took
    std::string words = fmt::format(
        "ready after {:.1f} ms: {} devices, {} weight sets adopted ({}, 0 bytes read), {} of {} "
        "instances alive, {} operations taken up again",
        context_.metrics.recovery_seconds * 1e3, devices.size(), recovery.weight_sets,
        format_bytes(recovery.weight_bytes), recovery.instances_alive, recovery.instances,
        recovery.operations);
    log::info("{} node={} socket={}", words, context_.node_name, context_.paths.engine_socket);
    context_.note(false, "node/" + context_.node_name, "Started", words);
    return {};
}

// With keeper: systemd, what the service manager kept is taken over here.
Status Daemon::open_keeper() {
    if (book_.node().keeper == policies::KeeperKind::kSystemd) {
        BERTH_ASSIGN(context_.systemd_store, SystemdStore::open(manager_));
        return {};
    }
    if (size_t count = manager_->take_inherited().size(); count != 0)
        log::warn("the service manager keeps {} descriptors for this unit, which keeper: process "
                  "does not use; to free what they hold stop the unit, then: systemctl clean "
                  "--what=fdstore UNIT",
                  count);
    return {};
}

void Daemon::tell_manager(const std::string& lines) const {
    if (auto told = manager_->tell(lines); !told)
        log::warn("{}: {}, going on", lines, told.error().message);
}

Status Daemon::listen_admin() {
    server_ = std::make_unique<http::Server>(io_, admin_->routes());
    BERTH_TRY(server_->listen_unix(context_.paths.admin_socket, 0660));
    BERTH_TRY(give_to_group(context_.paths.admin_socket, context_.group));
    if (const auto& tcp = book_.node().admin_tcp) {
        BERTH_ASSIGN(auto where, host_and_port(tcp->listen));
        BERTH_ASSIGN(uint16_t port, server_->listen_tcp(where.first, where.second));
        log::info("admin interface on http://{}:{}", where.first, port);
    }
    return {};
}

void Daemon::watch_signals() {
    for (int number : {SIGTERM, SIGINT, SIGHUP}) {
        boost::system::error_code ignored;
        signals_.add(number, ignored);
    }
    signals_.async_wait([this](boost::system::error_code error, int number) {
        if (error)
            return;
        if (number == SIGHUP) {
            reload();
            watch_signals();
        } else {
            stop(number);
        }
    });
}

void Daemon::reload() {
    if (auto reloaded = book_.reload(); !reloaded) {
        log::error("SIGHUP: {}; everything stays as it was", reloaded.error().message);
        context_.note(true, "node/" + context_.node_name, "PolicyRefused",
                      reloaded.error().message);
        return;
    }
    log::info("SIGHUP: policies read anew");
    context_.note(false, "node/" + context_.node_name, "PolicyApplied",
                  "policies read anew from their files");
    context_.post(node::DocumentsApplied{book_.documents()});
}

void Daemon::stop(int signal) {
    log::info("stopping on signal {}; engines and keeper go on, and the next berthd finds them",
              signal);
    admin_->set_ready(false);
    tell_manager("STOPPING=1");
    context_.post(node::Shutdown{});
    server_->stop();
    actor_->stop();
    // What was posted in this turn still runs; then nothing is left to wait for.
    asio::post(io_, [this] { io_.stop(); });
}

void Daemon::finish() {
    store_->flush();
}

} // namespace

Result<std::string> check_configuration(const std::string& config_file) {
    std::vector<std::string> warnings;
    BERTH_ASSIGN(PolicyBook book, PolicyBook::open(config_file, {}, warnings));
    BERTH_ASSIGN(NodePaths paths, paths_of(book.node()));
    const policies::Documents& documents = book.documents();
    return fmt::format("{}: node '{}', {} models, {} instances; socket {}, state in {}",
                       config_file, book.node().name, documents.models.size(),
                       documents.instances.size(), paths.engine_socket, paths.state_dir);
}

Status run_daemon(const DaemonOptions& options) {
    BERTH_ASSIGN(ServiceManager found, ServiceManager::from_environment());
    auto manager = std::make_shared<ServiceManager>(std::move(found));
    // The policies that were applied live in the store, whose place the file says.
    std::vector<std::string> warnings;
    BERTH_ASSIGN(PolicyBook first, PolicyBook::open(options.config_file, {}, warnings));
    BERTH_ASSIGN(NodePaths paths, paths_of(first.node()));
    BERTH_TRY(make_directories(paths.state_dir, 0750));
    BERTH_TRY(make_directories(paths.runtime_dir, 0755));
    BERTH_ASSIGN(LockFile lock, LockFile::take(paths.state_dir + "/berthd.lock"));
    raise_file_limit();
    BERTH_ASSIGN(Store::Opened opened, Store::open(paths.state_dir));
    if (!opened.warning.empty())
        log::error("{}", opened.warning);
    PolicyBook book = std::move(first);
    if (!opened.state.policies.empty()) {
        BERTH_ASSIGN(book, PolicyBook::open(options.config_file, opened.state.policies, warnings));
    }
    for (const std::string& warning : warnings)
        log::warn("{}", warning);
    Daemon daemon(options, std::move(opened), std::move(book), std::move(paths), std::move(lock),
                  std::move(manager));
    BERTH_TRY(daemon.start());
    daemon.run();
    daemon.finish();
    log::info("stopped");
    return {};
}

} // namespace berth
