"""Functions named as `package.module:function`, with errors that name the mistake."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.quiet import first_line
from mlctl.core.text import suggestion

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_function_name(text: str) -> bool:
    """Return whether `text` has the form `package.module:function`."""
    return _NAME.fullmatch(text) is not None


def load_function(text: str) -> Callable[..., Any]:
    """Import the function that `text` names, also from the working directory.

    INVALID_INPUT names the module, the failed import or the function that is missing.
    """
    module_name, _, name = text.partition(":")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    with user_code(f"importing {module_name!r}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"{text!r} cannot be imported: no module {error.name!r}",
                "Run mlctl in the folder that holds the module, or install its package.",
            ) from error
    if not hasattr(module, name):
        public = [found for found in dir(module) if not found.startswith("_")]
        near = suggestion(name, public, "it has")
        raise MlctlError(
            ErrorCode.INVALID_INPUT, f"module {module_name!r} has no function {name!r}; {near}"
        )
    function: Any = getattr(module, name)
    if not callable(function):
        message = f"{text!r} is of type {type(function).__name__}, expected a function"
        raise MlctlError(ErrorCode.INVALID_INPUT, message)
    return cast(Callable[..., Any], function)


@contextlib.contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Run the user's code: its prints go to stderr, its errors become INVALID_INPUT.

    stdout is reserved for the document of `--json`.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except MlctlError:
        raise
    except (Exception, SystemExit) as error:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{doing} failed: {type(error).__name__}: {first_line(error)}",
            "Call the function by itself to see the whole traceback.",
        ) from error
