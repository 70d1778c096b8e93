#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the tree as text and names what breaks its habits, so that reviews need not.

Sizes (a room too crowded is redrawn), leftovers, banned calls, headers that do not say
`#pragma once`, files without a licence line, formatting. Exit status 1 with one line a fault.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER_LINES, SOURCE_LINES, TEST_LINES, FUNCTION_LINES = 250, 400, 800, 80
TEST_FUNCTION_LINES = 120
FOLDERS = {"base", "cache", "configs", "docs", "engine_shim", "policies", "scheduler", "tests"}
TOP_FILES = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE"}
CODE = {".h", ".cpp", ".c", ".cu"}
SCRIPTS = {".py", ".sh"}

BANNED = [
    (r"(?<![\w:.>])(?:std::)?exit\(", "exit() skips destructors: return from main", r"/main/|tests/"),
    (r"(?<![\w:.>])(?:::)?dup\(", "dup() leaks into children: F_DUPFD_CLOEXEC", None),
    (r"\bsleep_for\b", "sleeping is no synchronisation: wait for the event", r"tests/"),
    (r"(?<![\w:.>])(?:std::)?ato[ifl]l?\(", "ato*() hides errors: from_chars", None),
    (r"(?<![\w:.>&] )(?<![\w:.>])(?:std::)?system\(", "system() runs a shell: Process::spawn", None),
    (r"\bdetached\b", "detached coroutines lose their errors: spawn()", r"base/http/|docs/"),
    (r"\bNOLINTNEXTLINE\b(?!\()", "name the check that is silenced", None),
]
LEFTOVERS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def tracked():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def function_faults(name, lines):
    """A function starts at a line without indent that ends in '{' and ends at a lone '}'."""
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.match(r"^[A-Za-z_].*\)[^;]*\{$", line) and "namespace" not in line:
            start = number
        elif start is not None and line.startswith("}"):
            cap = TEST_FUNCTION_LINES if name.startswith("tests/") else FUNCTION_LINES
            if number - start + 1 > cap:
                yield f"{name}:{start}: function of {number - start + 1} lines (cap {cap})"
            start = None


def faults_of(path):
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix in CODE | SCRIPTS or path.name.endswith("CMakeLists.txt"):
        if "\t" in text:
            yield f"{name}: tabs"
        if not text.endswith("\n"):
            yield f"{name}: no newline at its end"
        for number, line in enumerate(lines, 1):
            if LEFTOVERS.search(line) and path.name != "tidy.py":
                yield f"{name}:{number}: a leftover: {line.strip()[:60]}"
            if line != line.rstrip():
                yield f"{name}:{number}: white space at the line's end"
    if path.suffix not in CODE:
        return
    cap = (TEST_LINES if name.startswith("tests/") else
           HEADER_LINES if path.suffix == ".h" else SOURCE_LINES)
    if len(lines) > cap:
        yield f"{name}: {len(lines)} lines (cap {cap}): split it by idea"
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        yield f"{name}: the first line names no licence"
    if path.suffix == ".h":
        if "#pragma once" not in text:
            yield f"{name}: no #pragma once"
        if re.search(r"^using namespace", text, re.M):
            yield f"{name}: using namespace in a header"
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        for pattern, why, allowed in BANNED:
            if re.search(pattern, code) and not (allowed and re.search(allowed, name)):
                yield f"{name}:{number}: {why}"
    yield from function_faults(name, lines)


def format_faults(paths):
    program = shutil.which("clang-format-19")
    if program is None:
        yield "clang-format-19 is not installed"
        return
    done = subprocess.run([program, "--dry-run", "-Werror", "--ferror-limit=1", *map(str, paths)],
                          capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if "error:" in line:
            yield line.replace(f"{ROOT}/", "").split(": error")[0] + ": clang-format-19 disagrees"


def main():
    files = tracked()
    faults = []
    for path in files:
        top = path.relative_to(ROOT).parts[0]
        if top not in FOLDERS and top not in TOP_FILES and not top.startswith("."):
            faults.append(f"{top}: not one of the agreed top-level folders")
        if path.suffix in CODE | SCRIPTS | {".txt", ".cmake"}:
            faults.extend(faults_of(path))
    faults.extend(format_faults([p for p in files if p.suffix in CODE]))
    for fault in faults:
        print(fault)
    print(f"tidy: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
