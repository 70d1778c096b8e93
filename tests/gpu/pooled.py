#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What several runs of `berth bench colocate` say together: of each phase the percentiles of TTFT
and TPOT beside those of online alone (both looks at it, taken together), and the geometric mean of
these ratios over the runs.

    pooled.py [--phase gate] [--resamples 1000] SAMPLES...     (samples.jsonl, or .xz of it)

The interval holds the middle 95 % of a paired bootstrap: in each run requests are drawn by their
numbers, the same ones in every phase. Phases of other nodes than online alone's are not for this.
"""

import argparse
import json
import lzma
import math
import pathlib
import random

ALONE = ("online-alone", "online-alone-again")
FIGURES = {"TTFT": lambda one: one[0], "TPOT": lambda one: one[1]}


def opened(path):
    return lzma.open(path, "rt") if path.suffix == ".xz" else open(path, encoding="utf-8")


def read(path):
    """By phase and request: seconds to its first token, and for each later one (None: it had none)."""
    phases = {}
    with opened(path) as lines:
        for number, line in enumerate(lines, 1):
            one = json.loads(line)
            events, tokens = one["eventsAfterDue"], one["tokens"]
            if not one["done"] or not events:
                raise SystemExit(f"{path}:{number}: request {one['request']} of {one['phase']} was "
                                 f"not answered ({one['error'] or 'no event'})")
            later = (events[-1] - events[0]) / (tokens - 1) if tokens > 1 else None
            phases.setdefault(one["phase"], {})[one["request"]] = events[0], later
    return phases


def percentile(values, of):
    """By rank."""
    values = sorted(values)
    return values[max(math.ceil(of / 100 * len(values)), 1) - 1]


def ratio(phases, phase, requests, figure, of):
    def values(names):
        return [value for name in names if name in phases for one in requests
                if (value := figure(phases[name][one])) is not None]
    return percentile(values([phase]), of) / percentile(values(ALONE), of)


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def pooled(runs, phase, figure, of, resamples, dice):
    """The ratio of each run, their mean, and its interval."""
    points = [ratio(run, phase, list(run[phase]), figure, of) for run in runs]
    drawn = sorted(mean([ratio(run, phase, dice.choices(list(run[phase]), k=len(run[phase])),
                               figure, of) for run in runs]) for _ in range(resamples))
    return points, mean(points), drawn[int(0.025 * resamples)], drawn[int(0.975 * resamples)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="+", type=pathlib.Path)
    parser.add_argument("--phase", default="gate")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    runs = [read(path) for path in chosen.samples]
    for path, run in zip(chosen.samples, runs):
        if chosen.phase not in run or ALONE[0] not in run:
            parser.error(f"{path}: it has the phases {', '.join(run)}; expected '{chosen.phase}' "
                         f"and '{ALONE[0]}'")
    dice = random.Random(chosen.seed)
    for name, figure in FIGURES.items():
        for of in (50, 90, 99):
            points, middle, low, high = pooled(runs, chosen.phase, figure, of, chosen.resamples,
                                               dice)
            print(f"{name} p{of}: {middle:.3f} ({low:.3f} to {high:.3f}) of alone; by run "
                  f"{', '.join(f'{one:.3f}' for one in points)}")


if __name__ == "__main__":
    main()
