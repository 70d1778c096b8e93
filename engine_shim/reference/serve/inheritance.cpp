// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/inheritance.h"

#include "base/log.h"

#include <fmt/format.h>

namespace berth::serve {

Result<std::vector<UniqueFd>> Inheritance::copies() const {
    std::vector<UniqueFd> all;
    for (const UniqueFd* one : {&listen, &journal, &parked_in, &parked_out}) {
        if (one != &listen && !keeps())
            break;
        BERTH_ASSIGN(UniqueFd copy, one->duplicate());
        all.push_back(std::move(copy));
    }
    return all;
}

Result<Inheritance> inheritance_of(std::vector<InheritedFd> descriptors) {
    Inheritance inherited;
    const std::pair<const char*, UniqueFd*> known[] = {{"berth-listen", &inherited.listen},
                                                       {"berth-journal", &inherited.journal},
                                                       {"berth-parked-in", &inherited.parked_in},
                                                       {"berth-parked-out", &inherited.parked_out}};
    std::string names;
    for (InheritedFd& one : descriptors) {
        names += fmt::format("{}'{}'", names.empty() ? "" : ", ", one.name);
        bool is_known = false;
        for (const auto& [name, place] : known) {
            if (one.name != name)
                continue;
            *place = std::move(one.fd);
            is_known = true;
        }
        if (!is_known)
            log::warn("an inherited descriptor is called '{}', which is no name known here: it is "
                      "closed",
                      one.name);
    }
    if (!inherited.listen)
        return fail(ErrorCode::kFailedPrecondition,
                    fmt::format("descriptors were inherited and none is called 'berth-listen': "
                                "LISTEN_FDNAMES has {}",
                                names.empty() ? "none" : names),
                    "NoSocket");
    return inherited;
}

} // namespace berth::serve
