// SPDX-License-Identifier: Apache-2.0
#include "base/folder.h"

#include <cerrno>
#include <dirent.h>
#include <memory>
#include <string_view>

namespace berth {

Result<std::vector<std::string>> entries_of(const std::string& folder) {
    struct Close {
        void operator()(DIR* open) const { ::closedir(open); }
    };
    const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str()));
    if (!open)
        return fail_errno(folder);
    std::vector<std::string> paths;
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(open.get());
        if (entry == nullptr && errno != 0)
            return fail_errno("reading the folder " + folder);
        if (entry == nullptr)
            return paths;
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..")
            paths.push_back(folder + "/" + std::string(name));
    }
}

} // namespace berth
