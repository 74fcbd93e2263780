import os
from dataclasses import replace

import pytest

from mlctl.cli.commands.optimize import StepDisplay
from mlctl.cli.output import CommandOutput
from mlctl.cli.progress import clock_time, only_results_on_stdout
from mlctl.cli.variants import filled, models_table, number_cells, number_columns, variants_table
from mlctl.optimize.events import Stage, StepEvent, StepStatus
from mlctl.optimize.recipes.base import Details
from mlctl.optimize.result.evidence import variant_record
from mlctl.optimize.variants.choice import choose
from mlctl.optimize.variants.goals import Goals
from mlctl.optimize.variants.variant import Variant
from tests.optimize.builders import failed, not_applicable, variant


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (7, "0:07"), (750, "12:30"), (3723, "1:02:03")]
)
def test_clock_time__seconds__are_written_as_a_clock(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_progress__steps__has_a_status_and_a_line_for_each_finished_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    display = StepDisplay(CommandOutput(as_json=False), shown.append)
    display.event(StepEvent(Stage.VARIANT, StepStatus.STARTED, "fp32"))
    display.event(StepEvent(Stage.VARIANT, StepStatus.WORKING, "fp32", "sensitivity", 1, 2))
    display.event(StepEvent(Stage.VARIANT, StepStatus.FINISHED, "fp32"))
    display.event(StepEvent(Stage.VARIANT, StepStatus.FAILED, "int4", "no kernel"))
    display.event(StepEvent(Stage.VARIANT, StepStatus.NOT_APPLICABLE, "int8", "no MatMul"))
    display.event(StepEvent(Stage.VARIANT, StepStatus.SKIPPED, "fp16", "no time"))
    assert shown == ["fp32 ...", "fp32: sensitivity 1/2"]
    printed = "  fp32 finished\n  int4 failed\n  fp16 skipped: no time\n"
    assert capsys.readouterr() == ("", printed)
    StepDisplay(CommandOutput(as_json=True), shown.append).event(
        StepEvent(Stage.VARIANT, StepStatus.FINISHED, "fp32")
    )
    assert capsys.readouterr() == ("", "")


def test_variants_table__each_verdict__has_numbers_or_only_a_reason(
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
    assert printed[3].startswith("  fp32: chosen")
    assert printed[-2] == "  int4: failed: no kernel"
    assert printed[-1].startswith("  int8-dynamic: not applicable: the model has no MatMul")
    models_table(CommandOutput(as_json=False), {"small": records})
    assert "small" in capsys.readouterr().out


def lines_of(variants: list[Variant], capsys: pytest.CaptureFixture[str]) -> list[str]:
    records = [variant_record(item) for item in choose(variants, Goals())]
    variants_table(CommandOutput(as_json=False), records)
    return capsys.readouterr().out.splitlines()


def test_variants_table__latencies_that_are_missing__are_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "the rows of a batch affect each other, so requests are not batched."
    some = lines_of([variant("fp32"), variant("int8-dynamic", batched=False)], capsys)
    assert some[3] == f"  Timed for single rows only (int8-dynamic): {why}"
    alone = lines_of([variant("fp32", batched=False), failed("int4")], capsys)
    assert alone[2] == f"  Timed for single rows only: {why}"
    untimed = lines_of([variant("fp32", timed=False, batched=False)], capsys)
    assert untimed[2] == "  No latencies: the target is not on this machine."
    assert lines_of([variant("fp32"), failed("int4")], capsys)[2].startswith("  fp32: chosen")
    assert lines_of([failed("int4")], capsys)[1:] == ["  int4: failed: no kernel"]


def test_variants_table__remark_of_a_recipe__is_below_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    item = variant("int8-static")
    assert item.measured is not None
    details = Details(remark="the weights have 8 bits")
    item = replace(item, measured=replace(item.measured, details=details))
    printed = lines_of([variant("fp32"), item], capsys)
    assert printed[-2].startswith("  int8-static: ")
    assert printed[-1] == "    the weights have 8 bits"


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
