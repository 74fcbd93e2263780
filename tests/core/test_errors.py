import pickle
import re
from pathlib import Path

import pytest

from docs.generate import error_table_markdown
from mlctl.core.errors import ERROR_TABLE, ErrorCode, MlctlError
from mlctl.services.model.run_errors import ModelRunError

GRPC_STATUSES = {
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "UNIMPLEMENTED", "INTERNAL",
    "UNAVAILABLE", "DATA_LOSS", "PERMISSION_DENIED", "UNAUTHENTICATED",
}  # fmt: skip


@pytest.mark.parametrize("code", ErrorCode)
def test_error_table__each_code__has_a_complete_row(code: ErrorCode) -> None:
    spec = ERROR_TABLE[code]
    assert spec.meaning.endswith(".")
    assert spec.hint.endswith((".", ")."))
    assert 0 < spec.exit_code < 256
    assert 400 <= spec.http < 600
    assert spec.grpc in GRPC_STATUSES
    assert re.fullmatch(r"[a-z_]+", code.value)


def test_error__no_hint_given__has_the_tables() -> None:
    assert MlctlError(ErrorCode.NOT_FOUND, "no x").hint == ERROR_TABLE[ErrorCode.NOT_FOUND].hint
    assert MlctlError(ErrorCode.NOT_FOUND, "no x", "try y").hint == "try y"


def test_error_document__any_error__has_code_message_and_hint() -> None:
    assert MlctlError(ErrorCode.PORT_TAKEN, "port 80 is taken", "use 81").as_dict() == {
        "code": "port_taken",
        "message": "port 80 is taken",
        "hint": "use 81",
        "exit_code": 8,
    }


def test_error__pickled__is_the_same_error() -> None:
    for error in (MlctlError(ErrorCode.NOT_FOUND, "no x", "try y"), ModelRunError("it failed")):
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), found.as_dict()) == (MlctlError, error.as_dict())


def test_error_table__published_page__is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "errors.md"
    assert page.read_text() == error_table_markdown(), "run `python -m docs.generate`"
