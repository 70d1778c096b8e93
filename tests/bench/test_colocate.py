# SPDX-License-Identifier: Apache-2.0
"""`berth bench colocate` small, on host memory: every request is answered, and as it is alone; batch
goes on; what was measured lies in files; nothing is left. No figure is judged.

Method: the real programs and a tiny model whose answers do not depend on what else is answered."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree

import pytest
from small_model import make_small_model

BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", "build/release/bin")).resolve()
SOURCE = pathlib.Path(os.environ.get("BERTH_SOURCE_DIR", ".")).resolve()
TRACE = SOURCE / "tests/traces/azure-llm-2023-conv-500.csv"
REQUESTS = 12
ONLINE = ["online-alone", "gate", "time-slicing", "gate-share", "slo", "online-alone-again"]
BESIDE = ["gate", "time-slicing", "gate-share", "slo"]


@pytest.fixture(name="folder")
def short_folder():
    """Sockets lie below it: their paths must be short."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
    make_small_model(path / "model")
    (path / "tmp").mkdir()
    yield path
    for pid in left(path):  # of a test that failed
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


def command(folder, *words):
    return [BIN / "berth", "bench", "colocate", "--json", "--device", "host", "--memory", "64Mi",
            "--model", folder / "model", "--out", folder / "out", "--engine-args",
            "--threads 1 --batch-invariant", "--requests", REQUESTS, "--busy", 30, *words]


def start(folder, *words):
    return subprocess.Popen(
        [str(word) for word in command(folder, *words)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder / "tmp")})


