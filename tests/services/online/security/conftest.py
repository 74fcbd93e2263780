"""The certificates of one run of the tests."""

from __future__ import annotations

import pytest

from tests.support.certificates import Certificates, issue_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue_certificates(tmp_path_factory.mktemp("certificates"))
