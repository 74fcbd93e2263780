"""The values of a deployment and a rollout: slots, revisions, the spec, settings, outcomes.

All are frozen pydantic dataclasses that survive a round trip through JSON, because the journal and
the daemon's command line carry nothing else. Invalid values raise INVALID_INPUT.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.dataclasses import dataclass

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.rollout.domain.kubernetes_target import KubernetesTarget
from mlctl.rollout.domain.statistics.scores import ProvedScore

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
REPRESENTATIVE_WEIGHT = 50
MAX_REPLICAS = 64
LOOPBACK = "127.0.0.1"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Percent = Annotated[int, Field(ge=0, le=100)]
LatencyMs = Annotated[float, Field(ge=1, le=60_000)]
Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


@dataclass(frozen=True, slots=True)
class Checked:
    """A frozen value that pydantic validates; what does not fit raises INVALID_INPUT."""

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as error:
            raise _invalid(_sentence(error, tuple(cls.__dataclass_fields__))) from None


class Slot(StrEnum):
    """The two slots of a deployment. Either may be live; the candidate takes the other."""

    BLUE = "blue"
    GREEN = "green"

    @property
    def other(self) -> Slot:
        return Slot.GREEN if self is Slot.BLUE else Slot.BLUE


def replica_role(slot: Slot, index: int) -> str:
    """The name of a replica's process: "blue/0"."""
    return f"{slot}/{index}"


class Outcome(StrEnum):
    """How a rollout ended.

    All traffic is on its candidate after PROMOTED (the gates were kept, or an operator skipped
    them) and RESTORED (an operator returned to the previous version).
    """

    PROMOTED = "promoted"
    RESTORED = "restored"
    ROLLED_BACK = "rolled_back"
    INCONCLUSIVE = "inconclusive"

    @property
    def replaces_live(self) -> bool:
        """Whether the candidate is the live revision from then on."""
        return self in (Outcome.PROMOTED, Outcome.RESTORED)