def left(folder):
    """Processes that were started below the folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("how", [["--trace", TRACE, "--phase-seconds", 2],
                                 ["--arrivals", "gamma:0.5", "--fresh-connections",
                                  "--token-scale", "0.8"]], ids=["trace", "gamma"])
def test_all_are_answered_as_alone_in_every_phase_and_batch_goes_on(folder, how):
    run = start(folder, "--batch-seconds", 1, "--resamples", 100, *how)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, out + err
    lines = lines_of(out)
    assert lines[0]["setUp"]["requests"] == REQUESTS
    phases = {line["phase"]: line for line in lines if "phase" in line}
    assert [name for name in phases if name in ONLINE] == [
        name for name in ("online-alone", "gate", "time-slicing", "gate-share", "slo",
                          "online-alone-again")]
    for name in ["mps", "mps-online-alone"]:
        assert "MPS" in phases[name]["skipped"]
    for name in ONLINE:
        online = phases[name]["online"]
        assert online["answered"] == online["requests"] == REQUESTS, name
        assert online["mismatches"] == 0, name
        assert phases[name]["ttftMs"]["samples"] == REQUESTS
        assert phases[name]["node"] == 1 and phases[name]["preempted"]["count"] == 0
        assert phases[name]["aloneOnSameNode"]
    for name in ["batch-alone", *BESIDE]:
        assert phases[name]["batch"]["tokensPerSecond"] > 0, name
    again = [line for line in lines if "besideAloneAgain" in line]
    assert [line["besideAloneAgain"] for line in again] == ["online-alone", *BESIDE]
    assert all(line["alone"] == "online-alone-again" and line["node"] == 1 for line in again)
    assert phases["gate"]["batch"]["gatePauses"] > 0
    for name in BESIDE:
        beside = phases[name]["ttftMs"]["besideAlone"]["p99"]
        assert 0 < beside["low"] <= beside["ratio"] <= beside["high"]
        slo = phases[name]["slo"]
        assert 0 <= slo["attainedInterval"]["low"] <= slo["attained"]
        assert slo["attained"] <= slo["attainedInterval"]["high"] <= 1
        assert phases[name]["batch"]["ofIdleTimesWorth"] > 0
    checked = [line["batchAnswers"] for line in lines if "batchAnswers" in line]
    assert len(checked) == 1 and checked[0]["lines"] > 0
    assert checked[0]["twice"] == checked[0]["failed"] == checked[0]["different"] == 0
    assert_files(folder / "out", lines)
    assert not left(folder) and not list((folder / "tmp").iterdir())


def assert_files(out, lines):
    assert lines_of((out / "report.jsonl").read_text()) == lines
    samples = lines_of((out / "samples.jsonl").read_text())
    assert len(samples) == REQUESTS * len(ONLINE)
    answers = {}
    for sample in samples:
        answers.setdefault(sample["request"], set()).add(sample["sha256"])
        assert sample["eventsAfterDue"] == sorted(sample["eventsAfterDue"])
    assert all(len(hashes) == 1 for hashes in answers.values())
    assert len(answers) == REQUESTS
    for page in ["latencies.svg", *(f"timeline-{name}.svg" for name in ONLINE)]:
        root = xml.etree.ElementTree.parse(out / page).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.findall(".//{http://www.w3.org/2000/svg}path")
    assert (out / "batch.csv").read_text().count("\n") > 10
    assert (out / "logs/berthd.log").exists()


def test_batch_answers_the_file_that_is_named_and_what_an_earlier_run_left_is_kept(folder):
    asked = folder / "mine.jsonl"
    with open(asked, "w", encoding="utf-8") as file:
        for number in range(3000):
            file.write(json.dumps({
                "custom_id": f"mine-{number}", "method": "POST", "url": "/v1/completions",
                "body": {"model": "model", "prompt": f"Line {number}", "max_tokens": 4,
                         "temperature": 0}}) + "\n")
    (folder / "out").mkdir()
    (folder / "out/report.jsonl").write_text("earlier\n")
    (folder / "out/of-somebody-else").write_text("theirs\n")
    (folder / "out/samples.jsonl").write_text("samples\n")
    run = start(folder, "--batch", asked, "--phase-seconds", 1, "--batch-seconds", 1,
                "--resamples", 100, "--phases", "online-alone,batch-alone,gate")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    lines = lines_of(out)
    assert lines[0]["setUp"]["batch"] == str(asked)
    phases = {line["phase"]: line for line in lines if "phase" in line}
    assert phases["batch-alone"]["batch"]["tokensPerSecond"] > 0
    answers = [line["batchAnswers"] for line in lines if "batchAnswers" in line][0]
    assert answers["lines"] > 0 and answers["twice"] == answers["failed"] == 0
    assert (folder / "out/earlier-1/report.jsonl").read_text() == "earlier\n"
    assert (folder / "out/earlier-1/samples.jsonl").read_text() == "samples\n"
    assert (folder / "out/of-somebody-else").read_text() == "theirs\n"
    assert len(lines_of((folder / "out/samples.jsonl").read_text())) == 2 * REQUESTS


def test_a_wrong_trace_is_refused_with_its_line_before_anything_is_started(folder):
    wrong = folder / "wrong.csv"
    wrong.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,x\n")
    run = start(folder, "--trace", wrong, "--phase-seconds", 1)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert f"{wrong}:2:" in err and "'x'" in err
    assert not list((folder / "tmp").iterdir())


def test_a_run_that_is_told_to_end_writes_what_it_had_and_leaves_nothing(folder):
    run = start(folder, "--phase-seconds", 3, "--phases", "online-alone,gate,time-slicing")
    report = folder / "out/report.jsonl"
    end = time.monotonic() + 60
    while not (report.exists() and "online-alone" in report.read_text()):
        assert run.poll() is None and time.monotonic() < end, run.communicate()
        time.sleep(0.05)
    time.sleep(2.0)  # within the next phase
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 1
    phases = {line["phase"]: line for line in lines_of(report.read_text()) if "phase" in line}
    assert phases["online-alone"]["online"]["answered"] == REQUESTS
    assert "signal" in phases["gate"].get("error", "") + phases["gate"].get("skipped", "")
    assert "signal" in phases["time-slicing"]["skipped"]
    assert not left(folder) and not list((folder / "tmp").iterdir())


def test_a_phase_that_would_exceed_the_time_limit_is_left_out_and_said_so(folder):
    run = start(folder, "--phase-seconds", 1, "--phases", "online-alone", "--time-limit", 1)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    phases = {line["phase"]: line for line in lines_of(out) if "phase" in line}
    assert "of its 1 s" in phases["online-alone"]["skipped"]
