"""Functions that a user names as `package.module:function`, with errors that name the mistake."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from bundle.errors import ErrorCode, MlctlError
from registry.names import suggestion
from registry.quiet import first_line

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_function_name(text: str) -> bool:
    """Whether `text` has the form `package.module:function`."""
    return _NAME.fullmatch(text) is not None


def load_function(text: str) -> Callable[..., Any]:
    """Import the function that `text` names, looking in the working directory too.

    INVALID_INPUT says whether the module, its import or the function is at fault.
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
                f"there is no module {error.name!r} to import {text!r} from",
                "Run mlctl in the folder that holds the module, or install its package.",
            ) from error
    if not hasattr(module, name):
        public = [known for known in dir(module) if not known.startswith("_")]
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
    """Run code of the user's: its prints go to stderr, its errors become INVALID_INPUT.

    stdout is kept for the one document of `--json`.
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
