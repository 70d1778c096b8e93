# SPDX-License-Identifier: Apache-2.0
"""One instance over REST: its document is put, changed, asked for and taken away again, by whom may,
against the state that was meant; what a policy file defines stays the file's.

Method: a real berthd with instances of driver process (no engine), requests over its socket, the
command line, signals. Besides, what of a policy's `attach` holds from the next start or load on.
"""

import json
import pathlib
import subprocess

import pytest
from node_under_test import BIN, Node, Refused, alive, wait_until
from test_access import (ADMIN, OPERATOR, RULES, VIEWER, acting, asking, audits, needs_root,
                         open_node)
from test_policy import berth, hang_up, pid, request, tag, wait_pid, write
from tiny_model import make_tiny_model

FILE = """\
apiVersion: berth/v1
kind: Instance
metadata: {name: sleeper}
spec:
  engine: {driver: process, command: [sleep, "10001"]}
"""


@pytest.fixture(name="node")
def running_node():
    with Node(policy=FILE) as running:
        yield running


def document(name="second", seconds=20001, more=""):
    return (f"kind: Instance\nmetadata: {{name: {name}}}\nspec:\n"
            f"  engine: {{driver: process, command: [sleep, \"{seconds}\"]}}\n{more}")


def put(node, text, name="second", query="", **headers):
    """Status, tag, JSON."""
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    status, got, body = request(node, "PUT", f"/v1/instances/{name}{query}", text.encode(), headers)
    return status, got["ETag"], json.loads(body)


def delete(node, name="second", query="", **headers):
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    status, _, body = request(node, "DELETE", f"/v1/instances/{name}{query}", None, headers)
    return status, json.loads(body)


def gone(node, name="second"):
    wait_until(f"{name} is forgotten",
               lambda: request(node, "GET", f"/v1/instances/{name}")[0] == 404)


def restart(node):
    node.kill_daemon()
    node.start_daemon()


def test_put_creates_and_changes_it_delete_ends_it_in_order_and_both_outlast_the_daemon(node):
    status, etag, made = put(node, document())
    assert status == 201 and made["created"] and etag == made["etag"]
    first = wait_pid(node, "second")
    shown = node.instance("second")
    assert shown["etag"] == etag and shown["definedAt"] == "request:1:1"
    restart(node)
    assert wait_pid(node, "second") == first
    status, fresh, changed = put(node, document(more="  restart: Never\n"))
    assert status == 200 and changed["changed"] and not changed["created"]
    assert not changed["restarts"] and fresh != etag
    assert pid(node, "second") == first, "restart changes live"
    status, _, changed = put(node, document(seconds=20002))
    assert changed["restarts"]
    second = wait_pid(node, "second", other_than=first)
    status, reply = delete(node)
    assert status == 202 and reply["removing"], reply
    assert f"process {second}" in reply["message"]
    gone(node)
    assert not alive(second)
    restart(node)
    assert request(node, "GET", "/v1/instances/second")[0] == 404
    assert alive(pid(node)), "the other one goes on"


def test_what_yaml_asks_for_is_the_document_which_may_be_put_back(node):
    put(node, document())
    status, headers, text = request(node, "GET", "/v1/instances/second",
                                    headers={"Accept": "application/yaml"})
    assert status == 200 and headers["Content-Type"] == "application/yaml"
    assert text.startswith("apiVersion: berth/v1\nkind: Instance\n") and "startDeadline" in text
    assert "kind: ColocationPolicy" not in text
    before = tag(node)
    status, etag, reply = put(node, text, If_Match=headers["ETag"])
    assert status == 200 and not reply["changed"] and etag == headers["ETag"]
    assert tag(node) == before, "nothing was written down"


def test_json_is_taken_too_with_places_and_with_any_character(node):
    wanted = {"apiVersion": "berth/v1", "kind": "Instance", "metadata": {"name": "second"},
              "spec": {"engine": {"driver": "process", "command": ["sleep", "20003"],
                                  "environment": {"SIGN": "\U0001f40b/é\"\\"}}}}
    for text in (json.dumps(wanted), json.dumps(wanted, indent="\t"),
                 json.dumps(wanted, ensure_ascii=False).replace("/é", "\\/é")):
        status, _, reply = put(node, text, Content_Type="application/json")
        assert status in (200, 201), reply
    process = wait_pid(node, "second")
    environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().decode()
    assert "SIGN=\U0001f40b/é\"\\\0" in environment
    wanted["spec"]["restrat"] = "Never"
    status, _, reply = put(node, json.dumps(wanted, indent=2), query="?file=/x.json",
                           Content_Type="application/json")
    assert status == 400
    assert reply["message"].startswith("/x.json:18:5: field 'spec.restrat': unknown field; did you")
    status, _, reply = put(node, '{"kind": }', Content_Type="application/json")
    assert status == 400 and "the request's body" in reply["message"]


