"""MLflow's store and the translation of its failures.

Without MLFLOW_TRACKING_URI the store is sqlite under `$MLCTL_HOME`, with an absolute
artifact root, so that nothing is written to the current directory. Telemetry and pickle
loading are off unless enabled.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.files import exclusive
from mlctl.core.home import mlctl_home, state_dir
from mlctl.core.os_errors import is_disk_full
from mlctl.core.quiet import first_line, quiet
from mlctl.core.text import printable

TRACKING_VARIABLE = "MLFLOW_TRACKING_URI"
PICKLE_VARIABLE = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
EXPERIMENT = "mlctl"

_REMOTE_SCHEMES = ("http", "https", "databricks", "uc")
# Report an unreachable server in seconds; MLflow's default is minutes.
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "GIT_PYTHON_REFRESH": "quiet",
    PICKLE_VARIABLE: "false",
}


def _default_store() -> Path:
    return mlctl_home() / "mlflow.db"


def tracking_uri() -> str:
    """Return MLFLOW_TRACKING_URI if set, else the sqlite store under the state directory."""
    return os.environ.get(TRACKING_VARIABLE) or f"sqlite:///{_default_store()}"


def registry_address() -> str:
    """Return the tracking URI without the user, password and options that it may hold."""
    scheme, separator, rest = tracking_uri().partition("://")
    if scheme not in ("sqlite", "file"):  # a path may hold these characters
        rest = rest.partition("?")[0].rpartition("@")[2]
    return printable(f"{scheme}{separator}{rest}")


def missing_model_hint() -> str:
    """Return what to do about a model that is not in this registry.

    MLflow itself logs to `mlflow.db` in the current folder if TRACKING_VARIABLE is not set.
    """
    logged = Path("mlflow.db").resolve()
    if (
        not os.environ.get(TRACKING_VARIABLE)
        and logged.exists()
        and logged != _default_store().resolve()
    ):
        return (
            "MLflow logged to mlflow.db in this folder: "
            f"export {TRACKING_VARIABLE}=sqlite:///$PWD/mlflow.db"
        )
    return f"If it was logged to another registry, set {TRACKING_VARIABLE} to that one."


def configure_tracking(experiment: str = EXPERIMENT) -> str:
    """Point MLflow at the store, make `experiment` its active one, and return the URI.

    Later runs store their artifacts under an absolute path. Processes take turns: two that
    create the tables of a new store at once would break it. REGISTRY_UNAVAILABLE if the
    store does not answer.
    """
    uri = tracking_uri()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with exclusive(state_dir("locks") / "registry"), quiet(), registry_errors():
        import mlflow

        _set_uri(uri)
        _ensure_experiment(uri, experiment)
        mlflow.set_experiment(experiment)
    return uri


@contextlib.contextmanager
def registry_errors() -> Iterator[None]:
    """Translate errors of MLflow and its HTTP and SQL layers into REGISTRY_UNAVAILABLE."""
    try:
        yield
    except MlctlError:
        raise
    except Exception as error:
        if not _is_store_error(error):
            raise
        if is_disk_full(error):
            raise MlctlError(ErrorCode.DISK_FULL, "there is no space left") from error
        address = registry_address()
        reason = printable(first_line(error).replace(tracking_uri(), address))
        message = f"the MLflow registry at {address} failed: {reason}"
        if _is_unreachable(error):
            message = f"no MLflow registry answers at {address}"
        raise MlctlError(ErrorCode.REGISTRY_UNAVAILABLE, message) from error


@contextlib.contextmanager
def pickle_loading(*, allowed: bool) -> Iterator[None]:
    """Set MLflow's own guard while a model is loaded, overriding the environment."""
    before = os.environ.get(PICKLE_VARIABLE)
    os.environ[PICKLE_VARIABLE] = "true" if allowed else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PICKLE_VARIABLE]
        else:
            os.environ[PICKLE_VARIABLE] = before


def _set_uri(uri: str) -> None:
    """Set MLflow's URI without the environment variable that it sets for child processes."""
    import mlflow

    before = os.environ.get(TRACKING_VARIABLE)
    mlflow.set_tracking_uri(uri)
    if before is None:
        os.environ.pop(TRACKING_VARIABLE, None)


def _ensure_experiment(uri: str, name: str) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    if mlflow.get_experiment_by_name(name) is not None:
        return
    local = uri.partition(":")[0] not in _REMOTE_SCHEMES
    location = state_dir("mlartifacts").as_uri() if local else None
    try:
        mlflow.create_experiment(name, artifact_location=location)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _is_store_error(error: Exception) -> bool:
    import requests
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException

    store_errors = (MlflowException, requests.RequestException, sqlalchemy.exc.SQLAlchemyError)
    return isinstance(error, store_errors)


def _is_unreachable(error: BaseException) -> bool:
    """Return whether the server did not answer; MLflow chains its error to that of requests."""
    import requests

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, requests.ConnectionError | requests.Timeout):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
