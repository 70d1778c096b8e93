# SPDX-License-Identifier: Apache-2.0
"""What the tests share: folders of the helpers beside them."""

import os
import pathlib
import shutil
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("bench", "system", "text", "failover"):
    sys.path.insert(0, str(ROOT / "tests" / folder))
BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", ROOT / "build/release/bin"))


@pytest.fixture(scope="session")
def tiny_model():
    """Sockets lie beside it: paths are short."""
    from small_model import CHAT_ML, make_small_model
    folder = pathlib.Path(tempfile.mkdtemp(prefix="berth-model-", dir="/tmp"))
    make_small_model(folder / "tiny", words=2048, chat_template=CHAT_ML)
    yield folder / "tiny"
    shutil.rmtree(folder, ignore_errors=True)
