# SPDX-License-Identifier: Apache-2.0
"""The bench of handle sizes takes and gives back a grant in each size that divides it."""
import json
import os
import pathlib
import subprocess

BIN = pathlib.Path(os.environ["BERTH_BIN_DIR"])


def test_each_size_is_measured_beside_one_handle_of_all():
    made = subprocess.run([BIN / "berth", "bench", "grant", "--json", "--memory", "24Mi", "--rounds", "2"],
                          capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    sizes = {line["handleBytes"] >> 20 for line in lines}
    assert sizes == {2, 4, 8}
    assert len(lines) == 4 * len(sizes)
    for line in lines:
        assert line["rounds"] == 2 and line["bytes"] == 24 << 20
        assert line["p50"] > 0
        assert (line["floor"] is None) == (" one" in line["figure"])


def test_a_device_that_is_not_there_is_told():
    made = subprocess.run([BIN / "berth", "bench", "grant", "--device", "cuda-7"], capture_output=True,
                          text=True, check=False)
    assert made.returncode == 1
    assert "cuda-7" in made.stderr
