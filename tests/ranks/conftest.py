# SPDX-License-Identifier: Apache-2.0
"""What the tests of several ranks share: a folder each, and where the programs are."""

import pathlib
import shutil
import tempfile

import pytest

from rank_crew import BIN, MODEL


@pytest.fixture(scope="session", autouse=True)
def programs():
    assert (BIN / "berth-engine").exists(), f"no berth-engine in {BIN}: set BERTH_BIN_DIR"
    if not (MODEL / "config.json").exists():
        pytest.skip(f"no model in {MODEL}: run configs/quickstart.sh or set BERTH_MODEL_DIR")


@pytest.fixture
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