class OnInconclusive(StrEnum):
    """What follows when the deadline comes before the proof; never a promotion."""

    ROLLBACK = "rollback"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Revision(Checked):
    """What a deployment serves: a Bento and the registered model version inside it.

    `agreement` is the share of rows with the source model's top class that optimize proved;
    None where there are no classes. A Bento with several models has their digests in `models`;
    all else but `digest`, which stands for all of them, is then that of the first. `interface`
    is its interface as in `mlctl.bundle.interface`; empty where it is not recorded.
    `scores` are those that optimize proved of its models on labelled rows.
    """

    bento: Annotated[str, Field(pattern=r"^[^-]")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    model: str
    version: str
    source: str
    agreement: float | None = None
    models: tuple[str, ...] = ()
    interface: dict[str, Any] = field(default_factory=dict, hash=False)
    scores: tuple[ProvedScore, ...] = ()

    @property
    def name(self) -> str:
        """The served model's name: the Bento's name."""
        return self.bento.partition(":")[0]

    @property
    def digests(self) -> tuple[str, ...]:
        """Those of its models, by which their answers and the registry know them."""
        return self.models or (self.digest,)

    @property
    def recorded(self) -> frozenset[str]:
        """Those that recorded answers may bear: the first model's, or a pipeline's, its Bento's."""
        return frozenset((self.digests[0], self.digest))


@dataclass(frozen=True, slots=True)
class PreviousRevision:
    """The revision that a promotion replaced; it sits in the slot that is not live.

    `warm_until` is the wall-clock second until which its `replicas` keep running, 0 once they were
    stopped. `promotion` is the id of the rollout that replaced it.
    """

    revision: Revision
    warm_until: float
    replicas: int
    promotion: int


@dataclass(frozen=True, slots=True)
class RolloutSpec(Checked):
    """The steps of a rollout and what the candidate must prove.

    Attributes:
        steps: percent of traffic on the candidate, rising, ending at 100.
        step_seconds: minimum time at each step.
        min_requests: minimum candidate requests at each step.
        max_p99_ms: P(latency > this) must be at most 1 %; None leaves latency to the
            comparison with the live revision.
        max_error_rate: P(failed) must be at most this.
        alpha: level of the evidence, for a rollback and for the proof before the promotion.
        burst_seconds: faults that last up to this long count as one event.
        margin: how much worse than the live revision is still called equal: this share of
            its latency, and this share of `max_error_rate`.
        warmup_seconds: the first seconds of exposure, and of the shadow, that are recorded but
            not judged.
        bake_seconds: minimum time at 100 % before the rollout is promoted.
        keep_previous_seconds: how long after the promotion the previous revision keeps running
            without traffic, so that a rollback takes effect at once; 0 stops it.
        deadline_seconds: a rollout not proved so long after the candidate became ready ends as
            inconclusive, or is paused.
        on_inconclusive: `rollback` or `pause`.
        shadow_percent: share of the live traffic that is copied to the candidate before any
            user gets its answers; 0 leaves the shadow out.
        shadow_seconds: minimum time of the shadow.
        shadow_requests: minimum copies in it.
        shadow_wait_seconds: longest time in it for lack of answers to compare; None to wait until
            the deadline.
        mirror_percent: share that goes on being copied during the steps, so that the
            predictions stay under comparison.
        allow_low_weight_proof: let a step below an equal share prove latency as well, although
            its batches are emptier there than they will be.
        alias: write the `@champion` alias after a promotion.
        sticky: a client keeps its slot while the weights allow it.
        breaking: go on although callers of the live revision would miss something.
        worse: go on although the candidate's proved score is clearly worse on the same data.
        max_p50_ms: P(latency > this) must be at most 50 %; None for no such limit.
        max_ttft_ms: of generated answers at most 5 % may have their first token later than this;
            None for no such limit.
        max_tpot_ms: at most 5 % of them may take longer for each further token; None likewise.
        max_disagreement: P(answers differ from live's) must be at most this; None to report it
            only. max_psi: the outputs' population stability index beyond which nothing advances.
        tolerance: two answers that are no class scores agree within this share of their size.
        min_accuracy: minimum share of the labelled requests (`mlctl feedback`) that are answered
            right; None to report it only. max_label_error: distance up to which a number is right
            by its label; None for `tolerance`.
        notifications: URLs to which this rollout's notices are sent, besides the deployment's
            webhooks.
    """

    steps: Annotated[tuple[int, ...], Field(min_length=1)] = (1, 5, 25, 50, 100)
    step_seconds: Seconds = 30.0
    min_requests: Annotated[int, Field(ge=1)] = 5
    max_p99_ms: LatencyMs | None = None
    max_error_rate: Share = 0.01
    alpha: Share = 0.05
    margin: Annotated[float, Field(ge=0, le=10)] = 0.25
    warmup_seconds: Seconds = 1.0
    burst_seconds: PositiveSeconds = 5.0
    bake_seconds: Seconds = 300.0
    keep_previous_seconds: Seconds = 3600.0
    deadline_seconds: PositiveSeconds = 3600.0
    on_inconclusive: OnInconclusive = OnInconclusive.ROLLBACK
    shadow_percent: Percent = 0
    shadow_seconds: Seconds = 10.0
    shadow_requests: Annotated[int, Field(ge=1)] = 50
    shadow_wait_seconds: PositiveSeconds | None = None
    mirror_percent: Percent = 0
    allow_low_weight_proof: bool = False
    alias: bool = True
    sticky: bool = False
    max_p50_ms: LatencyMs | None = None
    max_ttft_ms: LatencyMs | None = None
    max_tpot_ms: LatencyMs | None = None
    max_disagreement: Share | None = None
    max_psi: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    breaking: bool = False
    worse: bool = False
    min_accuracy: Share | None = None
    max_label_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    notifications: tuple[str, ...] = ()

    @field_validator("steps")
    @classmethod
    def _rising(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        rising = all(low < high for low, high in itertools.pairwise(steps))
        if not (rising and steps[0] >= 1 and steps[-1] == 100):
            raise ValueError("give rising percentages from 1 to 100, 100 the last")
        return steps

    @field_validator("notifications")
    @classmethod
    def _urls(cls, notifications: tuple[str, ...]) -> tuple[str, ...]:
        return _webhook_urls("notifications", notifications)

    @property
    def shadows(self) -> bool:
        """Whether the candidate's answers are compared with live's on copied requests."""
        return self.shadow_percent > 0 or self.mirror_percent > 0

    @property
    def max_wrong(self) -> float | None:
        """The share of labelled requests that may be answered wrong; None for no such limit."""
        return None if self.min_accuracy is None else round(1.0 - self.min_accuracy, 9)

    def without_shadow(self) -> Self:
        """The same for a proxy that cannot copy requests."""
        return replace(self, shadow_percent=0, mirror_percent=0)

    def representative(self, weight: int) -> bool:
        """Return whether latency seen at this percent of the traffic can be a proof.

        A candidate with a small share has emptier batches and queues than it will have, so it
        can show harm there, but no proof.
        """
        return self.allow_low_weight_proof or weight >= REPRESENTATIVE_WEIGHT

    @property
    def representative_seconds(self) -> float:
        """The minimum time at a share of the traffic that can be a proof."""
        steps = sum(self.representative(weight) for weight in self.steps[:-1])
        return steps * self.step_seconds + self.bake_seconds

    @property
    def times_answers(self) -> bool:
        """Whether the candidate is judged by the times of generated answers."""
        return (self.max_ttft_ms, self.max_tpot_ms) != (None, None)

    def require_provable(self) -> None:
        """INVALID_INPUT if latency is limited and no step before the last can prove it."""
        limits = (self.max_p50_ms, self.max_p99_ms, self.max_ttft_ms, self.max_tpot_ms)
        limited = any(limit is not None for limit in limits)
        if limited and len(self.steps) > 1 and not self.representative(self.steps[-2]):
            raise MlctlError(
                ErrorCode.INVALID_INPUT,
                f"the steps {','.join(map(str, self.steps))} have none from "
                f"{REPRESENTATIVE_WEIGHT} to 99 %: "
                "latency seen at a smaller share flatters the candidate and proves nothing",
                f"Add a step of {REPRESENTATIVE_WEIGHT} %, or accept it as a proof with "
                "--skip-checks.",
            )

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where Envoy listens: `listen` on `host` for clients, `admin` on loopback."""

    listen: int
    admin: int
    host: str = LOOPBACK


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The loopback ports of one Bento process."""

    http: int
    grpc: int


def bento_command() -> tuple[str, ...]:
    """Return the command that serves a Bento; the launcher fills in `{bento}` and `{port}`."""
    return (
        *(sys.executable, "-m", "bentoml", "serve", "{bento}"),
        *("--host", LOOPBACK, "--port", "{port}"),
    )


def champion_command() -> tuple[str, ...]:
    """Return the command that writes the alias, with the revision as JSON on standard input."""
    return (sys.executable, "-P", "-m", "mlctl.rollout.daemon.reporting.alias")


def runs_command() -> tuple[str, ...]:
    """Return the command that reports rollouts to MLflow; the deployment's name is appended."""
    return (sys.executable, "-P", "-m", "mlctl.rollout.daemon.reporting.runs")


@dataclass(frozen=True, slots=True)
class DeploymentSettings(Checked):
    """How a deployment's daemon works; kept with the deployment.

    Attributes:
        tick_seconds: time between two ticks. ready_seconds: limit for a Bento to become ready.
        max_unwatched_seconds: a rollout that no daemon watched for longer is rolled back.
        drain_seconds: limit for requests in flight before an idle slot is stopped.
        request_seconds: the proxy ends a request with 504 after this time; stream_idle_seconds: it
            ends a streaming response after this time without a byte.
        tls: the PEM files of the proxy's listener: chain, key, and the CA of callers that must show
            a certificate; empty for plain HTTP.
        replicas: Bento processes per slot; 0 only while scaled to zero. workers: servers
            within each.
        min_replicas, max_replicas: bounds of `replicas` under autoscaling; None for none.
        idle_seconds: time without a request before the last replica is stopped, where
            `min_replicas` is 0.
        target_queue_rows: waiting rows per worker above which replicas are added.
        cooldown_seconds: time of low load before one replica is stopped.
        hung_seconds: a Bento that gives no sign of life for so long is killed.
        serve, champion: command templates.
        kubernetes: the route and the Services of a deployment in a cluster; None on this machine.
        runs: the command that reports rollouts to MLflow; empty for none.
        metrics_port: where the daemon's metrics are, on loopback; None for nowhere.
        webhooks: where notices are sent. webhook_secret: the file with which they are signed.
        record_share: share of the requests whose predictions are recorded at all times, for
            labels that come later. keep_predictions_seconds: how long they are kept.
        token_file: the tokens that its callers show; None to take the environment's.
        signer: the public key that its bundles must be signed with; None to take the
            environment's.
        server: the variables of its servers, without the passwords in them; server_secrets: the
            file of those that have one.
        bento_home, tracking_uri: the Bento store and the registry that the deployment was
            started with, for every later start of its daemon; None to take the environment's.
    """

    tick_seconds: PositiveSeconds = 0.5
    ready_seconds: PositiveSeconds = 120.0
    max_unwatched_seconds: PositiveSeconds = 30.0
    drain_seconds: Seconds = 10.0
    request_seconds: PositiveSeconds = 60.0
    stream_idle_seconds: PositiveSeconds = 300.0
    tls: tuple[str, ...] = ()
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    workers: Replicas = 1
    min_replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] | None = None
    max_replicas: Replicas | None = None
    idle_seconds: PositiveSeconds = 300.0
    target_queue_rows: Annotated[int, Field(ge=1)] = 20
    cooldown_seconds: PositiveSeconds = 60.0
    hung_seconds: PositiveSeconds = 30.0
    serve: tuple[str, ...] = field(default_factory=bento_command)
    champion: tuple[str, ...] = field(default_factory=champion_command)
    runs: tuple[str, ...] = field(default_factory=runs_command)
    metrics_port: int | None = None
    webhooks: tuple[str, ...] = ()
    webhook_secret: str | None = None
    record_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    keep_predictions_seconds: PositiveSeconds = 7 * 86_400.0
    token_file: str | None = None
    signer: str | None = None
    server: Mapping[str, str] = field(default_factory=dict)
    server_secrets: str | None = None
    bento_home: str | None = None
    tracking_uri: str | None = None
    kubernetes: KubernetesTarget | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.tls) not in (0, 2, 3):
            raise _invalid("tls names a certificate without its key: give both")
        _webhook_urls("webhooks", self.webhooks)
        low, high = self.min_replicas, self.max_replicas
        if (low is None) != (high is None):
            raise _invalid("min_replicas, max_replicas: give both or none")
        low, high = (1, MAX_REPLICAS) if low is None or high is None else (low, high)
        if low > high:
            raise _invalid(f"min_replicas = {low} is above max_replicas = {high}")
        if not low <= self.replicas <= high:
            raise _invalid(f"replicas = {self.replicas} is out of range: give {low} to {high}")
        return self

    @property
    def autoscaled(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.max_replicas is not None

    @property
    def sleeps(self) -> bool:
        """Whether all replicas stop without traffic."""
        return self.min_replicas == 0


def _webhook_urls(field_name: str, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return `urls`; INVALID_INPUT does not repeat one, because its path is often a secret."""
    if not all(re.fullmatch(r"https?://[^/\s]+\S*", url) for url in urls):
        raise _invalid(f"{field_name}: give URLs with http or https")
    return urls


def check_name(name: str) -> str:
    """Return a deployment's name, or raise INVALID_INPUT: it becomes a directory."""
    if not _NAME.fullmatch(name):
        raise _invalid(
            f"deployment name {name!r} is not 1 to 63 lower case letters, digits and inner hyphens"
        )
    return name


def _sentence(error: ValidationError, fields: tuple[str, ...]) -> str:
    """Return the first fault with the field's name and value."""
    fault = error.errors(include_url=False, include_context=False)[0]
    # An argument given by position is located by its number.
    name = ".".join(str(fields[at] if isinstance(at, int) else at) for at in fault["loc"][:1])
    message = fault["msg"].removeprefix("Value error, ")
    return f"{name} = {fault['input']!r} is out of range: {message[0].lower()}{message[1:]}"


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