@pytest.mark.parametrize("text, status, said", [
    ("", 400, "request: expected one document, of kind Instance; found: none"),
    (document("third"), 400,
     "request:1:1: field 'metadata.name': 'third', but the path names 'second'"),
    (document() + "---\n" + document("third"), 400, "found: 2 of kind Instance (several together"),
    (document() + "---\nkind: Model\nmetadata: {name: m}\nspec: {path: /m}\n", 400,
     "found: 1 of kind Model, 1 of kind Instance"),
    ("kind: ColocationPolicy\nmetadata: {name: second}\nspec: {}\n", 400,
     "found: a ColocationPolicy"),
    (document(more="  model: absent\n"), 400,
     "request:5:10: Instance 'second': field 'spec.model': no Model 'absent'; no Model is given"),
    (document(more="  priorityClassName: bacth\n"), 400, "did you mean 'batch'?"),
    (document(more="  restart: Never\n  restart: Always\n"), 400, "given twice"),
    (document(more="# " + "x" * (1 << 20) + "\n"), 400, "at most 1.0 MiB are read"),
], ids=["empty", "name", "two", "others", "policy", "model", "class", "twice", "long"])
def test_what_is_wrong_is_refused_in_words_and_changes_nothing(node, text, status, said):
    before = tag(node)
    got, _, reply = put(node, text)
    assert got == status and said in reply["message"], reply
    assert tag(node) == before


def test_a_change_is_held_to_the_document_that_it_was_made_for(node):
    status, _, reply = put(node, document(), If_Match='"0123456789abcdef"')
    assert status == 412 and reply["reason"] == "ETagMismatch" and "is not there" in reply["message"]
    _, old, _ = put(node, document(), If_None_Match="*")
    status, _, reply = put(node, document(seconds=1), If_None_Match="*")
    assert status == 412 and reply["reason"] == "AlreadyExists"
    status, fresh, _ = put(node, document(more="  restart: Never\n"), If_Match=old)
    assert status == 200
    put(node, document("third"), name="third")
    assert node.instance("second")["etag"] == fresh, "another's change is none of it"
    status, _, reply = put(node, document(seconds=2), If_Match=old)
    assert status == 412 and old in reply["message"] and fresh in reply["message"]
    assert delete(node, If_Match=old)[0] == 412
    assert node.instance("second")["etag"] == fresh
    assert delete(node, If_Match=f'"no", {fresh}')[0] == 202
    gone(node)


def test_a_repetition_with_the_same_request_id_does_nothing_again(node):
    assert put(node, document(), query="?requestId=one")[0] == 201
    _, now, _ = put(node, document(more="  restart: Never\n"), query="?requestId=two")
    status, etag, reply = put(node, document(), query="?requestId=one", If_None_Match="*")
    assert status == 200 and etag == now and not reply["changed"]
    assert "restart: Never" in reply["document"]
    assert delete(node, query="?requestId=three")[0] == 202
    gone(node)
    status, reply = delete(node, query="?requestId=three")
    assert status == 200 and not reply["removing"]
    assert delete(node, query="?requestId=four")[0] == 404
    status, _, reply = put(node, document(), query="?requestId=one")
    assert status == 404 and "deleted since" in reply["message"]
    assert put(node, document(), query="?requestId=five")[0] == 201
    status, reply = delete(node, query="?requestId=three")
    assert status == 409 and reply["reason"] == "Redefined"
    wait_pid(node, "second")
    assert put(node, document(), query="?requestId=" + "x" * 200)[0] == 400


