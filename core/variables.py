"""The `MLCTL_*` variables besides the server's settings, and a check for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

PREFIX = "MLCTL_"
# Variables that no settings class reads, with their meaning.
OTHER_VARIABLES = {
    "MLCTL_HOME": "folder of all state; unset, the platform's user data directory",
    "MLCTL_DEBUG": "1: print tracebacks",
    "MLCTL_KEY_PASSWORD": "password of the private key for `mlctl sign`",
    "MLCTL_WEBHOOKS": "webhooks of `mlctl up`, separated by spaces",
    "MLCTL_WEBHOOK_SECRET": "secret that signs them",
    "MLCTL_WEBHOOK_SECRET_FILE": "file of that secret",
    "MLCTL_WEBHOOK_TOKEN": "bearer token of a stream's webhook",
    "MLCTL_REDIS_USERNAME": "user of Redis streams",
    "MLCTL_REDIS_PASSWORD": "password of Redis streams",
    "MLCTL_SCHEMA_REGISTRY_AUTH": "`USER:PASSWORD` of a schema registry",
}
# mlctl sets these: for its own processes, and in its images.
_INTERNAL = frozenset(
    {"MLCTL_COUNTS_DIR", "MLCTL_IMAGE_BENTO", "MLCTL_PROCESS", "MLCTL_SUPERVISOR_PID"}
)
# The rest of the name is a property of librdkafka: MLCTL_KAFKA_SASL_PASSWORD is sasl.password.
_FREE_PREFIX = "MLCTL_KAFKA_"
_SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|AUTH)$")
_USER = re.compile(r"//[^@\s]*@")
_PARAMETER = re.compile(r"([?&]password=)[^&\s]+")


def unknown_variables(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Return a sentence for each `MLCTL_*` variable that nothing reads, with the nearest name.

    `settings` are the field names of the server's settings.
    """
    known = {*OTHER_VARIABLES, *_INTERNAL} | {PREFIX + name.upper() for name in settings}
    return [
        _sentence(name, known)
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not name.startswith(_FREE_PREFIX)
    ]


def shown_value(name: str, value: str) -> str:
    """Return the value of a variable without what is secret in it."""
    if _SECRET.search(name):
        return "(set)"
    return _PARAMETER.sub(r"\1***", _USER.sub("//***@", value))


def _sentence(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not a setting of mlctl and has no effect{suggestion}"
