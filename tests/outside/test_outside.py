"""A sample of the zoo in each run of the suite, and what the comparison with `results.csv` says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.home import HOME_VARIABLE
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.outside.case import Arrays, Case, Source
from tests.outside.judge import Outcome, Verdict, judge_answer, rejection
from tests.outside.paths import Answer, Broken, Rejected
from tests.outside.results import Key, differences, key_of, read_results

# Of several groups one that takes little time.
SAMPLE = frozenset(
    {
        "AgglomerativeClustering alone",
        "SimpleImputer and a linear model",
        "OneHotEncoder(drop=if_binary)",
        "XGBRegressor",
        "LGBMClassifier texts as classes",
        "Linear",
    }
)


def _never() -> Source:
    raise AssertionError("not called")


RIDGE = Case("estimators", "Ridge alone", ("Ridge",), _never)
KEY = key_of(RIDGE)
ACCEPTED, REJECTED, FAILED = (Outcome(each, "a reason") for each in Verdict)


@pytest.mark.slow
def test_zoo__a_sample_of_each_group__is_as_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.outside.zoo import all_cases, judge_here

    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    cases = all_cases()
    assert len({key_of(case) for case in cases}) == len(cases)
    sample = [case for case in cases if case.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    found = {key_of(case): judge_here(case) for case in sample}
    assert [*differences(found, read_results())] == []


@pytest.mark.parametrize(
    ("found", "known", "sentence"),
    [
        (ACCEPTED, ACCEPTED, None),
        (REJECTED, REJECTED, None),
        (ACCEPTED, None, "has no line"),
        (ACCEPTED, REJECTED, "is accepted now, and listed as rejected"),
        (REJECTED, ACCEPTED, "was accepted and is rejected"),
        (FAILED, ACCEPTED, "failed: a reason"),
        (FAILED, FAILED, "failed: a reason"),
        (Outcome(Verdict.REJECTED, "another"), REJECTED, "with another sentence"),
    ],
)
def test_differences__one_verdict__is_compared_with_the_list(
    found: Outcome, known: Outcome | None, sentence: str | None
) -> None:
    said = [*differences({KEY: found}, {} if known is None else {KEY: known})]
    assert len(said) == (sentence is not None)
    assert all(str(sentence) in each for each in said)


@pytest.mark.parametrize(
    ("code", "message", "hint", "verdict"),
    [
        (ErrorCode.UNSUPPORTED_MODEL, "Ridge cannot be converted", "Use Lasso.", Verdict.REJECTED),
        (ErrorCode.INTERNAL, "Ridge: a defect of mlctl", "Report it.", Verdict.FAILED),
        (ErrorCode.EXPORT_FAILED, "a Pipeline cannot be converted", "Use Lasso.", Verdict.FAILED),
        (ErrorCode.EXPORT_FAILED, "Ridge: /usr/lib/x.so failed", "Use Lasso.", Verdict.FAILED),
        (ErrorCode.EXPORT_FAILED, "Ridge: locale.cc:235 failed", "Use Lasso.", Verdict.FAILED),
    ],
)
def test_rejection__sentence__needs_the_estimator_and_no_path(
    code: ErrorCode, message: str, hint: str, verdict: Verdict
) -> None:
    assert rejection(RIDGE, MlctlError(code, message, hint)).verdict is verdict


def number(value: float) -> Arrays:
    return {"y": np.array(value)}


@pytest.mark.parametrize(
    ("want", "have", "usual", "right"),
    [
        (number(1.0), number(1.0), True, True),
        (number(1.0), number(1.0 + 1e-7), True, True),
        (number(1.0), number(1.1), True, False),
        (number(1.0), number(1.1), False, False),
        (number(1.0), Rejected("a gap"), False, True),
        (number(1.0), Rejected("a gap"), True, False),
        (number(1.0), Broken("500"), False, False),
        ({}, Broken("500"), False, False),
        ({}, number(1.0), False, True),
        (None, Rejected("a gap"), False, True),
        (None, number(1.0), False, False),
        (None, None, False, True),
    ],
)
def test_judge_answer__one_row__is_equal_or_a_bad_row(
    want: Arrays | None, have: Answer, *, usual: bool, right: bool
) -> None:
    assert (judge_answer(want, have, {"y": 1.0}, usual=usual) is None) == right


def test_results__committed_file__names_each_model_once() -> None:
    found = read_results()
    assert all(isinstance(key, Key) for key in found)
    for key, outcome in found.items():
        assert outcome.verdict is not Verdict.FAILED, key
        assert bool(outcome.reason) == (outcome.verdict is Verdict.REJECTED), key
