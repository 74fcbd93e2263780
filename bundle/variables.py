"""The `MLCTL_*` variables besides the server's settings, and a check for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

PREFIX = "MLCTL_"
# Variables that no settings class reads. The last four are set by mlctl: for its own processes, and
# in its images.
OTHER_VARIABLES = frozenset(
    {
        "MLCTL_DEBUG", "MLCTL_HOME", "MLCTL_KEY_PASSWORD", "MLCTL_REDIS_PASSWORD",
        "MLCTL_REDIS_USERNAME", "MLCTL_SCHEMA_REGISTRY_AUTH", "MLCTL_WEBHOOKS",
        "MLCTL_WEBHOOK_SECRET", "MLCTL_WEBHOOK_SECRET_FILE", "MLCTL_WEBHOOK_TOKEN",
        "MLCTL_COUNTS_DIR", "MLCTL_IMAGE_BENTO", "MLCTL_PROCESS", "MLCTL_SUPERVISOR_PID",
    }
)  # fmt: skip
# The rest of the name is a property of librdkafka: MLCTL_KAFKA_SASL_PASSWORD is sasl.password.
_FREE_PREFIX = "MLCTL_KAFKA_"
_SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|AUTH)$")
_USER = re.compile(r"//[^/@\s]*@")


def unknown_variables(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Return a sentence for each `MLCTL_*` variable that nothing reads, with the nearest name.

    `settings` are the field names of the server's settings.
    """
    known = OTHER_VARIABLES | {PREFIX + name.upper() for name in settings}
    return [
        _sentence(name, known)
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not name.startswith(_FREE_PREFIX)
    ]


def shown_value(name: str, value: str) -> str:
    """Return the value of a variable without what is secret in it."""
    return "(set)" if _SECRET.search(name) else _USER.sub("//***@", value)


def _sentence(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not a setting of mlctl and has no effect{suggestion}"
