// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/image_folder.h"

#include "cache/load/image.h"
#include "cache/load/new_file.h"
#include "scheduler/node/tiers.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>

namespace berth {

namespace fs = std::filesystem;

// Empty, or why it is not ours. A folder that is not there has nothing to tidy.
std::string ImageFolder::claim(const std::string& folder) {
    if (claimed_ == folder)
        return "";
    claimed_.clear();
    lock_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock_)
        return errno == ENOENT ? "" : std::strerror(errno);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        const int error_number = errno;
        lock_.reset();
        return error_number == EWOULDBLOCK
                   ? "another berthd uses it too"
                   : fmt::format("it cannot be locked ({})", std::strerror(error_number));
    }
    claimed_ = folder;
    return "";
}

Tidied ImageFolder::tidy(const std::string& folder, const std::set<std::string>& kept) {
    std::lock_guard lock(mutex_);
    Tidied done;
    done.refused = claim(folder);
    if (!done.refused.empty() || claimed_ != folder)
        return done;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string path = at->path().string();
        const std::string name = at->path().filename().string();
        const auto of_partial = name_of_partial(name);
        const std::string image(of_partial.value_or(name));
        if (!node::set_of_image(image) || kept.contains(folder + "/" + image))
            continue;
        std::error_code ignored;
        if (at->symlink_status(ignored).type() != fs::file_type::regular)
            done.left.push_back(path + ": it is no plain file");
        else if (!of_partial && !begins_as_image(path))
            done.left.push_back(path + ": it does not begin as an image does");
        else if (::unlink(path.c_str()) != 0 && errno != ENOENT)
            done.left.push_back(path + ": " + std::strerror(errno));
        else
            done.removed.push_back(path);
    }
    if (error)
        done.refused = error.message();
    return done;
}

} // namespace berth
