from __future__ import annotations

import pytest

from mlctl.rollout.client.links import links
from mlctl.rollout.domain.spec import DeploymentSettings, Ports
from mlctl.rollout.journal import paths
from mlctl.rollout.journal.journal import Journal
from mlctl.rollout.journal.records import Delivery
from tests.support.rollouts import revision


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("tag", "error"), [("tiny:aa", "no answer"), ("tiny:bb", None)])
def test_alias_error__write_failed__shown_for_the_live_revision_only(
    tag: str, error: str | None
) -> None:
    with Journal(paths.journal()) as journal:
        journal.create("shop", Ports(1, 2), DeploymentSettings(), revision("tiny:aa"))
        failed = Delivery(1, 2, "no answer", body={"subject": revision(tag).digest})
        journal.put_delivery("shop", "alias", failed)
    assert links("shop").alias_error == error
