// SPDX-License-Identifier: Apache-2.0
#include "cache/keep/service_manager.h"

#include "base/log.h"
#include "base/number.h"
#include "base/process.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace berth {

namespace {

constexpr int kTimeoutSeconds = 5;

// The variable's text; it is gone from the environment afterwards.
std::string take_variable(const char* name) {
    const char* text = std::getenv(name);
    std::string taken = text != nullptr ? text : "";
    ::unsetenv(name);
    return taken;
}

std::vector<InheritedFd> inherited_fds(size_t count, std::string_view text) {
    const std::vector<std::string> names = listen_names(text);
    std::vector<InheritedFd> found;
    for (size_t i = 0; i < count; ++i) {
        std::string name = i < names.size() ? names[i] : std::string();
        int fd = kListenFdsStart + static_cast<int>(i);
        if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
            log::warn("LISTEN_FDS={} but descriptor {} ('{}') is not open, ignoring", count, fd,
                      name);
            continue;
        }
        found.push_back({std::move(name), UniqueFd(fd)});
    }
    return found;
}

Result<UniqueFd> connect_notify(const std::string& address) {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (address.size() < 2 || address.size() >= sizeof to.sun_path ||
        (address[0] != '/' && address[0] != '@'))
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("NOTIFY_SOCKET is '{}': expected an absolute path or @name of at "
                                "most {} bytes",
                                address, sizeof to.sun_path - 1));
    std::memcpy(to.sun_path, address.data(), address.size());
    bool is_abstract = address[0] == '@';
    if (is_abstract)
        to.sun_path[0] = '\0';
    UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd)
        return fail_errno("socket");
    timeval timeout{kTimeoutSeconds, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    size_t bytes = offsetof(sockaddr_un, sun_path) + address.size() + (is_abstract ? 0 : 1);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), static_cast<socklen_t>(bytes)) != 0)
        return fail_errno(fmt::format("connecting to NOTIFY_SOCKET {}", address));
    return fd;
}

} // namespace

Result<ServiceManager> ServiceManager::from_environment() {
    ServiceManager manager;
    manager.address_ = take_variable("NOTIFY_SOCKET");
    std::string pid = take_variable("LISTEN_PID");
    std::string count = take_variable("LISTEN_FDS");
    std::string names = take_variable("LISTEN_FDNAMES");
    manager.descriptors_max_ = number_in<size_t>(take_variable("FDSTORE")).value_or(0);
    ::unsetenv("LISTEN_PIDFDID");
    // Another process's variables name descriptors that are not ours to touch.
    if (number_in<size_t>(pid) == static_cast<size_t>(::getpid()))
        manager.inherited_ = inherited_fds(number_in<size_t>(count).value_or(0), names);
    if (!manager.address_.empty()) {
        BERTH_ASSIGN(manager.socket_, connect_notify(manager.address_));
    }
    return manager;
}

Status ServiceManager::tell(const std::string& lines, const std::vector<int>& fds) const {
    if (!socket_)
        return {};
    std::string payload = lines;
    iovec part{payload.data(), payload.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(fds.empty() ? 0 : CMSG_SPACE(sizeof(int) * fds.size()));
    if (!fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    ssize_t sent = 0;
    do {
        sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return fail(ErrorCode::kDeadlineExceeded,
                    fmt::format("the service manager did not read its {} for {} s", address_,
                                kTimeoutSeconds));
    if (sent < 0)
        return fail_errno(fmt::format("telling the service manager at {}", address_));
    return {};
}

Status ServiceManager::barrier() const {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0)
        return fail_errno("pipe2");
    UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    BERTH_TRY(tell("BARRIER=1", {write_end.get()}));
    write_end.reset();
    pollfd waiting{read_end.get(), 0, 0}; // POLLHUP comes unasked
    int rc = 0;
    do {
        rc = ::poll(&waiting, 1, kTimeoutSeconds * 1000);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return fail_errno("poll");
    if (rc == 0)
        return fail(
            ErrorCode::kDeadlineExceeded,
            fmt::format("the service manager did not acknowledge within {} s", kTimeoutSeconds));
    return {};
}

} // namespace berth
