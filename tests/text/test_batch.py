# SPDX-License-Identifier: Apache-2.0
"""A batch answers each custom_id exactly once, whatever is killed when.

Method: the batch runner over a fake engine that repeats each prompt, as a process of its own, that is
killed with SIGKILL at random moments and started again until it ends by itself; the output is then
compared with what the fake engine must say.
"""

import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import time

import pytest


def line(custom_id, prompt, **more):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
            "body": {"model": "fake", "prompt": prompt, "max_tokens": 12, **more}}


def write(path, lines):
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in lines))


def command(fake_engine, model, given, answers, *more):
    return [fake_engine, model, "--batch-input", given, "--batch-output", answers, *more]


def run(*args):
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120)


def echoed(prompt, count=12):
    return (prompt.encode() * count)[:count].decode()


def read(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


def check_whole(given, answers):
    answered = read(answers)
    asked = {item["custom_id"]: item for item in read(given)}
    assert sorted(answer["custom_id"] for answer in answered) == sorted(asked)
    assert len({answer["id"] for answer in answered}) == len(answered)
    for answer in answered:
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        body = answer["response"]["body"]
        assert body["choices"][0]["text"] == echoed(asked[answer["custom_id"]]["body"]["prompt"])
        assert body["usage"]["completion_tokens"] == 12


def test_every_line_is_answered_in_the_batch_format(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line(f"r{i}", f"prompt {i} ") for i in range(200)])
    done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 0, done.stderr
    check_whole(given, answers)
    assert "200 of 200, 200 here, 0 failed" in done.stdout


def test_chat_and_wrong_bodies_get_their_own_answers(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6,
                     "ignore_eos": True}}
    write(given, [chat, line("wrong", "a", temperature=-1), line("ok", "abc"), "",
                  {**line("other", "a"), "body": {"model": "gpt", "prompt": "a"}}, line("bad", "<|poison|>")])
    done = run(fake_engine, byte_model, given, answers, "--poison", "<|poison|>")
    assert done.returncode == 0, done.stderr
    by_id = {answer["custom_id"]: answer["response"] for answer in read(answers)}
    assert set(by_id) == {"chat", "wrong", "ok", "other", "bad"}
    assert by_id["chat"]["body"]["choices"][0]["message"]["content"] == "user\n"
    assert by_id["wrong"]["status_code"] == 400
    assert by_id["wrong"]["body"]["error"]["param"] == "temperature"
    assert by_id["other"]["status_code"] == 404
    assert by_id["bad"]["status_code"] == 500
    assert by_id["ok"]["body"]["choices"][0]["text"] == echoed("abc")


def test_sigkill_at_any_moment_loses_and_repeats_nothing(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line(f"r{i}", f"prompt number {i} ") for i in range(1500)])
    rng = random.Random(5)
    kills = 0
    deadline = time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline, "no end in sight"
        process = subprocess.Popen(command(fake_engine, byte_model, given, answers, "--step-us", "2000"),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(rng.uniform(0.03, 0.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            # As a write that the machine's end tore.
            if answers.exists() and rng.random() < 0.3:
                with answers.open("ab") as torn:
                    torn.write(b'{"id":"batch_req_1","custom_id":"r')
            continue
        assert process.returncode == 0, process.stderr.read().decode()
        break
    assert kills >= 5, "killed too few times to show anything"
    check_whole(given, answers)


def test_a_finished_batch_is_not_run_again(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line(f"r{i}", "abc") for i in range(20)])
    assert run(fake_engine, byte_model, given, answers).returncode == 0
    before = answers.read_bytes()
    done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 0
    assert "20 of 20, 0 here" in done.stdout
    assert answers.read_bytes() == before


def test_a_second_writer_is_refused(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line("a", "abc")])
    with answers.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 1
    assert "being written by another process" in done.stderr
    assert answers.read_text() == ""


def test_a_file_with_wrong_lines_is_refused_whole_with_their_numbers(fake_engine, byte_model, tmp_path):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line("a", "x"), "{nonsense", line("b", "x"), line("a", "y"), {"custom_id": "c"},
                  {**line("d", "x"), "url": "/v1/embeddings"}, {**line("e", "x"), "method": "GET"}])
    done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 1
    assert not answers.exists()
    for words in ["5 of its lines are wrong", "line 2", "line 4: custom_id 'a' is already that of line 1",
                  "line 5", "line 6", "/v1/embeddings", "line 7"]:
        assert words in done.stderr


def test_only_the_first_ten_wrong_lines_are_listed(fake_engine, byte_model, tmp_path):
    given = tmp_path / "in.jsonl"
    write(given, ["{"] * 25)
    done = run(fake_engine, byte_model, given, tmp_path / "out.jsonl")
    assert "line 10:" in done.stderr and "line 11:" not in done.stderr
    assert "and 15 more" in done.stderr


@pytest.mark.parametrize("text, words", [
    ('{"custom_id":"a"}\n{"custom_id":"a"}\n', "answered twice"),
    ("hello\n", "no batch output"),
    ('{"custom_id":"zzz"}\n', "another batch's output"),
], ids=["twice", "other", "foreign"])
def test_an_output_that_is_not_this_batchs_is_refused_untouched(fake_engine, byte_model, tmp_path, text, words):
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line("a", "abc")])
    answers.write_text(text)
    done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 1
    assert words in done.stderr
    assert answers.read_text() == text


def test_a_full_queue_delays_and_loses_nothing(fake_engine, byte_model, tmp_path):
    # Each line is 16 prompts; the fake engine's queue holds 64.
    given, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(given, [line(f"r{i}", [f"p{i}-{j} " for j in range(16)]) for i in range(30)])
    done = run(fake_engine, byte_model, given, answers)
    assert done.returncode == 0, done.stderr
    for answer in read(answers):
        number = answer["custom_id"][1:]
        texts = [choice["text"] for choice in answer["response"]["body"]["choices"]]
        assert texts == [echoed(f"p{number}-{j} ") for j in range(16)]
    assert len(read(answers)) == 30


def test_a_terminal_gets_a_bar_and_a_pipe_plain_lines(fake_engine, byte_model, tmp_path):
    given = tmp_path / "in.jsonl"
    write(given, [line(f"r{i}", "abc") for i in range(200)])
    plain = run(fake_engine, byte_model, given, tmp_path / "plain.jsonl")
    assert "batch 200/200 100%" in plain.stderr
    assert "\x1b" not in plain.stderr
    leader, follower = pty.openpty()
    process = subprocess.Popen(command(fake_engine, byte_model, given, tmp_path / "bar.jsonl"),
                               stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 4096):
            shown += chunk
    except OSError:
        pass  # the other side of a terminal is gone
    os.close(leader)
    assert process.wait() == 0
    assert b"[" + b"#" * 30 + b"] 200/200 100%" in shown
    assert b"left" in shown
