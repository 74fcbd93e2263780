"""A batch job of a language model: prompts in Parquet, answers in Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.batch.job import BatchConfig
from mlctl.services.batch.sinks import open_sink
from mlctl.services.generate.options import AnswerOptions
from mlctl.services.generate.scorer import TextScorer
from mlctl.services.model.settings import RuntimeSettings
from tests.support import tables
from tests.support.tiny_llm import ANSWERS

pytestmark = pytest.mark.slow


def write_prompts(path: Path, prompts: list[str]) -> Path:
    column = pa.table({"id": list(range(len(prompts))), "prompt": prompts})
    parquet.write_table(column, path, row_group_size=10)
    return path


def test_job__prompts__are_answered_once_and_bad_ones_are_in_quarantine(
    tiny_llm_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    prompts = [*ANSWERS, "", *ANSWERS, "Count:" * 400]
    source = write_prompts(tmp_path / "in.parquet", prompts)
    out = tmp_path / "out"
    config = BatchConfig(keep=("id",), unit_rows=10, answers=AnswerOptions(max_tokens=40))

    report = tables.score(tiny_llm_bundle, source, open_sink(str(out)), limit="2", config=config)
    again = tables.score(tiny_llm_bundle, source, open_sink(str(out)), limit="2", config=config)

    found = tables.answers(out)
    assert found["text"].to_pylist() == [*ANSWERS.values(), *ANSWERS.values()]
    assert [row["id"] for row in found.to_pylist()] == [*range(9), *range(10, 19)]
    assert set(found["mlctl_digest"].to_pylist()) == {tiny_llm_bundle.digest}
    reasons = [str(row["mlctl_reason"]) for row in tables.quarantine(out)]
    assert "the prompt is empty" in reasons[0]
    assert "maximum context length is 256" in reasons[1]
    assert (report.totals.rows, report.totals.bad, report.rows) == (18, 2, 20)
    assert again.rows == 0


def test_job__sampled_answers__repeat_with_their_seed(
    tiny_llm_bundle: VerifiedBundle, tmp_path: Path
) -> None:
    source = write_prompts(tmp_path / "in.parquet", list(ANSWERS))

    def draw(name: str, seed: int) -> bytes:
        answers = AnswerOptions(max_tokens=12, temperature=3.0, seed=seed)
        config = BatchConfig(keep=("id",), unit_rows=10, answers=answers)
        tables.score(tiny_llm_bundle, source, open_sink(str(tmp_path / name)), config=config)
        (part,) = (tmp_path / name).glob("part-*.parquet")
        return part.read_bytes()

    first, same, other = draw("a", 1), draw("b", 1), draw("c", 2)

    assert first == same != other


def test_job__sampled_answers__each_row_draws_its_own_numbers(
    tiny_llm_bundle: VerifiedBundle,
) -> None:
    scorer = TextScorer(
        tiny_llm_bundle, RuntimeSettings(), AnswerOptions(max_tokens=8, temperature=100.0, seed=1)
    )
    prompts = np.array([prompt.encode() for prompt in ANSWERS], dtype=object)

    together = scorer.run({"prompt": prompts})["text"].tolist()
    alone = [scorer.run({"prompt": prompts[row : row + 1]})["text"][0] for row in range(9)]

    assert len(set(together)) == len(ANSWERS)
    assert alone == together


def test_job__answer_options_of_another_model__are_rejected(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    tables.write_rows(tmp_path / "in.parquet", 5)
    config = BatchConfig(answers=AnswerOptions())

    with pytest.raises(MlctlError, match="is no language model") as caught:
        tables.score(
            bundle, tmp_path / "in.parquet", open_sink(str(tmp_path / "out")), config=config
        )
    assert caught.value.code is ErrorCode.INVALID_INPUT
