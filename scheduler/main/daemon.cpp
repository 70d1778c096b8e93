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
#include "scheduler/admin/loop_lag.h"
#include "scheduler/main/lock_file.h"
#include "scheduler/main/node_setup.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
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
    make_descriptor_table();
}

// Everything of a running node; members are destroyed from the last to the first.
class Daemon {
  public:
    Daemon(const DaemonOptions& options, Store::Opened opened, PolicyBook book, NodePaths paths,
           LockFile lock, std::shared_ptr<ServiceManager> manager)
        : options_(options), lock_(std::move(lock)), manager_(std::move(manager)),
          book_(std::move(book)), store_(std::move(opened.store)), stored_(std::move(opened.state)),
          context_(io_), signals_(io_), loop_lag_(io_, context_.metrics) {
        context_.node_name = book_.node().name;
        context_.group = book_.node().group;
        context_.paths = std::move(paths);
        context_.zygote_off = options.zygote_off;
        context_.events.restore(stored_.events, stored_.first_revision,
                                // An event may have been shown whose record was lost with its
                                // daemon: no revision is given twice.
                                stored_.last_revision == 0 ? 0 : stored_.last_revision + 100);
        for (DecisionRecord& record : stored_.decisions)
            context_.decisions.push_back(std::move(record));
    }

    // The store goes before all that its completions speak to.
    ~Daemon() { store_.reset(); }
    Daemon(const Daemon&) = delete;
    Daemon& operator=(const Daemon&) = delete;

    Status start();
    void run() { io_.run(); }
    // What opening the database brought to light; empty: nothing.
    void note_database(const std::string& incident);
    // After run(): the last words go to the store.
    void finish();

  private:
    Status listen_admin(const PeerPolicy& peers);
    void store_changed(const StoreReport& report);
    void watch_signals();
    void reload();
    void reloaded(const Result<PolicyBook::Change>& read);
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
    std::unique_ptr<Access> access_;
    std::unique_ptr<AdminApi> admin_;
    std::unique_ptr<http::Server> server_;
    std::string store_trouble_; // its reason, as last told
    asio::signal_set signals_;
    LoopLag loop_lag_;
};

