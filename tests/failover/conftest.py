# SPDX-License-Identifier: Apache-2.0
"""What the tests share: folders of the helpers beside them."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in (ROOT / "tests" / "system", ROOT / "tests" / "text", ROOT / "tests" / "failover"):
    sys.path.insert(0, str(folder))
BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", ROOT / "build/release/bin"))
