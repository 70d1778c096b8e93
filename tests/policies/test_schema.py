# SPDX-License-Identifier: Apache-2.0
"""The schema that `berth schema` prints accepts what Berth accepts and refuses what it refuses.

Goal: an editor that uses it neither marks right files nor lets wrong fields pass. Method: a
validator of its own (jsonschema) over every file under configs/, and over documents with one fault.
"""

import json
import os
import pathlib
import subprocess

import jsonschema
import pytest
import yaml

BERTH = pathlib.Path(os.environ.get("BERTH_BIN_DIR", "build/release/bin")).resolve() / "berth"
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
KINDS = ["Node", "ColocationPolicy", "Model", "Instance"]


class Loader(yaml.SafeLoader):
    """Like YAML 1.2: `on` and `off` are words."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers
            if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", yaml.resolver.re.compile("^(?:true|false)$"),
                             list("tf"))


def documents(text):
    return [one for one in yaml.load_all(text, Loader) if one is not None]


def schema(*kind):
    done = subprocess.run([BERTH, "schema", *kind], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole():
    return jsonschema.Draft7Validator(schema())


def is_valid_for_berth(text, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    return subprocess.run([BERTH, "validate", file], capture_output=True).returncode == 0


def files():
    return sorted(CONFIGS.rglob("*.yaml"))


def test_the_schemas_are_schemas():
    for kind in [(), *[(one,) for one in KINDS]]:
        jsonschema.Draft7Validator.check_schema(schema(*kind))


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_every_shipped_file_is_accepted_whole_and_by_its_kind(whole, file):
    found = documents(file.read_text())
    assert found
    for document in found:
        whole.validate(document)
        jsonschema.Draft7Validator(schema(document["kind"])).validate(document)


@pytest.mark.parametrize("file", files(), ids=lambda file: file.name)
def test_what_berth_prints_with_every_default_is_accepted_too(whole, file):
    done = subprocess.run([BERTH, "validate", file], capture_output=True, text=True, check=True)
    for document in documents(done.stdout):
        whole.validate(document)


def paths_of_maps(value, path=()):
    """Every map in a document, but for engine.environment, which takes any name."""
    if isinstance(value, dict):
        if path[-1:] != ("environment",):
            yield path
        for key, inner in value.items():
            yield from paths_of_maps(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths_of_maps(inner, (*path, index))


def test_an_unknown_field_is_refused_in_every_map_there_is(whole):
    refused = 0
    for file in files():
        for document in documents(file.read_text()):
            for path in paths_of_maps(document):
                place = document
                for step in path:
                    place = place[step]
                place["unheardOf"] = 1
                assert not whole.is_valid(document), f"{file.name}: {path}"
                del place["unheardOf"]
                refused += 1
            assert whole.is_valid(document)
    assert refused > 100


FULL = """\
kind: Node
metadata: {name: n}
spec:
  socket: /run/berth/berthd.sock
  group: berth
  stateDir: /var/lib/berth
  devices: {host: [{name: host-0, memory: 64Gi}]}
  policies: [/etc/berth/policies]
  adminTcp: {listen: "0.0.0.0:7070", tokenFile: /t, certificateFile: /c, keyFile: /k, anywhere: true}
  access: [{role: viewer, users: [a], groups: [b]}]
---
kind: ColocationPolicy
metadata: {name: p}
spec:
  triggers:
    - {class: online, on: RequestArrival}
    - {class: online, on: QueueDepth, above: 4, for: 50ms}
    - {class: online, on: SLOBurn, metric: ttft, percentile: 99, target: 200ms}
    - {class: batch, on: Schedule, cron: "* 0-6 * * *"}
  memory: {imageDir: /images, imageLimit: 1Gi}
  tenants: [{name: t, users: [a], mayAttach: [m], maxDeviceMemory: 8Gi}]
---
kind: Model
metadata: {name: m}
spec: {path: /m, tensorParallel: 2}
---
kind: Instance
metadata: {name: i}
spec:
  model: m
  tenant: t
  deviceCount: 1
  slo: {ttft: 1s, tpot: 1s}
  resources: {limits: {memory: 1Gi}}
  engine: {command: [e], user: u, environment: {A: b}, workingDirectory: /, listen: "127.0.0.1:8000",
           journal: true, stepDeadline: 5s}
