import io
import os

import pytest
from rich.console import Console

from cli.commands.optimize import Board, Lines, Piecework, watching
from cli.output import CommandOutput
from cli.progress import clock_time, only_results_on_stdout
from cli.variants import filled, models_table, number_cells, number_columns, variants_table
from optimize.choice import choose
from optimize.events import Stage, StepEvent, StepStatus
from optimize.evidence import variant_record
from optimize.goals import Goals
from tests.optimize.builders import failed, not_applicable, variant
from tests.support.clock import ManualClock


def told(stage: Stage, status: StepStatus, recipe: str | None = None) -> StepEvent:
    return StepEvent(stage, status, recipe)


def new_board(recipes: tuple[str, ...], clock: ManualClock) -> Board:
    board = Board(clock)
    board.event(StepEvent(Stage.RESOLVE, StepStatus.FINISHED, recipes=recipes))
    return board


def step(done: int, total: int, what: str = "sensitivity") -> StepEvent:
    return StepEvent(Stage.VARIANT, StepStatus.WORKING, "int8-cpu", what, done, total)


def state(board: Board, name: str) -> str:
    return next(row[1] for row in board.cells() if row[0] == name)


def test_board__events_of_a_recipe__change_its_state() -> None:
    clock = ManualClock()
    board = new_board(("fp32", "int8-cpu"), clock)
    assert [row[0] for row in board.cells()] == ["resolve", "export", "fp32", "int8-cpu", "publish"]
    assert state(board, "int8-cpu") == "waiting"
    board.event(told(Stage.VARIANT, StepStatus.STARTED, "int8-cpu"))
    assert state(board, "int8-cpu") == "building"
    board.event(step(0, 36))
    assert state(board, "int8-cpu") == "sensitivity 0/36"
    clock.advance(21)
    board.event(step(12, 36))
    assert state(board, "int8-cpu") == "sensitivity 12/36, 0:42 left"
    clock.advance(44)
    found = variant("int8-cpu", ms=0.25)
    board.event(StepEvent(Stage.VARIANT, StepStatus.FINISHED, "int8-cpu", variant=found))
    clock.advance(100)
    row = next(row for row in board.cells() if row[0] == "int8-cpu")
    assert row[1] == "measured"
    assert row[2 + number_columns(()).index("Size>")] == "1.0 kB"
    assert row[-1] == "1:05"


def test_board__new_phase__counts_from_zero() -> None:
    clock = ManualClock()
    board = new_board(("int8-cpu",), clock)
    for event in (step(0, 2, "calibration"), step(2, 2, "calibration")):
        board.event(event)
        clock.advance(10)
    board.event(step(0, 4))
    clock.advance(3)
    board.event(step(1, 4))
    assert state(board, "int8-cpu") == "sensitivity 1/4, 0:09 left"


def test_board__failed_or_cached_step__shows_it() -> None:
    board = new_board(("int4",), ManualClock())
    board.event(told(Stage.EXPORT, StepStatus.CACHED))
    board.event(
        StepEvent(Stage.VARIANT, StepStatus.FAILED, "int4", "no kernel", variant=failed("int4"))
    )
    assert (state(board, "export"), state(board, "int4")) == ("cached", "failed")


def test_time_left__resumed_work__ignores_pieces_done_before() -> None:
    assert Piecework("search", 0.0, first=30, done=33, total=36).left(6.0) == 6.0
    assert Piecework("search", 0.0, first=30, done=30, total=36).left(6.0) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (750, "12:30"), (3723, "1:02:03")]
)
def test_clock_time__seconds__are_written_as_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_board__empty_columns__are_not_drawn() -> None:
    board = new_board(("fp32",), ManualClock())
    board.event(told(Stage.RESOLVE, StepStatus.STARTED))
    file = io.StringIO()
    Console(file=file, width=100).print(board)
    assert file.getvalue().split()[:3] == ["Step", "State", "Time"]
    assert "waiting" in file.getvalue()


def test_progress__to_a_pipe__is_one_line_per_finished_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watching(CommandOutput(as_json=False)) as progress:
        assert isinstance(progress, Lines)
        progress.event(told(Stage.VARIANT, StepStatus.STARTED, "fp32"))
        progress.event(step(1, 2))
        progress.event(told(Stage.VARIANT, StepStatus.FINISHED, "fp32"))
    with watching(CommandOutput(as_json=True)) as progress:
        progress.event(told(Stage.VARIANT, StepStatus.FINISHED, "fp32"))
    assert capsys.readouterr() == ("", "  fp32 finished\n")


def test_variants_table__each_verdict__has_numbers_or_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    variants = [variant("fp32"), variant("int8-cpu", drop=0.02, bound=0.004), failed("int4")]
    variants.append(not_applicable("int8-dynamic"))
    records = [variant_record(item) for item in choose(variants, Goals())]
    variants_table(CommandOutput(as_json=False), records)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:3] == ["Variant", "Verdict", "Score"]
    # The smallest and the largest batch size of the model's own.
    assert printed[0].split()[-3:] == ["ms@1", "ms@8", "Size"]
    assert printed[2].split()[:5] == ["int8-cpu", "rejected", "0.8800", "+0.0200", "+0.0240"]
    assert printed[3].split()[:3] == ["int4", "failed", "-"]
    assert printed[4].startswith("int8-dynamic  not applicable")
    assert printed[-2] == "  int4: failed: no kernel"
    assert printed[-1].startswith("  int8-dynamic: not applicable: the model has no MatMul")
    models_table(CommandOutput(as_json=False), {"small": records})
    assert "small" in capsys.readouterr().out


def test_variants_table__columns_without_numbers__are_left_out() -> None:
    record = variant_record(choose([variant("fp32", drop=None, timed=False)], Goals())[0])
    columns, rows = filled(number_columns((1,)), [number_cells(record["measured"], (1,))])
    assert columns == ["Agree>", "Cosine>", "Size>"]
    assert [len(each) for each in rows] == [len(columns)]


def test_stdout__prints_of_python_and_c_code__go_to_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with only_results_on_stdout():
        print("chatter")
        os.write(1, b"of compiled code\n")
    print("the result")
    found = capfd.readouterr()
    assert found.out == "the result\n"
    assert sorted(found.err.splitlines()) == ["chatter", "of compiled code"]


def test_stdout__after_an_error__is_restored(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="odd"), only_results_on_stdout():
        raise ValueError("odd")
    os.write(1, b"back\n")
    assert capfd.readouterr().out == "back\n"