Status Daemon::start() {
    int64_t started_ms = wall_clock_ms();
    BERTH_ASSIGN(std::vector<node::DeviceSeen> devices, find_devices(book_.node(), context_));
    BERTH_TRY(open_keeper());
    BERTH_ASSIGN(PeerPolicy peers,
                 PeerPolicy::of(static_cast<uint32_t>(::geteuid()), context_.group));
    actor_ = std::make_unique<NodeActor>(context_, *store_, peers);
    context_.loop->on_store([this](const StoreReport& report) { store_changed(report); });
    BERTH_ASSIGN(Recovery recovery, actor_->recover(devices, std::move(stored_)));
    stored_ = {};

    BERTH_ASSIGN(Access access, Access::of(book_.node(), peers));
    access_ = std::make_unique<Access>(std::move(access));
    for (const std::string& warning : access_->warnings())
        context_.note(true, "node/" + context_.node_name, "Access", warning);
    AdminApi::Parts parts{context_, *actor_,          *store_,   book_,
                          *access_, options_.version, started_ms};
    admin_ = std::make_unique<AdminApi>(std::move(parts));
    BERTH_TRY(listen_admin(peers));
    BERTH_TRY(actor_->listen());
    watch_signals();
    loop_lag_.start();
    actor_->expect_engines(book_.documents());
    context_.post(node::DocumentsApplied{book_.documents()});
    actor_->follow_services(); // whoever sees this node ready may connect, before it is recorded
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

// Said once each time: in the log, in the events (in memory at once, on disk when that is possible)
// and, as long as it lasts, by /readyz, status and doctor.
void Daemon::store_changed(const StoreReport& report) {
    const std::string object = "node/" + context_.node_name;
    context_.events.stored_from(report.first_revision);
    if (!report.incident.empty())
        context_.note(true, object, "DatabaseReplaced", report.incident);
    const bool was_well = store_trouble_.empty();
    if (report.trouble && report.trouble->reason != store_trouble_) {
        store_trouble_ = report.trouble->reason;
        context_.note(true, object, store_trouble_, report.trouble->message);
    } else if (!report.trouble && !was_well) {
        store_trouble_.clear();
        log::info("{} can be written again; going on with what waited", store_->path());
        context_.note(false, object, "DatabaseWritable",
                      store_->path() + " can be written again; going on with what waited");
    }
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

Status Daemon::listen_admin(const PeerPolicy& peers) {
    server_ = std::make_unique<http::Server>(io_, admin_->routes(), admin_limits());
    BERTH_TRY(server_->listen_unix(context_.paths.admin_socket, 0660));
    BERTH_TRY(peers.give(context_.paths.admin_socket));
    if (const auto& tcp = book_.node().admin_tcp) {
        BERTH_ASSIGN(std::string where, listen_admin_tcp(*server_, *tcp));
        log::info("admin interface on {}", where);
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
    if (const auto& trouble = context_.loop->store_trouble()) {
        log::error("SIGHUP: {}; everything stays as it was, send it again then", trouble->message);
        context_.note(true, "node/" + context_.node_name, "PolicyRefused", trouble->message);
        return;
    }
    // Reading and checking a thousand documents takes longer than a decision may wait.
    actor_->workers().documents.run(
        [book = book_] { return book.prepare_reload(); },
        [this](const Result<PolicyBook::Change>& read) { reloaded(read); });
}

void Daemon::reloaded(const Result<PolicyBook::Change>& read) {
    const Status held = read ? book_.commit(*read) : Status(fail(read.error()));
    if (!held) {
        log::error("SIGHUP: {}; everything stays as it was", held.error().message);
        context_.note(true, "node/" + context_.node_name, "PolicyRefused", held.error().message);
        return;
    }
    if (auto set = access_->set(book_.node()); !set)
        context_.note(true, "node/" + context_.node_name, "Access",
                      set.error().message + "; who may what stays as it was");
    for (const std::string& warning : access_->warnings())
        context_.note(true, "node/" + context_.node_name, "Access", warning);
    log::info("SIGHUP: policies read anew");
    std::string words = "policies read anew from their files";
    if (const std::vector<std::string> hidden = book_.hidden(); !hidden.empty())
        words +=
            fmt::format("; what was applied hides theirs of {} (berth apply --reset forgets it)",
                        fmt::join(hidden, ", "));
    context_.note(false, "node/" + context_.node_name, "PolicyApplied", words);
    context_.post(node::DocumentsApplied{book_.documents()});
}

void Daemon::stop(int signal) {
    log::info("stopping on signal {}; engines and keeper go on, and the next berthd finds them",
              signal);
    admin_->set_ready(false);
    tell_manager("STOPPING=1");
    context_.post(node::Shutdown{});
    loop_lag_.stop();
    server_->stop();
    actor_->stop();
    // What was posted in this turn still runs; then nothing is left to wait for.
    asio::post(io_, [this] { io_.stop(); });
}

void Daemon::note_database(const std::string& incident) {
    store_changed(StoreReport{store_->status().trouble, incident, 0});
}

void Daemon::finish() {
    const StoreStatus status = store_->status();
    if (status.trouble)
        log::error("{}; {} batches of records are lost, what is alive is found again",
                   status.trouble->message, status.batches_waiting);
    store_.reset();
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
    BERTH_ASSIGN(Store::Opened opened, Store::open(paths.state_dir, {}, {}, paths.runtime_dir));
    const std::string warning_of_store = opened.warning;
    if (!opened.warning.empty())
        log::error("{}", opened.warning);
    if (const auto trouble = opened.store->status().trouble)
        log::error("{}; started all the same, and waiting for it", trouble->message);
    PolicyBook book = std::move(first);
    if (!opened.state.policies.empty()) {
        BERTH_ASSIGN(book, PolicyBook::open(options.config_file, opened.state.policies, warnings));
    }
    for (const std::string& warning : warnings)
        log::warn("{}", warning);
    Daemon daemon(options, std::move(opened), std::move(book), std::move(paths), std::move(lock),
                  std::move(manager));
    BERTH_TRY(daemon.start());
    daemon.note_database(warning_of_store);
    daemon.run();
    daemon.finish();
    log::info("stopped");
    return {};
}

} // namespace berth
