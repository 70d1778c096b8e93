# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh hands each part its words as they were written, blanks and all, and says what it
takes. Method: programs that write down what they were called with."""

import os
import pathlib
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ.get("BERTH_SOURCE_DIR", ".")).resolve()
NOTE = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"${0%/*}/../words"\n'


@pytest.fixture(name="run")
def run_fixture(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/.complete").touch()
    (tmp_path / "bin/berth").write_text(NOTE)
    (tmp_path / "bin/berth").chmod(0o755)

    def run(*words):
        done = subprocess.run(
            [str(word) for word in [SOURCE / "tests/gpu/run.sh", "--bin", tmp_path / "bin", "--out",
                                    tmp_path / "out", "--model", tmp_path / "model", *words]],
            capture_output=True, text=True, timeout=60, check=False)
        noted = tmp_path / "words"
        return done, noted.read_text().splitlines() if noted.exists() else []
    return run


def test_words_with_blanks_are_one_word(run, tmp_path):
    trace = tmp_path / "a trace.csv"
    trace.touch()
    done, words = run("--trace", trace, "--colocate",
                      """--busy 70 --engine-args '--max-batch 32 --threads 1' --seed "3" """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert words[:3] == ["bench", "colocate", "--json"]
    assert words[words.index("--trace") + 1] == str(trace)
    assert words[-6:] == ["--busy", "70", "--engine-args", "--max-batch 32 --threads 1", "--seed",
                          "3"]


@pytest.mark.parametrize("part", ["cycles", "grant"])
def test_each_part_has_words_of_its_own(run, part):
    done, words = run("--only", part, f"--{part}", "--more 'of this'", "--colocate", "--not-this")
    assert done.returncode == 0, done.stdout + done.stderr
    assert words[1] == part and words[-2:] == ["--more", "of this"]


def test_room_is_left_after_the_last_cycle(run):
    _, words = run("--only", "cycles", "--seconds", 300)
    assert 200 <= int(words[words.index("--time-limit") + 1]) <= 240


@pytest.mark.parametrize("wrong, told", [
    (["--only", "colocate,nothing"], "'nothing' is none of colocate"),
    (["--trace", "/no/such/file"], "/no/such/file"),
    (["--colocate", "--engine-args 'no end"], "a quote without its end")])
def test_what_is_wrong_is_said_before_anything_runs(run, wrong, told):
    done, words = run(*wrong)
    assert done.returncode == 2 and told in done.stderr and not words


def test_its_usage_is_its_comment(run):
    done, _ = run("--help")
    assert done.returncode == 2
    assert "--trace" in done.stdout and "--grant" in done.stdout
    assert "pipefail" not in done.stdout and "here=" not in done.stdout
