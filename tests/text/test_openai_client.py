# SPDX-License-Identifier: Apache-2.0
"""The server works with the `openai` client, and keeps its contract towards the engine.

Method: the server over a fake engine that repeats each prompt token by token (each byte is a token
here), driven by the openai package and, where that is too polite, by raw HTTP.
"""

import http.client
import json
import socket
import subprocess
import time

import openai
import pytest


class Server:
    def __init__(self, program, model, *more):
        self.process = subprocess.Popen([program, model, "--listen", "127.0.0.1:0", *more],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1])
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=20)

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def settled(self):
        """The counts once nothing is in flight."""
        for _ in range(200):
            counts = self.tell("counts")
            if counts["inFlight"] == 0 and counts["begun"] == counts["ended"]:
                return counts
            time.sleep(0.02)
        raise AssertionError(f"requests are left: {counts}")

    def post(self, path, body, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        given = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, given, headers or {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture(scope="module")
def shared(fake_engine, byte_model):
    server = Server(fake_engine, byte_model, "--poison", "<|poison|>")
    yield server
    server.close()


@pytest.fixture
def server(shared):
    yield shared
    shared.tell("thaw")
    shared.settled()  # begin and end in pairs, nothing left in the engine, after every test


def complete(server, prompt, **more):
    return server.client.completions.create(model="fake", prompt=prompt, **more)


def test_models_are_listed(server):
    assert [model.id for model in server.client.models.list()] == ["fake"]
    assert server.client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("other")


def test_a_completion_has_text_reason_and_counts(server):
    answer = complete(server, "abc", max_tokens=7)
    assert answer.choices[0].text == "abcabca"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 7, 10)
    assert answer.object == "text_completion" and answer.model == "fake"


def test_max_tokens_of_a_completion_is_sixteen_when_not_given(server):
    assert complete(server, "abc").usage.completion_tokens == 16


def test_several_prompts_give_several_choices(server):
    answer = complete(server, ["ab", "xyz"], max_tokens=4)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "abab"), (1, "xyzx")]
    assert answer.usage.prompt_tokens == 5 and answer.usage.completion_tokens == 8


def test_a_prompt_may_be_token_ids(server):
    text = complete(server, [65, 66], max_tokens=4).choices[0].text
    assert text == complete(server, [[65, 66]], max_tokens=4).choices[0].text
    assert len(text) == 4 and text[:2] == text[2:]


