"""Judge every model of the zoo and compare with the committed verdicts: `make zoo`.

`--write` replaces the verdicts; `--only PATTERN` takes the cases that it is found in.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time

from tests.outside.judge import Verdict
from tests.outside.results import RESULTS, differences, key_of, read_results, write_results
from tests.outside.zoo import all_cases, judge_all


def main() -> int:
    """Return 0 if each verdict is the committed one."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the committed verdicts")
    parser.add_argument("--only", default="", help="judge the cases in which this pattern is found")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    begin = time.monotonic()
    cases = [case for case in all_cases() if re.search(options.only, f"{case.group} {case.name}")]
    found = {}
    for key, outcome in judge_all(cases, options.processes):
        found[key] = outcome
        print(f"{outcome.verdict:9} {key.name}: {outcome.reason}".rstrip(": "), flush=True)
    known = read_results() if RESULTS.exists() else {}
    kept = {key: outcome for key, outcome in known.items() if key not in found and options.only}
    if options.write:
        order = {key_of(case): number for number, case in enumerate(all_cases())}
        merged = {**kept, **found}
        write_results({key: merged[key] for key in sorted(merged, key=order.__getitem__)})
    faults = [] if options.write else list(differences(found, known))
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


if __name__ == "__main__":
    sys.exit(main())
