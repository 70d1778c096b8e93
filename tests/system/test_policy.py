# SPDX-License-Identifier: Apache-2.0
"""The policy of a running node: applied as a whole or not at all, by whom knows what holds, and read
anew on SIGHUP, where a broken file changes nothing.

Method: a real berthd with instances of driver process (no engine), the command line, REST, signals.
"""

import json
import os
import pathlib
import signal
import subprocess

import pytest
from node_under_test import BIN, Node, Refused, _UnixConnection, alive, wait_until

POLICY = """\
apiVersion: berth/v1
kind: Instance
metadata: {name: sleeper}
spec:
  engine: {driver: process, command: [sleep, "10001"]}
"""


@pytest.fixture()
def node():
    with Node(policy=POLICY) as running:
        yield running


def berth(node, *words, expect=0, stdin=None):
    done = subprocess.run([BIN / "berth", *words], capture_output=True, text=True, timeout=60,
                          input=stdin,
                          env={**os.environ, "BERTH_ADMIN": str(node.root / "run/admin.sock")})
    assert done.returncode == expect, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def request(node, method, target, body=None, headers=None):
    """Status, headers, text: whatever the status."""
    connection = _UnixConnection(node.root / "run/admin.sock", 60)
    try:
        connection.request(method, target, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()
    finally:
        connection.close()


def tag(node):
    return request(node, "GET", "/v1/policy")[1]["ETag"]


def pid(node, name="sleeper"):
    return node.instance(name)["pid"]


def wait_pid(node, name="sleeper", other_than=0):
    def found():
        try:
            now = pid(node, name)
        except Refused:
            return 0
        return now if now and now != other_than and alive(now) else 0
    return wait_until(f"{name} has a process", found)


def hang_up(node):
    node.daemon.send_signal(signal.SIGHUP)


def events(node, reason):
    return [e for e in map(json.loads, berth(node, "events", "-o", "json").splitlines())
            if e["reason"] == reason]


def write(node, name, text):
    file = node.root / name
    file.write_text(text)
    return file


def sleeper(name, seconds, more=""):
    return (f"---\nkind: Instance\nmetadata: {{name: {name}}}\nspec:\n"
            f"  engine: {{driver: process, command: [sleep, \"{seconds}\"]}}\n{more}")


def test_diff_names_both_values_and_who_starts_again_and_apply_does_just_that(node):
    first = wait_pid(node)
    file = write(node, "new.yaml", sleeper("sleeper", 10002) + sleeper("second", 10003) +
                 "---\nkind: ColocationPolicy\nmetadata: {name: p}\nspec: {mode: Observe}\n")
    shown = berth(node, "diff", file)
    assert "spec.mode: Enforce -> Observe" in shown
    assert "spec.engine.command: [sleep, 10001] -> [sleep, 10002]" in shown
    assert "would start again: sleeper" in shown and "would be added: second" in shown
    assert pid(node) == first, "a diff changes nothing"
    etag = json.loads(berth(node, "diff", file, "-o", "json"))["etag"]
    assert etag == tag(node)
    assert "Instance/second" in berth(node, "apply", "--if-match", etag, file)
    assert berth(node, "diff", file) == "nothing would change\n"
    assert "mode: Observe" in berth(node, "policy")
    wait_pid(node, other_than=first)
    wait_pid(node, "second")
    assert "PolicyApplied" in {e["reason"] for e in events(node, "PolicyApplied")}


def test_of_several_files_one_of_which_is_wrong_none_is_applied(node):
    before = tag(node)
    right = write(node, "right.yaml", sleeper("second", 1))
    wrong = write(node, "wrong.yaml", sleeper("third", 1, "  priorityClassName: bacth\n"))
    said = berth(node, "apply", right, wrong, expect=1)
    assert f"{wrong}:6:22: Instance 'third': field 'spec.priorityClassName'" in said
    assert "did you mean 'batch'?" in said
    assert tag(node) == before
    with pytest.raises(Refused) as refused:
        node.instance("second")
    assert refused.value.status == 404


def test_a_change_against_a_policy_that_no_longer_holds_is_refused_with_412(node):
    old = tag(node)
    mine = sleeper("mine", 10004)
    status, headers, _ = request(node, "PUT", "/v1/policy?file=/m.yaml", mine, {"If-Match": old})
    assert status == 200 and headers["ETag"] == tag(node) != old
    status, _, body = request(node, "PUT", "/v1/policy", sleeper("yours", 1), {"If-Match": old})
    assert status == 412 and json.loads(body)["reason"] == "ETagMismatch"
    assert old in json.loads(body)["message"] and tag(node) in json.loads(body)["message"]
    said = berth(node, "apply", "--if-match", old, write(node, "y.yaml", sleeper("y", 1)), expect=1)
    assert "ETagMismatch" in said
    assert "yours" not in berth(node, "policy")
    status, _, _ = request(node, "PUT", "/v1/policy", mine, {"If-Match": f'"no", {tag(node)}'})
    assert status == 200
    assert request(node, "GET", "/v1/policy", headers={"If-None-Match": tag(node)})[0] == 304


def test_validate_and_a_dry_run_say_what_would_hold_and_change_nothing(node):
    before = tag(node)
    text = "kind: ColocationPolicy\nmetadata: {name: p}\nspec:\n  triggers:\n" \
           "    - {class: batch, on: RequestArrival}\n"
    status, _, body = request(node, "POST", "/v1/policy:validate?file=/p.yaml", text)
    said = json.loads(body)
    assert status == 200 and said["documents"] == ["ColocationPolicy"]
    assert said["advice"][0].startswith("/p.yaml:5:7: class 'batch' preempts nobody")
    status, _, body = request(node, "POST", "/v1/policy:validate?file=/p.yaml",
                              text.replace("batch", "bathc"))
    assert status == 400
    assert json.loads(body)["message"].startswith(
        "/p.yaml:5:15: field 'spec.triggers[0].class': no priority class 'bathc'")
    file = write(node, "p.yaml", text)
    assert "RequestArrival" in berth(node, "apply", "--dry-run", file)
    assert tag(node) == before


def test_what_was_applied_outlasts_the_daemon_and_can_be_forgotten(node):
    files = tag(node)
    berth(node, "apply", "-", stdin=sleeper("second", 10005))
    applied = tag(node)
    second = wait_pid(node, "second")
    node.kill_daemon()
    node.start_daemon()
    assert tag(node) == applied
    assert wait_pid(node, "second") == second
    write(node, "policies.yaml", POLICY + sleeper("second", 10008))
    hang_up(node)
    hidden = wait_until("the files are read", lambda: [
        e for e in events(node, "PolicyApplied") if "hides theirs of Instance/second" in e["message"]])
    assert "berth apply --reset" in hidden[-1]["message"]
    assert wait_pid(node, "second") == second, "what was applied still holds"
    write(node, "policies.yaml", POLICY)
    hang_up(node)
    wait_until("the files are read", lambda: len(events(node, "PolicyApplied")) >= 3)
    berth(node, "apply", "--reset")
    assert tag(node) == files
    wait_until("second has ended", lambda: not alive(second))


def test_sighup_reads_the_files_anew_and_a_changed_command_starts_its_instance_again(node):
    first = wait_pid(node)
    write(node, "policies.yaml", POLICY.replace("10001", "10006") + sleeper("second", 10007))
    hang_up(node)
    wait_pid(node, "second")
    fresh = wait_pid(node, other_than=first)
    assert b"10006" in pathlib.Path(f"/proc/{fresh}/cmdline").read_bytes()
    assert not alive(first)
    write(node, "policies.yaml", POLICY.replace("10001", "10006"))
    second = pid(node, "second")
    hang_up(node)
    wait_until("second has ended", lambda: not alive(second))
    assert pid(node) == fresh, "what has not changed goes on"


def test_sighup_with_a_broken_file_leaves_the_old_policy_and_says_file_line_and_column(node):
    first = wait_pid(node)
    before = tag(node)
    file = write(node, "policies.yaml", POLICY + "  restrat: Never\n")
    hang_up(node)
    refused = wait_until("the refusal is an event", lambda: events(node, "PolicyRefused"))
    place = f"{file}:6:3: field 'spec.restrat': unknown field; did you mean 'restart'?"
    assert place in refused[-1]["message"] and refused[-1]["kind"] == "Warning"
    assert place in (node.root / "berthd.log").read_text()
    assert tag(node) == before and pid(node) == first
    write(node, "policies.yaml", POLICY + "  restart: Never\n")
    hang_up(node)
    wait_until("the right file is read", lambda: tag(node) != before)
    assert "restart: Never" in berth(node, "policy")
    assert pid(node) == first, "restart changes live"


def test_a_node_that_names_its_own_file_does_not_start(node):
    config = write(node, "cycle.yaml",
                   "kind: Node\nmetadata: {name: n}\nspec:\n  policies: [cycle.yaml]\n")
    done = subprocess.run([BIN / "berthd", "--config", config], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode != 0
    assert f"{config}:4:13: field 'spec.policies'" in done.stdout + done.stderr
