// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace berth::text {

// What a Jinja chat template writes, in order, without running it: one entry for each run of output
// statements that no tag interrupts. Terms are reduced to literals and names in braces: "{role}",
// "{content}", "{content|trim}", "{first}" (the first message's content), "{bos}", and any other
// expression as it stands. Branches that are taken only when there are tools are left out.
struct TemplateOutline {
    struct Output {
        std::string text;
        std::string conditions; // of the branches around it, joined
        bool in_loop = false;
    };
    std::vector<Output> outputs;
    std::map<std::string, std::string> variables; // {% set name = expression %}, the last one's
    std::string tags;                             // all tags' texts, for "is it mentioned"
};

// Refuses what does not parse (an unclosed tag) and macros, includes and loops over anything but
// messages.
Result<TemplateOutline> outline_template(std::string_view jinja);

} // namespace berth::text
