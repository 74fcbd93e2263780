"""Whether a deployment serves what a nightly batch job would answer for less. Pure.

A job may read a day's rows at once, so its core-hours are the rows times the seconds of the model
for each, as in `mlctl batch estimate`. A server reserves its workers around the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_DAY_HOURS = 24
HOUR_SECONDS = 3600.0
# The hours of one week are kept, and a hint needs so many days of them.
KEPT_HOURS = 7 * _DAY_HOURS
_MIN_DAYS = 3
# Rows are batch-shaped if so many come in so few hours of each day.
_MIN_SHARE, _MAX_PEAK_HOURS = 0.9, 4
# A day whose peak has less than this share of the mean peak is not like the others.
_MIN_DAY = 0.5
_MIN_ROWS_PER_DAY = 100_000
# The job has to cost at most this share of what the workers reserve.
_MAX_COST = 0.5


@dataclass(frozen=True, slots=True)
class TrafficHour:
    """Work of the live version in one hour; `start` is its Unix time.

    `model_seconds` are those in which the model ran, `worker_seconds` those of all its workers.
    """

    start: float
    rows: float
    model_seconds: float
    worker_seconds: float


@dataclass(frozen=True, slots=True)
class BatchHint:
    """The mean day of a deployment with batch-shaped traffic.

    `share` of the rows come within `peak_hours` hours from `peak_start` (0 to 23, UTC). Both costs
    are core-hours per day.
    """

    rows: float
    share: float
    peak_start: int
    peak_hours: int
    batch_core_hours: float
    online_core_hours: float

    def sentence(self) -> str:
        """Return the hint for `mlctl status`."""
        end = (self.peak_start + self.peak_hours) % _DAY_HOURS
        return (
            f"{100 * self.share:.0f} % of {self.rows:,.0f} rows a day come between "
            f"{self.peak_start:02}:00 and {end:02}:00 UTC: a batch job takes about "
            f"{self.batch_core_hours:.2g} core-hours a day, the workers reserve "
            f"{self.online_core_hours:.3g}"
        )


def batch_hint(hours: Sequence[TrafficHour]) -> BatchHint | None:
    """Return the hint for these hours of one week; None if online serving fits the traffic."""
    days = len({int(each.start // HOUR_SECONDS) for each in hours}) / _DAY_HOURS
    rows = sum(each.rows for each in hours)
    if days < _MIN_DAYS or rows < days * _MIN_ROWS_PER_DAY:
        return None
    peak = _peak(hours, rows)
    if peak is None or not _is_daily(hours, *peak):
        return None
    batch = sum(each.model_seconds for each in hours) / HOUR_SECONDS / days
    online = sum(each.worker_seconds for each in hours) / HOUR_SECONDS / days
    if batch > _MAX_COST * online:
        return None
    share = sum(each.rows for each in hours if _in_peak(each, *peak)) / rows
    return BatchHint(rows / days, share, *peak, batch, online)


def _hour(each: TrafficHour) -> int:
    """Return the hour of the day, 0 to 23."""
    return int(each.start // HOUR_SECONDS) % _DAY_HOURS


def _in_peak(each: TrafficHour, start: int, count: int) -> bool:
    return (_hour(each) - start) % _DAY_HOURS < count


def _peak(hours: Sequence[TrafficHour], rows: float) -> tuple[int, int] | None:
    """Return the first hour and the number of the fewest hours of a day with enough of the rows."""
    by_hour = Counter[int]()
    for each in hours:
        by_hour[_hour(each)] += round(each.rows)
    for count in range(1, _MAX_PEAK_HOURS + 1):
        sums = {
            start: sum(by_hour[(start + offset) % _DAY_HOURS] for offset in range(count))
            for start in range(_DAY_HOURS)
        }
        start = max(sums, key=lambda each: sums[each])
        if sums[start] >= _MIN_SHARE * rows:
            return start, count
    return None


def _is_daily(hours: Sequence[TrafficHour], start: int, count: int) -> bool:
    """Return whether enough days have the peak; a peak over midnight belongs to its first day."""
    peaks = Counter[int]()
    for each in hours:
        if _in_peak(each, start, count):
            day = int(each.start - start * HOUR_SECONDS) // int(_DAY_HOURS * HOUR_SECONDS)
            peaks[day] += round(each.rows)
    mean = sum(peaks.values()) / len(peaks)
    return sum(each >= _MIN_DAY * mean for each in peaks.values()) >= _MIN_DAYS
