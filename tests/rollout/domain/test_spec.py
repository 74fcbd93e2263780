from __future__ import annotations

import json
import math

import pytest

from bundle.errors import MlctlError
from rollout.domain.spec import DeploymentSettings, Revision, RolloutSpec, Slot, check_name
from rollout.journal import records
from tests.support.rollouts import revision


def test_a_spec_survives_its_json() -> None:
    spec = RolloutSpec(steps=(5, 100), max_p99_ms=50.0)
    assert records.value_from(RolloutSpec, json.loads(spec.to_json())) == spec


@pytest.mark.parametrize("steps", [(), (0, 100), (5, 5, 100), (50, 25, 100), (1, 50), (1, 101)])
def test_steps_rise_from_1_to_100(steps: tuple[int, ...]) -> None:
    with pytest.raises(MlctlError, match="steps"):
        RolloutSpec(steps=steps)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_error_rate", 0.0),
        ("max_error_rate", 1.0),
        ("alpha", 0.0),
        ("min_requests", 0),
        ("max_p99_ms", 0.5),
        ("max_p99_ms", 60_001),
        ("step_seconds", -1.0),
        ("deadline_seconds", 0.0),
        ("margin", -0.1),
        ("step_seconds", math.inf),
        ("warmup_seconds", math.nan),
        ("bake_seconds", math.inf),
        ("deadline_seconds", math.inf),
        ("max_p99_ms", math.nan),
        ("alpha", math.nan),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(MlctlError, match=name):
        RolloutSpec(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["shop", "a", "shop-2"])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "Shop", "../shop", "a b", "-a", "a-", "a" * 64, "a/b"])
def test_names_that_are_no_directory_are_refused(name: str) -> None:
    with pytest.raises(MlctlError, match="deployment name"):
        check_name(name)


def test_a_revision_needs_a_digest_and_no_option_as_tag() -> None:
    with pytest.raises(MlctlError, match="digest"):
        Revision("digits:1", "abc", "m", "1", "s")
    with pytest.raises(MlctlError, match="bento"):
        Revision("--help", "0" * 64, "m", "1", "s")


def test_the_served_name_is_the_bentos() -> None:
    assert revision("tiny:aa").name == "tiny"


def test_several_models_are_known_by_their_digests() -> None:
    one = revision("tiny:aa")
    assert one.digests == (one.digest,)
    several = Revision("shop:1", "0" * 64, "m", "1", "s", models=("a" * 64, "b" * 64))
    assert several.digests == ("a" * 64, "b" * 64)
    assert records.value_from(Revision, json.loads(records.dumps(several))) == several


def test_each_slot_has_another() -> None:
    assert [slot.other for slot in Slot] == [Slot.GREEN, Slot.BLUE]


def test_a_refusal_says_what_to_give() -> None:
    with pytest.raises(MlctlError) as caught:
        RolloutSpec(step_seconds=math.inf)
    assert caught.value.message == (
        "step_seconds = inf is out of range: input should be a finite number"
    )


@pytest.mark.parametrize("name", ["tick_seconds", "drain_seconds"])
def test_settings_refuse_what_is_no_number(name: str) -> None:
    for value in (math.inf, math.nan, -1.0):
        with pytest.raises(MlctlError, match=name):
            DeploymentSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_refuse_no_time_between_looks() -> None:
    with pytest.raises(MlctlError, match="tick_seconds"):
        DeploymentSettings(tick_seconds=0)
