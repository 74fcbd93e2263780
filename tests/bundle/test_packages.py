from importlib import metadata

from bundle.packages import RUNTIMES, installed_version


def test_an_installed_package_has_its_version() -> None:
    assert installed_version("pytest") == metadata.version("pytest")


def test_what_is_not_installed_has_none() -> None:
    assert installed_version("no-such-distribution") is None


def test_one_runtime_is_installed_here() -> None:
    assert len([name for name in RUNTIMES if installed_version(name)]) == 1
