"""`python -m tests.fuzz`: look for findings for a while; what is found is written to the corpus."""

from __future__ import annotations

import argparse
import random
import secrets
import sys

from tests.fuzz.campaign import Campaign
from tests.fuzz.target import FindingError, Target
from tests.fuzz.targets import TARGETS


def main() -> int:
    """1 if there were findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0, help="shared by all targets")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--keep-ways", type=int, default=0, metavar="BYTES")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {unknown.pop()}: there are {', '.join(TARGETS)}")
    chosen = [TARGETS[name] for name in options.targets or TARGETS]
    print(f"seed {options.seed}")
    share = options.seconds / len(chosen)
    clean = [_run(target, share, options.seed, options.keep_ways) for target in chosen]
    return 0 if all(clean) else 1


def _run(target: Target, seconds: float, seed: int, longest: int) -> bool:
    with target.opened() as feed:
        campaign = Campaign(target, feed, random.Random(seed))
        try:
            campaign.replay()
        except FindingError as error:
            print(f"{target.name}: a kept input: {error}", file=sys.stderr)
            return False
        campaign.run(seconds)
    found, kept = campaign.findings, campaign.keep()
    if longest:
        campaign.keep_ways(longest)
    told = f"{campaign.fed} inputs, {len(campaign.ways)} ways, {len(found)} findings"
    print(f"{target.name}: {told}", flush=True)
    for what, name in zip(found, kept, strict=False):
        print(f"  {what}\n  in {target.corpus.name}: {name}", flush=True)
    return not found


if __name__ == "__main__":
    sys.exit(main())
