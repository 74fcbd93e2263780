"""The chain behind a digest, from what this machine and its registry still know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlctl.bento.provenance import full_digest
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.client.provenance import ProvenanceSources, chain
from mlctl.rollout.domain.operator_commands import OperatorCommand
from mlctl.rollout.domain.spec import DeploymentSettings, Ports, RolloutSpec
from mlctl.rollout.journal.journal import Journal
from mlctl.services.layout.bento_layout import combine_bundles
from mlctl.services.layout.bento_store import DIGEST_LABEL, MODELS_LABEL, BentoInfo
from tests.services.layout.test_bento_layout import lay_out
from tests.support.bundles import make_bundle
from tests.support.clock import ManualClock
from tests.support.rollouts import revision

LIVE, CANDIDATE = revision("tiny:aaaaaa01"), revision("tiny:aaaaaa02")


@pytest.fixture
def known(tmp_path: Path) -> ProvenanceSources:
    """A rollout under way, its Bentos and registry gone."""
    with Journal(tmp_path / "journal.db", ManualClock(1000.0)) as journal:
        journal.create("shop", Ports(1, 2), DeploymentSettings(), LIVE)
        journal.begin("shop", CANDIDATE, RolloutSpec())
        journal.request("shop", OperatorCommand.PAUSE, "by hand")
        return ProvenanceSources((), (), journal.rollouts(), journal.deployments())


def test_why__part_of_the_chain_is_gone__shows_the_rest(known: ProvenanceSources) -> None:
    told = chain(full_digest("aaaaaa02", known.digests()), known)
    assert [rollout["candidate"]["bento"] for rollout in told["rollouts"]] == ["tiny:aaaaaa02"]
    assert told["rollouts"][0]["deployment"] == "shop"
    assert (told["source"], told["bentos"], told["serves"]) == (None, [], [])
    assert chain(LIVE.digest, known)["serves"] == ["shop"]


def test_why__several_models__shows_each(tmp_path: Path, known: ProvenanceSources) -> None:
    packed = combine_bundles(
        [make_bundle(tmp_path / name, name=name) for name in ("double", "triple")],
        "both",
        ["triple.x=double.y"],
    )
    assert packed.bento_manifest is not None
    lay_out(packed, tmp_path / "bento" / "src")
    labels = {DIGEST_LABEL: packed.digest, MODELS_LABEL: packed.bento_manifest.label()}
    held = replace(known, bentos=[BentoInfo("both:1", tmp_path / "bento", labels)])
    told = chain(packed.digest, held)
    assert (told["bentos"], told["source"], told["variant"]) == (["both:1"], None, None)
    assert [(each["name"], each["source"]["uri"]) for each in told["models"]] == [
        ("double", "models:/double/1"),
        ("triple", "models:/triple/1"),
    ]
    one = chain(packed.bundles[1].digest, held)
    assert (one["bentos"], one["models"], one["variant"]["recipe"]) == (["both:1"], [], "fp32")


def test_bentos_of_digest__alone_and_in_pipelines__its_own_come_first(
    tmp_path: Path, known: ProvenanceSources
) -> None:
    bundles = [make_bundle(tmp_path / name, name=name) for name in ("double", "triple")]
    joined = combine_bundles(bundles, "both", ["triple.x=double.y"])
    assert joined.bento_manifest is not None
    lay_out(joined, tmp_path / "both" / "src")
    labels = {DIGEST_LABEL: joined.digest, MODELS_LABEL: joined.bento_manifest.label()}
    bentos = [BentoInfo("both:1", tmp_path / "both", labels)]
    digest = bundles[1].digest
    for flavour in ("", "-gpu"):
        folder = tmp_path / f"alone{flavour}"
        lay_out(combine_bundles(bundles[1:]), folder / "src")
        bentos.append(BentoInfo(f"triple:1{flavour}", folder, {DIGEST_LABEL: digest}))
    told = chain(digest, replace(known, bentos=bentos))
    assert told["bentos"] == ["triple:1", "triple:1-gpu", "both:1"]
    assert (told["models"], told["variant"]["recipe"]) == ([], "fp32")


def test_why__several_models__have_the_alias_each(known: ProvenanceSources) -> None:
    (shop,) = known.deployments
    live = replace(LIVE, models=("c" * 64, "d" * 64))
    held = replace(known, deployments=[replace(shop, live=live, champion=live.digest)])
    for digest in (live.digest, *live.models):
        assert chain(digest, held)["champion_of"] == ["shop"]
    assert chain(CANDIDATE.digest, held)["champion_of"] == []


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("aaaaaa", ErrorCode.INVALID_INPUT, "2 digests begin with aaaaaa"),
        ("bbbbbb", ErrorCode.NOT_FOUND, "no digest that begins with bbbbbb"),
        ("aaa", ErrorCode.INVALID_INPUT, "at least four digits"),
        ("tiny:aaaaaa01", ErrorCode.INVALID_INPUT, "is not a digest"),
    ],
)
def test_why__ambiguous_or_invalid_digest__is_rejected(
    known: ProvenanceSources, text: str, code: ErrorCode, message: str
) -> None:
    with pytest.raises(MlctlError, match=message) as refused:
        full_digest(text, known.digests())
    assert refused.value.code is code