def test_a_rehearsal_says_what_would_be_and_changes_nothing(node):
    before = tag(node)
    status, _, reply = put(node, document(), query="?dryRun=true&requestId=one")
    assert status == 200 and reply["created"] and reply["dryRun"]
    assert tag(node) == before
    assert put(node, document(), query="?requestId=one")[0] == 201, "a rehearsal is not the change"
    process = wait_pid(node, "second")
    status, reply = delete(node, query="?dryRun=true")
    assert status == 200 and "would be ended" in reply["message"]
    assert pid(node, "second") == process and alive(process)


def test_what_a_file_defines_is_not_deleted_and_the_refusal_says_where_and_what_to_do(node):
    process = wait_pid(node)
    for _ in range(2):
        status, reply = delete(node, "sleeper")
        assert status == 409 and reply["reason"] == "DefinedInFile", reply
        assert f"{node.root}/policies.yaml:1:1" in reply["message"] and "SIGHUP" in reply["message"]
        put(node, document("sleeper", 10001, "  restart: Never\n"), name="sleeper")
    assert pid(node) == process
    write(node, "policies.yaml", "# nobody\n")
    hang_up(node)
    wait_until("the file is read", lambda: "policies read anew" in
               (node.root / "berthd.log").read_text())
    assert delete(node, "sleeper")[0] == 202, "now only what was put has it"
    gone(node, "sleeper")
    assert not alive(process)


def test_who_is_not_there_is_not_found_with_the_nearest_name(node):
    status, reply = delete(node, "sleepr")
    assert status == 404 and reply["reason"] == "InstanceNotFound"
    assert "did you mean 'sleeper'?" in reply["message"]
    assert request(node, "GET", "/v1/instances/sleepr")[0] == 404
    status, headers, _ = request(node, "POST", "/v1/instances/sleeper")
    assert status == 405 and {"GET", "PUT", "DELETE"} <= set(headers["Allow"].split(", "))


def test_one_of_several_that_were_applied_together_is_taken_out_and_the_others_go_on(node):
    file = write(node, "both.yaml", document("second") + "---\n" + document("third", 20005))
    berth(node, "apply", "-f", file)
    third = wait_pid(node, "third")
    wait_pid(node, "second")
    assert delete(node)[0] == 202
    gone(node)
    restart(node)
    assert wait_pid(node, "third") == third
    assert node.instance("third")["definedAt"] == f"{file}:6:1"
    assert request(node, "GET", "/v1/instances/second")[0] == 404
    berth(node, "apply", "-f", file)
    wait_pid(node, "second")


def test_the_command_line_deletes_waits_and_says_what_it_would_do(node):
    berth(node, "apply", "-", stdin=document())
    process = wait_pid(node, "second")
    said = berth(node, "delete", "instance", "second", "--dry-run")
    assert "would be ended" in said and alive(process)
    etag = node.instance("second")["etag"].strip('"')
    assert "ETagMismatch" in berth(node, "delete", "instance", "second", "--if-match", "abc",
                                   expect=1)
    said = berth(node, "delete", "instance", "second", "--if-match", etag, "--wait")
    assert f"second (Running, process {process}) is ended" in said
    assert not alive(process)
    assert "InstanceNotFound" in berth(node, "delete", "instance", "second", expect=1)
    assert "DefinedInFile" in berth(node, "delete", "instance", "sleeper", expect=1)


@needs_root
def test_only_an_admin_changes_documents_and_who_looks_may_ask_what_would_be(tmp_path):
    tmp_path.chmod(0o755)
    models = {"tiny": make_tiny_model(tmp_path / "tiny")}
    with open_node(models, RULES) as node:
        text = json.dumps({"kind": "Instance", "metadata": {"name": "second"}, "spec": {"engine": {
            "driver": "process", "command": ["sleep", "20006"],
            "environment": {"WORD": "nobody's"}}}})
        for uid, may in ((VIEWER, False), (OPERATOR, False), (ADMIN, True)):
            for method, body in (("PUT", text), ("DELETE", None)):
                status, reply = acting(uid, asking(node, method, "/v1/instances/second", body))
                assert (status != 403) == may, (uid, method, status, reply)
                assert may or "role admin" in reply["message"]
        last = max(e["revision"] for e in audits(node))
        question = json.dumps({"files": [{"file": "/q.yaml", "text": text}]})
        for path in ("/v1/policy:validate", "/v1/policy:diff"):
            assert acting(VIEWER, asking(node, "POST", path, question))[0] == 200, path
        need = json.dumps({"class": "batch", "memory": "1Mi"})
        assert acting(VIEWER, asking(node, "POST", "/v1/plan", need))[0] == 200
        changes = [e for e in audits(node) if "/v1/instances/second" in e["message"]]
        assert any(e["object"] == "instance/second" and f"user {ADMIN}" in e["message"] and
                   "outcome=201" in e["message"] for e in changes), changes
        assert not any("nobody's" in e["message"] for e in changes), "documents stay out of it"
        assert not [e for e in audits(node, last) if ":diff" in e["message"]], "looks are no changes"


