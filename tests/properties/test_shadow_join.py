"""Whatever comes in whatever order: a row is paired once, with the other side's, or not at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mlctl.rollout.domain.shadow.join import AnswerSide, Joiner, Key, Recorded

ARRIVALS = st.lists(st.tuples(st.sampled_from(list(AnswerSide)), st.integers(0, 8)), max_size=60)


def row(name: int) -> Recorded:
    return Recorded((str(name), 0), "d", 0.0, {}, Path("segment"), 0)


@given(ARRIVALS)
def test_join__any_arrivals__pairs_adjacent_first_arrivals(
    arrivals: list[tuple[AnswerSide, int]],
) -> None:
    joiner = Joiner(grace=10, capacity=1000)
    paired: Counter[Key] = Counter()
    order: dict[Key, list[AnswerSide]] = defaultdict(list)
    for side, name in arrivals:
        order[row(name).key].append(side)
        paired.update(pair.live.key for pair in joiner.join(side, [row(name)], 0.0))
    wanted = {key for key, sides in order.items() if len(set(sides[:2])) == 2}
    assert paired == Counter(wanted)
    unpaired = [sides[0] for key, sides in order.items() if len(sides) == 1]
    assert joiner.expire(11.0) == unpaired.count(AnswerSide.CANDIDATE)


@given(ARRIVALS, st.integers(1, 5))
def test_join__full_memory__pairs_nothing_twice(
    arrivals: list[tuple[AnswerSide, int]], capacity: int
) -> None:
    joiner, pairs, lost = Joiner(grace=3.0, capacity=capacity), 0, 0
    for now, (side, name) in enumerate(arrivals):
        pairs += len(list(joiner.join(side, [row(name)], float(now))))
        lost += joiner.expire(float(now))
    candidates = sum(side is AnswerSide.CANDIDATE for side, _ in arrivals)
    assert pairs + lost + joiner.expire(1e9) <= candidates
