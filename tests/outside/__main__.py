"""Judge every model of the zoo and compare with the committed verdicts: `make zoo`.

`--write` replaces the verdicts; `--only PATTERN` takes the cases that it is found in.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.outside.judge import Outcome, Verdict
from tests.outside.results import RESULTS, Key, differences, key_of, read_results, write_results
from tests.outside.served import judge_served
from tests.outside.zoo import all_cases, judge_all

# One of each format, through the commands.
SERVED = frozenset(
    {
        "LogisticRegression in a pipeline",
        "HistGradientBoostingRegressor in a pipeline",
        "XGBClassifier three classes",
        "LGBMClassifier texts as classes",
        "CatBoostRegressor",
        "GRU",
        "Bert, text-classification",
    }
)


def main() -> int:
    """Return 0 if each verdict is the committed one, and none is a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the committed verdicts")
    parser.add_argument("--only", default="", help="judge the cases in which this pattern is found")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    begin = time.monotonic()
    # Each process has one core; threads of it would wait for each other.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    cases = [case for case in all_cases() if re.search(options.only, f"{case.group} {case.name}")]
    known = read_results() if RESULTS.exists() else {}
    order = {key_of(case): number for number, case in enumerate(all_cases())}

    def write() -> None:
        merged = {**{key: each for key, each in known.items() if key in order}, **found}
        write_results({key: merged[key] for key in sorted(merged, key=order.__getitem__)})

    found: dict[Key, Outcome] = {}
    for key, outcome in judge_all(cases, options.processes):
        found[key] = outcome
        print(f"{outcome.verdict:9} {key.name}: {outcome.reason}".rstrip(": "), flush=True)
        if options.write:  # what is known survives an interrupt
            write()
    if not options.only:
        found |= _served({**found})
    if options.write:
        write()
    faults = list(differences(found, {**found} if options.write else known))
    if not options.only and not options.write:
        faults += [
            f"{key.name} ({key.group}) is listed, and no case" for key in known.keys() - found
        ]
    counts = {each: sum(o.verdict is each for o in found.values()) for each in Verdict}
    shown = ", ".join(f"{number} {each}" for each, number in counts.items())
    print(f"{shown} in {time.monotonic() - begin:.0f} s")
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


def _served(found: Mapping[Key, Outcome]) -> dict[Key, Outcome]:
    """Return what is wrong with the models that a real server has, by case."""
    cases = [
        case
        for case in all_cases()
        if case.name in SERVED and found[key_of(case)].verdict is Verdict.ACCEPTED
    ]
    with tempfile.TemporaryDirectory(prefix="mlctl-zoo-") as home:
        os.environ[HOME_VARIABLE] = home
        os.environ.pop(TRACKING_VARIABLE, None)
        outcomes = dict(judge_served(cases, Path(home)))
    print(f"{len(outcomes)} of them over a real port")
    return {key: each for key, each in outcomes.items() if each.verdict is Verdict.FAILED}


if __name__ == "__main__":
    sys.exit(main())
