"""The plan of a runner: a batch job on a cluster, or a stream's Deployment. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from mlctl.bento.manifests.plan import (
    NetworkAccess,
    ObjectsPlan,
    Scaling,
    invalid,
    require_label,
    require_no_password,
)
from mlctl.core.errors import ERROR_TABLE, ErrorCode
from mlctl.services.batch.locations import scheme_of
from mlctl.services.stream.base import StreamUrl

# The folder of the PersistentVolumeClaim.
DATA_FOLDER = "/data"
_SCHEDULE = re.compile(r"@(yearly|monthly|weekly|daily|hourly)|\S+( \S+){4}")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+", re.ASCII)
# Another run may succeed: an unexpected failure, a service that is away, a full disk.
_RETRIED = {1, 9, 12, 13}
INTERRUPTED = ERROR_TABLE[ErrorCode.INTERRUPTED].exit_code
# Every other run of the same command fails in the same way.
FINAL_EXIT_CODES = tuple(
    sorted({spec.exit_code for spec in ERROR_TABLE.values()} - _RETRIED - {INTERRUPTED})
)
# From the end of the grace of a runner to the end of its process.
_EXIT_SECONDS = 10
# A stream commits the batch that was begun; a broker that is away takes longer.
_STREAM_GRACE_SECONDS = 60
_METRICS_PORT = 9464


class Runner(StrEnum):
    """The runners of an image."""

    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class LagTrigger:
    """KEDA's trigger on the lag of a consumer group: its type and its metadata."""

    kind: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunnerPlan(ObjectsPlan):
    """A runner: `arguments` are those of the image after `batch` or `stream`.

    `grace_seconds` is how long it may take to end. `secret` is a Secret whose keys are environment
    variables, `claim` a PersistentVolumeClaim for DATA_FOLDER, `account` a ServiceAccount, and
    `job_role` the ARN of an IAM role. A
    `schedule` makes a CronJob; `lag` and `scaling` are for a stream, `trigger_auth` is a
    TriggerAuthentication of KEDA. The namespaces and CIDRs of `access` may connect to a stream's
    `metrics_port`.
    """

    # A CronJob's Job has 11 characters more, its pod 6 more, and the limit is 63.
    max_name: ClassVar[int] = 46

    runner: Runner = Runner.BATCH
    arguments: tuple[str, ...] = ()
    grace_seconds: int = _STREAM_GRACE_SECONDS
    secret: str | None = None
    claim: str | None = None
    account: str | None = None
    job_role: str | None = None
    spot: bool = False
    schedule: str | None = None
    scaling: Scaling = field(default_factory=Scaling)
    lag: LagTrigger | None = None
    trigger_auth: str | None = None
    access: NetworkAccess = field(default_factory=NetworkAccess)
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        ObjectsPlan.__post_init__(self)
        for name in (self.secret, self.claim, self.account, self.trigger_auth):
            if name is not None:
                require_label(name, "name of an object")
        if self.job_role is not None and _ROLE.fullmatch(self.job_role) is None:
            raise invalid(
                f"{self.job_role!r} is not the ARN of a role",
                "Write it as arn:aws:iam::ACCOUNT:role/NAME.",
            )
        for argument in self.arguments:
            require_no_password(argument, "an option of the runner")
        if self.schedule is not None and _SCHEDULE.fullmatch(self.schedule) is None:
            raise invalid(
                f"{self.schedule!r} is not a schedule", "Write it as cron does: '0 2 * * *'."
            )
        if not self.image:
            raise invalid("a runner needs the image: --image REGISTRY/NAME@sha256:DIGEST")

    @property
    def job_name(self) -> str:
        """The name of the Job: another one for other content, because a Job cannot be changed."""
        resources = (self.resources.cpu, self.resources.memory, self.resources.gpus)
        pod = (self.spot, self.secret, self.claim, self.account, self.grace_seconds)
        content = (self.image, self.arguments, resources, pod, sorted(self.settings.items()))
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return f"{self.name}-{digest[:8]}"

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of the container."""
        return (self.runner.value, *self.arguments)


def batch_arguments(
    arguments: tuple[str, ...], options: Mapping[str, Any], cpus: int
) -> tuple[str, ...]:
    """Return the arguments of a batch run with one thread for each of the requested CPUs.

    `options` are the parsed arguments. A pod without a CPU limit would start a thread for each core
    of its node.
    """
    if options["threads"] is None and options["executor"] == "local":
        return (*arguments, "--threads", str(cpus))
    return arguments


def with_metrics(plan: RunnerPlan, options: Mapping[str, Any]) -> RunnerPlan:
    """Return the plan of a stream that serves its metrics to the cluster."""
    port = options["metrics_port"] or _METRICS_PORT
    address = ("--metrics-host", "0.0.0.0", "--metrics-port", str(port))  # noqa: S104 - a pod's
    return replace(plan, arguments=(*plan.arguments, *address), metrics_port=port)


def batch_grace(options: Mapping[str, Any]) -> int:
    """Return the seconds that a batch run may take to end after SIGTERM."""
    return math.ceil(float(options["grace"])) + _EXIT_SECONDS


def check_locations(runner: Runner, options: Mapping[str, Any], claim: str | None) -> None:
    """Raise INVALID_INPUT for files that no pod has, and for a run that ends in a Deployment."""
    for option, location in (("--in", options["source"]), ("--out", options["target"])):
        local = location == "-" or scheme_of(location) in {None, "file", "sqlite", "duckdb"}
        path = location.partition("://")[2] or location
        if local and not (claim is not None and path.startswith(f"{DATA_FOLDER}/")):
            raise invalid(
                f"{option} {location}: a pod has no such file",
                f"Name a URL, or a path below {DATA_FOLDER} with --claim.",
            )
    if runner is Runner.STREAM and (options["until_empty"] or options["max_messages"]):
        raise invalid(
            "a Deployment starts a run that ended again",
            "Leave out --until-empty and --max-messages.",
        )


def lag_trigger(options: Mapping[str, Any]) -> LagTrigger:
    """Return the trigger on the lag of the group of a stream with the parsed `options`.

    One replica is for one full batch of waiting messages. INVALID_INPUT for a stream whose lag KEDA
    cannot read.
    """
    source = StreamUrl.parse(options["source"])
    batch = str(options["max_batch"])
    if source.scheme == "kafka":
        return LagTrigger(
            "kafka",
            {
                "bootstrapServers": source.address,
                "consumerGroup": options["group"],
                "topic": source.topic,
                "lagThreshold": batch,
                "activationLagThreshold": "0",
                "offsetResetPolicy": options["start"],
            },
        )
    if source.scheme in {"redis", "rediss"}:
        address, _, database = source.address.rpartition("@")[2].partition("/")
        return LagTrigger(
            "redis-streams",
            {
                "address": address,
                "databaseIndex": database or "0",
                "enableTLS": str(source.scheme == "rediss").lower(),
                "stream": source.topic,
                "consumerGroup": options["group"],
                "lagCount": batch,
                "activationLagCount": "0",
            },
        )
    raise invalid(
        f"--max-replicas: KEDA cannot read the lag of {source.redacted()}",
        "It reads that of Kafka and of Redis Streams.",
    )