def test_a_streamed_completion_is_the_same_text(server):
    whole = complete(server, "Grüße 😀 ", max_tokens=31).choices[0].text
    chunks = list(complete(server, "Grüße 😀 ", max_tokens=31, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_no_streamed_piece_ends_within_a_character(server):
    pieces = [chunk.choices[0].text for chunk in complete(server, "😀", max_tokens=8, stream=True)]
    assert "".join(pieces) == "😀😀"
    assert "\ufffd" not in "".join(pieces)


def test_a_cut_off_character_becomes_one_replacement(server):
    assert complete(server, "😀", max_tokens=6).choices[0].text == "😀\ufffd"


def test_chat_is_rendered_by_the_models_template(server):
    answer = server.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=400)
    # The fake engine repeats the prompt up to its first end token.
    assert answer.choices[0].message.content == "user\nhello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"


def test_chat_content_may_be_text_parts_and_lengths_have_two_names(server):
    answer = server.client.chat.completions.create(
        model="fake", max_completion_tokens=8,
        messages=[{"role": "developer", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}])
    assert answer.choices[0].message.content == "system\n"
    assert answer.usage.completion_tokens == 8


def test_a_streamed_chat_has_role_text_reason_and_usage(server):
    chunks = list(server.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hey"}], stream=True,
        stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "user\nhey"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 10
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_ends_with_done(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", "/v1/completions", json.dumps({"model": "fake", "prompt": "a", "stream": True}))
    response = connection.getresponse()
    assert response.getheader("Content-Type").startswith("text/event-stream")
    events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("stop, expected", [
    ("c", "ab"), (["zz", "ef"], "abcd"), ("defabc", "abc"), ("fa", "abcde"), (["def", "cd"], "ab"),
    ("never", "abcdefabcdefabcdef"), ("efabx", "abcdefabcdefabcdef"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_the_text_across_tokens(server, stop, expected, stream):
    before = server.settled()["cancelled"]
    answer = complete(server, "abcdef", max_tokens=18, stop=stop, stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert text == expected
    found = len(expected) < 18
    assert reason == ("stop" if found else "length")
    assert server.settled()["cancelled"] - before == (1 if found else 0)


def test_one_stopped_choice_leaves_the_other(server):
    answer = complete(server, ["abcd", "efgh"], max_tokens=12, stop="d")
    assert [choice.text for choice in answer.choices] == ["abc", "efghefghefgh"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]


@pytest.mark.parametrize("change, status, param, code", [
    ({"model": "gpt-4"}, 404, "model", "model_not_found"), ({"model": None}, 400, "model", None),
    ({"prompt": None}, 400, "prompt", None), ({"prompt": ""}, 400, "prompt", None),
    ({"prompt": []}, 400, "prompt", None), ({"prompt": 5}, 400, "prompt", None),
    ({"prompt": [1, 100000]}, 400, "prompt", None), ({"prompt": [[1], "a", [2.5]]}, 400, "prompt", None),
    ({"temperature": 3}, 400, "temperature", None), ({"temperature": "hot"}, 400, "temperature", None),
    ({"top_p": -0.1}, 400, "top_p", None), ({"max_tokens": 0}, 400, "max_tokens", None),
    ({"max_tokens": 5000}, 400, "prompt", "context_length_exceeded"),
    ({"n": 2}, 400, "n", "unsupported_value"), ({"best_of": 3}, 400, "best_of", "unsupported_value"),
    ({"logprobs": 0}, 400, "logprobs", "unsupported_parameter"),
    ({"echo": True}, 400, "echo", "unsupported_parameter"), ({"suffix": "x"}, 400, "suffix", "unsupported_parameter"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias", "unsupported_parameter"),
    ({"stop": ""}, 400, "stop", None), ({"stop": [1]}, 400, "stop", None), ({"stream": "yes"}, 400, "stream", None),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", None),
])
def test_a_wrong_parameter_is_refused_by_name(server, change, status, param, code):
    got, body = server.post("/v1/completions", {"model": "fake", "prompt": "abc", **change})
    assert got == status
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["param"] == param and body["error"]["code"] == code
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("messages", [None, [], "x", [5], [{"content": "a"}], [{"role": "tool", "content": "a"}],
                                      [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url"}]}]])
def test_wrong_messages_are_refused(server, messages):
    status, body = server.post("/v1/chat/completions", {"model": "fake", "messages": messages})
    assert status == 400 and body["error"]["param"].startswith("messages")


def test_tools_are_refused_and_unknown_parameters_ignored(server):
    chat = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    status, body = server.post("/v1/chat/completions", {**chat, "tools": [{"type": "function"}]})
    assert status == 400 and body["error"]["param"] == "tools"
    status, body = server.post("/v1/chat/completions", {**chat, "user": "me", "store": False, "unheard_of": [1],
                                                        "n": 1, "logprobs": False, "tools": [],
                                                        "presence_penalty": 0, "response_format": {"type": "text"}})
    assert status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "fake", "prompt": "a"', b"\xff\xfe", b"[" * 5000])
def test_a_broken_body_is_a_refusal(server, body):
    status, answer = server.post("/v1/completions", body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"


def test_an_engine_failure_is_an_error_with_its_cause(server):
    with pytest.raises(openai.InternalServerError) as raised:
        complete(server, "<|poison|>")
    assert raised.value.body["message"] == "the step failed"
    with pytest.raises(openai.APIError, match="the step failed"):
        list(complete(server, "<|poison|>", stream=True))


def test_a_full_queue_is_429(server):
    server.tell("freeze")
    body = json.dumps({"model": "fake", "prompt": ["a"] * 40})
    first = socket.create_connection(("127.0.0.1", server.port))
    first.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while server.tell("counts")["inFlight"] < 40:
        time.sleep(0.01)
    with pytest.raises(openai.RateLimitError):
        complete(server, ["b"] * 40)
    # What the refused request had got into the queue is taken out again.
    server.tell("thaw")
    first.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(server, stream):
    before = server.settled()["cancelled"]
    body = json.dumps({"model": "fake", "prompt": "abc", "max_tokens": 500, "stream": stream})
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while server.tell("counts")["inFlight"] == 0:
        time.sleep(0.001)
    connection.close()
    assert server.settled()["cancelled"] == before + 1


def test_health_notices_an_engine_that_stands_still(server):
    status, body = server.get("/health")
    assert status == 200 and json.loads(body) == {"status": "ok"}
    server.tell("hold")
    status, body = server.get("/health")
    assert status == 200 and json.loads(body)["status"] == "held"
    server.tell("freeze")
    time.sleep(5.1)  # what was seen moving is fresh that long
    status, body = server.get("/health")
    assert status == 503 and json.loads(body)["status"] == "failing"
    server.tell("thaw")
    assert server.get("/health")[0] == 200


def test_metrics_count_requests_tokens_and_times(server):
    def values():
        lines = server.get("/metrics")[1].splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    before = values()
    complete(server, "abc", max_tokens=5)
    after = values()
    def grown(name):
        return after[name] - before.get(name, 0)
    assert grown('berth_engine_http_requests_total{route="/v1/completions",status="200"}') == 1
    assert grown("berth_engine_prompt_tokens_total") == 3
    assert grown("berth_engine_completion_tokens_total") == 5
    assert grown("berth_engine_time_to_first_token_seconds_count") == 1
    assert grown("berth_engine_time_per_output_token_seconds_count") == 1
    assert grown('berth_engine_time_to_first_token_seconds_bucket{le="+Inf"}') == 1
    assert 0 <= after["berth_engine_kv_usage_ratio"] <= 1


def test_many_clients_at_once_get_their_own_answers(server):
    from concurrent.futures import ThreadPoolExecutor
    def ask(number):
        prompt = f"<{number}>"
        return complete(server, prompt, max_tokens=20).choices[0].text == (prompt * 20)[:20]
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(100)))