# What of `attach` acts outside of decisions

def attach(**fields):
    words = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"kind: ColocationPolicy\nmetadata: {{name: p}}\nspec: {{attach: {{{words}}}}}\n"


def test_the_next_engine_is_told_what_to_do_without_a_shared_set(node):
    def fallback(process):
        variables = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        return [v for v in variables if v.startswith(b"BERTH_FALLBACK=")]
    first = wait_pid(node)
    assert fallback(first) == [b"BERTH_FALLBACK=fail"]
    node.put("/v1/policy", attach(onMismatch="Disk"))
    put(node, document("sleeper", 10002), name="sleeper")
    assert fallback(wait_pid(node, other_than=first)) == [b"BERTH_FALLBACK=disk"]


def test_a_changed_checkpoint_is_loaded_anew_once_the_policy_says_so(tmp_path):
    model = make_tiny_model(tmp_path / "a")
    policy = attach(onChange="Refuse") + \
        f"---\nkind: Model\nmetadata: {{name: a}}\nspec: {{path: {model}}}\n"
    with Node(memory="1Gi", policy=policy) as node:
        def load():
            node.finish(node.post("/v1/weights:load", {"model": "a"}))
            return {w["id"] for w in node.weights()}
        first = load()
        fresh = make_tiny_model(tmp_path / "b", 77)
        for file in fresh.iterdir():
            file.replace(model / file.name)
        assert load() == first, "nothing looks at the disk"
        node.put("/v1/policy", attach(onChange="Reload"))
        assert load() - first, "another set"


def test_a_write_that_fails_leaves_the_instance_as_it_was():
    """Nothing holds that is not on disk: the folder of records is taken away from berthd."""
    with Node(policy=FILE) as node:
        before = tag(node)
        database = next((node.root / "state").glob("*.db"))
        held = subprocess.Popen([
            "python3", "-c",
            "import sqlite3, sys, time\n"
            "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(600)\n",
            database], stdout=subprocess.PIPE, text=True)
        try:
            assert held.stdout.readline() == "held\n"
            status, _, reply = put(node, document())
            assert status == 503, reply
            assert tag(node) == before
            assert request(node, "GET", "/v1/instances/second")[0] == 404
        finally:
            held.kill()
            held.wait()
        wait_until("it can be written again", lambda: put(node, document())[0] in (200, 201))
        wait_pid(node, "second")


def test_a_rehearsal_of_a_load_and_of_a_pin_does_neither(tmp_path):
    model = make_tiny_model(tmp_path / "a")
    policy = f"kind: Model\nmetadata: {{name: a}}\nspec: {{path: {model}}}\n"
    with Node(memory="1Gi", policy=policy) as node:
        dry = node.post("/v1/weights:load", {"model": "a", "dryRun": True})
        assert dry["dryRun"] and dry["state"] == "Succeeded"
        assert f"{model} would be loaded onto host-0 from the checkpoint" in dry["message"], dry
        assert "would be loaded onto host-0" in berth(node, "load", "a", "--dry-run")
        dry = node.post("/v1/weights:load", {"model": "a", "device": "host-9", "dryRun": True})
        assert dry["state"] == "Failed" and dry["error"]["reason"] == "DeviceNotFound"
        assert node.weights() == []
        node.finish(node.post("/v1/weights:load", {"model": "a"}))
        dry = node.post("/v1/weights:load", {"model": "a", "dryRun": True})
        assert "is resident on host-0 already" in dry["message"]
        one = node.weights()[0]
        dry = node.post(f"/v1/weights/{one['id']}:pin", {"dryRun": True})
        assert dry["dryRun"] and "would be kept" in dry["message"]
        assert "would be kept" in berth(node, "pin", "a", "--dry-run")
        assert not node.weights()[0]["pinned"]