---
kind: Instance
metadata: {name: spare}
spec: {standbyOf: i, standby: {grant: Reserved}}
"""


def asked_for(schema_part, path):
    """Every field's path that a schema knows."""
    for alternative in schema_part.get("oneOf", []) + schema_part.get("anyOf", []):
        yield from asked_for(alternative, path)
    for name, inner in schema_part.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from asked_for(inner, f"{path}.{name}")
    if schema_part.get("type") == "array":
        yield from asked_for(schema_part["items"], f"{path}[]")


def written(value, path):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}.{name}"
            yield from written(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from written(inner, f"{path}[]")


def test_no_field_is_read_and_then_left_out_of_what_is_printed(tmp_path):
    file = tmp_path / "full.yaml"
    file.write_text(FULL)
    done = subprocess.run([BERTH, "validate", file], capture_output=True, text=True, check=True)
    found = set()
    for document in documents(done.stdout):
        found |= set(written(document, document["kind"]))
    for kind in KINDS:
        missing = set(asked_for(schema(kind), kind)) - found
        assert not missing, f"read and not printed: {sorted(missing)}"


@pytest.mark.parametrize("text", [
    "kind: Modle\nmetadata: {name: m}\nspec: {path: /m}",
    "kind: Model\nmetadata: {name: m}\nspec: {}",
    "kind: Model\nmetadata: {name: a/b}\nspec: {path: /m}",
    "kind: Model\nmetadata: {name: m}\nspec: {path: /m, pin: yes}",
    "kind: Model\nmetadata: {name: m}\nspec: {path: [a]}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {mode: Enforced}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {preemption: {reclaimDeadline: 5}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {preemption: {reclaimDeadline: 5 s}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {preemption: {minPriorityDelta: 0}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {memory: {hostTier: 4Gb}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {sharing: {compute: Mps}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {sharing: {batchShareWhenBusy: 120%}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {triggers: [{class: online, on: QueueDepth}]}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {triggers: [{class: online, on: "
    "RequestArrival, above: 1}]}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {triggers: [{class: online, on: SLOBurn, "
    "metric: ttft, percentile: 0, target: 1s}]}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {preemption: {preemptMode: [Pause, Pause]}}",
    "kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: vllm, command: [v]}}",
    "kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: process, command: []}}",
    "kind: Instance\nmetadata: {name: i}\nspec: {devices: any, engine: {driver: process, "
    "command: [a]}}",
    "kind: Instance\nmetadata: {name: i}\nspec: {deviceCount: 0, engine: {driver: process, "
    "command: [a]}}",
    "metadata: {name: i}",
])
def test_what_berth_refuses_by_form_the_schema_refuses(whole, tmp_path, text):
    assert not is_valid_for_berth(text, tmp_path)
    assert not whole.is_valid(documents(text)[0])


@pytest.mark.parametrize("text", [
    "kind: Instance\nmetadata: {name: i}\nspec: {engine: {driver: process, command: [sleep, 600], "
    "user: 1000, environment: {A: 1, B: true}}}",
    "kind: Instance\nmetadata: {name: 7}\nspec: {engine: {driver: process, command: [a]}, "
    "resources: {requests: {memory: 0}, limits: {memory: 1.5Gi}}}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {mode: Off}",
    "kind: ColocationPolicy\nmetadata: {name: p}",
    "kind: ColocationPolicy\nmetadata: {name: p}\nspec: {resume: {after: {onlineIdle: 0}}, "
    "preemption: {reclaimDeadline: 1h30m}, sharing: {batchShareWhenBusy: SLO}}",
    "kind: Node\nmetadata: {name: n}\nspec: {devices: {host: [{name: host-0, memory: 4Gi}]}}",
    "kind: Node\nmetadata: {name: n}\nspec: {devices: [GPU-1, GPU-2]}",
])
def test_what_berth_accepts_the_schema_accepts(whole, tmp_path, text):
    assert is_valid_for_berth(text, tmp_path)
    whole.validate(documents(text)[0])
