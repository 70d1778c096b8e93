# SPDX-License-Identifier: Apache-2.0
"""What people and programs see of a real node: the command line, REST, metrics, OpenAI's client."""

import json
import os
import shutil
import subprocess

import pytest
from node_under_test import BIN, MODEL, Node, Refused, call


@pytest.fixture(scope="module")
def node():
    with Node(batch_lines=4000) as running:
        running.engine()
        running.wait_state("nightly", "Running")
        yield running


def berth(node, *words, expect=0):
    done = subprocess.run([BIN / "berth", *words], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "BERTH_ADMIN": str(node.root / "run/admin.sock")})
    assert done.returncode == expect, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def test_every_list_and_description_comes_as_table_and_as_json(node):
    assert "chat" in berth(node, "status")
    for kind, name in (("instances", "chat"), ("devices", "host-0"),
                       ("weights", node.weights()[0]["id"])):
        assert name in berth(node, "get", kind)
        assert name in berth(node, "get", kind, "-o", "yaml")
        shown = json.loads(berth(node, "get", kind, "-o", "json"))
        assert name in json.dumps(shown)
        assert name in berth(node, "describe", kind.rstrip("s"), name)
    assert "warmup" in berth(node, "describe", "instance", "chat")
    assert "Running" in berth(node, "events")
    checks = json.loads(berth(node, "doctor", "-o", "json"))
    assert {c["name"] for c in checks["checks"]} >= {"keeper", "memfd-seals", "ledger"}
    assert all(c["ok"] or c["remedy"] for c in checks["checks"])


def test_preempt_and_resume_by_the_command_line(node):
    assert "Paused" in berth(node, "preempt", "nightly", "--mode", "Pause", "--wait")
    assert "Running" in berth(node, "resume", "nightly", "--wait")
    assert "NotPreemptible" in berth(node, "preempt", "chat", "--wait", expect=1)
    assert "nowhere" in berth(node, "preempt", "nowhere", "--wait", expect=1)
    berth(node, "--admin", "/nonexistent.sock", "status", expect=3)


def test_an_operation_is_idempotent_by_its_request_id(node):
    body = {"mode": "Pause", "requestId": "once"}
    first = node.post("/v1/instances/nightly:preempt", body)
    again = node.post("/v1/instances/nightly:preempt", body)
    assert first["id"] == again["id"]
    node.finish(first)
    node.resume("nightly")


def test_a_dry_run_changes_nothing(node):
    node.finish(node.post("/v1/instances/nightly:preempt", {"mode": "Evict", "dryRun": True}))
    assert node.instance("nightly")["state"] == "Running"


def test_metrics_are_prometheus_text(node):
    text = call(node.connection(), "GET", "/metrics")
    for name in ("berth_device_bytes", "berth_instances", "berth_weight_sets",
                 "process_resident_memory_bytes", "berth_build_info"):
        assert f"\n{name}" in "\n" + text, name
    assert node.get("/v1/node")["rssBytes"] <= 40 << 20


def test_a_model_that_is_resident_is_not_loaded_again(node):
    before = node.weights()
    done = node.finish(node.post("/v1/weights:load", {"model": "smollm2"}))
    assert done["state"] == "Succeeded"
    assert [w["id"] for w in node.weights()] == [w["id"] for w in before]
    assert node.weights()[0]["bytesRead"] == before[0]["bytesRead"]


def test_two_requests_for_one_load_share_it(node):
    # Other times of change: other files, as far as a fingerprint knows.
    copy = node.root / "twice"
    shutil.copytree(MODEL, copy, copy_function=shutil.copy)
    first = node.post("/v1/weights:load", {"path": str(copy)})
    second = node.post("/v1/weights:load", {"path": str(copy)})
    for operation in (first, second):
        node.finish(operation)
    sets = [w for w in node.weights() if w["path"] == str(copy)]
    assert len(sets) == 1
    node.finish(node.post(f"/v1/weights/{sets[0]['id']}:evict"))


def test_a_set_in_use_is_not_evicted_and_the_refusal_names_its_users(node):
    operation = node.post(f"/v1/weights/{node.weights()[0]['id']}:evict")
    done = node.get(f"/v1/operations/{operation['id']}?wait=10s")
    assert done["state"] == "Failed" and done["error"]["reason"] == "WeightsInUse"
    assert "chat" in done["error"]["message"]


@pytest.mark.parametrize("damage,words", [
    ("truncate", ["model-00002-of-00002.safetensors"]),
    ("remove", ["model-00002-of-00002.safetensors", "incomplete"]),
    ("rename", ["model.norm.weight"]),
])
def test_a_damaged_checkpoint_is_refused_by_name(node, damage, words):
    copy = node.root / damage
    shutil.copytree(MODEL, copy)
    shard = copy / "model-00002-of-00002.safetensors"
    if damage == "truncate":
        os.truncate(shard, shard.stat().st_size - 4096)
    elif damage == "remove":
        shard.unlink()
    else:
        index = copy / "model.safetensors.index.json"
        index.write_text(index.read_text().replace('"model.norm.weight"', '"model.norm.wait"'))
    free = node.device()["freeBytes"]
    operation = node.post("/v1/weights:load", {"path": str(copy)})
    done = node.get(f"/v1/operations/{operation['id']}?wait=30s")
    assert done["state"] == "Failed"
    for word in words:
        assert word in done["error"]["message"], done["error"]
    assert node.device()["freeBytes"] == free


def test_the_openai_client_works_against_the_engine(node):
    import openai
    endpoint = node.instance("chat")["endpoint"]
    client = openai.OpenAI(base_url=f"{endpoint}/v1", api_key="none")
    assert [m.id for m in client.models.list()] == ["smollm2"]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model="smollm2", messages=question, max_tokens=24,
                                           temperature=0)
    assert "Paris" in whole.choices[0].message.content
    pieces = client.chat.completions.create(model="smollm2", messages=question, max_tokens=24,
                                            temperature=0, stream=True)
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=question)


def test_a_policy_with_a_fault_is_refused_with_its_place_and_changes_nothing(node):
    text = (node.root / "policies.yaml").read_text()
    with pytest.raises(Refused) as refused:
        node.put("/v1/policy", text.replace("priorityClassName: batch", "priorityClasName: batch"))
    message = refused.value.body["message"]
    assert "priorityClasName" in message and "priorityClassName" in message
    assert node.instance("nightly")["state"] == "Running"


def test_verify_reads_every_byte_and_agrees(node):
    weights = node.weights()[0]["id"]
    shown = node.post(f"/v1/weights/{weights}:verify")
    assert shown["ok"] and shown["mismatchedCount"] == 0, shown
