#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies sources of scheduler/node with eleven bugs in them, each behind planted(N), for the test of the
simulator itself. The daemon's own build never sees them.

    plant.py NODE_FOLDER OUTPUT_FOLDER

Writes each touched file and planted_bugs.inc, a row a bug. A bug that no longer finds its place in the
source is a row that says so: its test fails until the line below is brought up to date.
"""

import pathlib
import sys

# On what nodes a bug would take long to show otherwise: on those where victims are taken all the time.
CONTESTED = {"the disruption budget is not counted"}

# name: what an operator would see; then file, text in it (once), what replaces it.
BUGS = [
    ("the ledger forgets what a process takes beside its grant",
     [("ledger.cpp", "if (overhead > 0) {", "if (overhead > 0 && !planted(%d)) {"),
      ("board.cpp", "bytes = (i->grant_bytes + i->overhead_bytes) *",
       "bytes = (i->grant_bytes + (planted(%d) ? 0 : i->overhead_bytes)) *")]),
    ("a grant counts as free before the driver has confirmed it",
     [("rungs.cpp", "    act(ConfirmBytes{i.name, i.devices.front(), i.process});\n}\n\nvoid Step::on(const BytesConfirmed",
       "    if (planted(%d))\n        return on(BytesConfirmed{i.name, claimed});\n"
       "    act(ConfirmBytes{i.name, i.devices.front(), i.process});\n}\n\nvoid Step::on(const BytesConfirmed")]),
    ("a lease does not keep its weight set from being dropped",
     [("ledger.cpp", "    std::vector<std::string> holders;\n",
       "    std::vector<std::string> holders;\n    if (planted(%d))\n        return holders;\n")]),
    ("a deadline is noted and its timer never set",
     [("step.cpp", "    act(ArmTimer{id, at});", "    if (!planted(%d))\n        act(ArmTimer{id, at});")]),
    ("an operation is not ended after a restart",
     [("recovery.cpp", "            finish_recovered(operation);",
       "            planted(%d) ? void() : finish_recovered(operation);")]),
    ("the disruption budget is not counted",
     [("room.cpp", "        i.disruptions.push_back(now_);",
       "        planted(%d) ? void() : i.disruptions.push_back(now_);")]),
    ("victims are taken from within minPriorityDelta",
     [("room.cpp", "if (who.priority - priority < s_.policy.preemption.min_priority_delta)",
       "if (who.priority - priority < (planted(%d) ? 1 : s_.policy.preemption.min_priority_delta))")]),
    ("a resume is told more than was reserved for it",
     [("resume.cpp", "    send(i, CommandKind::kRestore, i.grant_bytes);\n    return true;",
       "    const uint64_t told = i.grant_bytes;\n    i.grant_bytes = planted(%d) ? 0 : told;\n"
       "    send(i, CommandKind::kRestore, told);\n    return true;")]),
    ("a cordon is ignored when instances are placed",
     [("fits.cpp", "        if (row.device->cordoned)\n            no =",
       "        if (row.device->cordoned && !planted(%d))\n            no =")]),
    ("a process is known by its pid alone",
     [("death.cpp", "!(event.process == i->process)",
       "(planted(%d) ? event.process.pid != i->process.pid : !(event.process == i->process))")]),
    ("an engine that says nothing any more is not noticed",
     [("watching.cpp", "    const bool over = quiet", "    const bool over = !planted(%d) && quiet")]),
]


def main():
    source, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts, rows = {}, []
    for number, (name, places) in enumerate(BUGS, 1):
        missing = ""
        for file, find, replace in places:
            text = texts.setdefault(file, (source / file).read_text(encoding="utf-8"))
            if text.count(find) != 1:
                missing = f"{file} has {text.count(find)} places that read '{find.strip().splitlines()[0]}'"
                continue
            texts[file] = text.replace(find, replace.replace("%d", str(number)))
        contested = "true" if name in CONTESTED else "false"
        rows.append(f'{{{number}, "{name}", "{missing}", {contested}}},\n')
    output.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (output / file).write_text('#include "tests/simulator/planted.h"\n' + text, encoding="utf-8")
    (output / "planted_bugs.inc").write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
