// SPDX-License-Identifier: Apache-2.0
#include "scheduler/admin/tokens.h"
#include "scheduler/cli/commands.h"

#include <fmt/format.h>

namespace berth::cli {

Status make_token(Format format, const std::string& name, const std::string& role) {
    BERTH_ASSIGN(policies::Role known, policies::role_from(role));
    BERTH_ASSIGN(NewToken made, berth::make_token(name, known));
    if (format != Format::kTable) {
        json::value shown = json::object{{"token", made.token}, {"line", made.line}};
        print(format == Format::kJson ? pretty_json(shown) : yaml_text(shown));
        return {};
    }
    print(fmt::format("token, for the caller alone (it is shown this once):\n{}\n\nline for "
                      "adminTcp.tokenFile of the node, then SIGHUP:\n{}\n",
                      made.token, made.line));
    return {};
}

} // namespace berth::cli
