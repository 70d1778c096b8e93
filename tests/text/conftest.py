# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the programs under test and a small model folder."""

import os
import pathlib

import pytest

from byte_model import make_byte_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", ROOT / "build/release/bin"))


@pytest.fixture(scope="session")
def fake_engine():
    return BIN / "berth-fake-engine"


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory):
    """A folder with a tokenizer of 256 bytes and no merges, so that each byte is one token."""
    return make_byte_model(tmp_path_factory.mktemp("model"))
