import multiprocessing
from pathlib import Path

import pytest

from mlctl.core.clock import SystemClock
from mlctl.core.entries import LIST_NAME, Scalar, fetch_or_build, hash_key, is_whole, read_record
from tests.support.clock import ManualClock

KEY: dict[str, Scalar] = {"kind": "test", "version": 1}
CLOCK = ManualClock()


def write(directory: Path) -> None:
    (directory / "file").write_text("content")


def test_entry__requested_again__is_not_built_again(tmp_path: Path) -> None:
    clock = ManualClock()

    def build(directory: Path) -> None:
        clock.advance(2.5)
        write(directory)

    assert not fetch_or_build(tmp_path, KEY, build, clock).reused
    entry = fetch_or_build(tmp_path, KEY, build, clock)
    assert entry.reused
    assert entry.root == tmp_path / hash_key(KEY)
    record = read_record(entry.root)
    assert record is not None
    assert (record.key, record.seconds, list(record.files)) == (KEY, 2.5, ["file"])


def test_hash_key__other_order__is_the_same() -> None:
    assert hash_key(KEY) == hash_key(dict(reversed(KEY.items())))
    assert hash_key(KEY) != hash_key({**KEY, "version": 2})


@pytest.mark.parametrize(
    ("name", "content"),
    [("file", "Content"), ("another", "file"), (LIST_NAME, "{}"), (LIST_NAME, "no JSON")],
)
def test_entry__differs_from_its_list__is_built_again(
    tmp_path: Path, name: str, content: str
) -> None:
    entry = fetch_or_build(tmp_path, KEY, write, CLOCK)
    (entry.root / name).write_text(content)
    assert not is_whole(entry.root)
    assert not fetch_or_build(tmp_path, KEY, write, CLOCK).reused
    assert is_whole(entry.root)


def test_entry__build_fails__leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        write(directory)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fetch_or_build(tmp_path, KEY, fail, CLOCK)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def _count_builds(store: Path, log: Path) -> None:
    def build(directory: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        write(directory)

    fetch_or_build(store, KEY, build, SystemClock())


@pytest.mark.slow
def test_entry__several_processes_at_once__is_built_once(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    store.mkdir()
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_count_builds, args=(store, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"
