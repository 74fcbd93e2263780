"""The values of a deployment and a rollout: slots, revisions, the spec, settings, outcomes.

Everything here is frozen and goes to JSON and back without loss, because the journal and the
daemon's command line carry nothing else. A value that cannot be right raises INVALID_INPUT.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from bundle.errors import ErrorCode, MlctlError
from rollout.domain.commands import bento_command, champion_command, runs_command
from rollout.domain.kubernetes_target import KubernetesTarget
from rollout.domain.scores import ProvedScore

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
REPRESENTATIVE_WEIGHT = 50
MAX_REPLICAS = 64
IDLE_SECONDS = 300.0
_COUNT = f"give 1 to {MAX_REPLICAS}"


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
    """How a rollout ended; all traffic is on the candidate only after PROMOTED."""

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    INCONCLUSIVE = "inconclusive"
    ABORTED = "aborted"


class OnInconclusive(StrEnum):
    """What follows when the deadline comes before the proof; never a promotion."""

    ROLLBACK = "rollback"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Revision:
    """What a deployment serves: a Bento and the registered model version inside it.

    `agreement` is the share of rows with the source model's top class that optimize proved;
    None where there are no classes. A Bento with several models has their digests in `models`;
    all else but `digest`, which stands for all of them, is then told of the first. `interface`
    is what can be asked of it, as `bundle.interface` has it; empty where that is not known.
    `scores` are those that optimize proved of its models on labelled rows.
    """

    bento: str
    digest: str
    model: str
    version: str
    source: str
    agreement: float | None = None
    models: tuple[str, ...] = ()
    interface: dict[str, Any] = field(default_factory=dict, hash=False)
    scores: tuple[ProvedScore, ...] = ()

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise _invalid(f"digest {self.digest!r} is not 64 hexadecimal digits")
        if not self.bento or self.bento.startswith("-"):
            raise _invalid(f"{self.bento!r} is not a Bento tag")

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
class RolloutSpec:
    """The steps of a rollout and what the candidate must prove.

    Attributes:
        steps: percent of traffic on the candidate, rising, ending at 100.
        step_seconds: minimum time at each step. min_requests: minimum candidate requests at it.
        max_p99_ms: P(latency > this) must be at most 1 %; None leaves latency to the
            comparison with the live revision.
        max_error_rate: P(failed) must be at most this.
        alpha: level of the evidence, for a rollback and for the proof before the promotion.
        burst_seconds: faults that last up to this long count as one event.
        margin: how much worse than the live revision is still called equal: this share of
            its latency, and this share of `max_error_rate`.
        warmup_seconds: the first seconds of exposure, and of the shadow, that are recorded but
            not judged.
        bake_seconds: minimum time at 100 % before the old revision is stopped.
        deadline_seconds: a rollout not proved by then ends as inconclusive, or is paused.
        on_inconclusive: which of the two.
        shadow_percent: share of the live traffic that is copied to the candidate before any
            user gets its answers; 0 leaves this out. shadow_seconds, shadow_requests: the
            least time and copies until its verdict. shadow_wait_seconds: longest time in it for
            lack of answers to compare; None to wait until the deadline.
        mirror_percent: share that goes on being copied during the steps, so that the
            predictions stay under comparison.
        allow_low_weight_proof: let a step below an equal share prove latency as well, although
            its batches are emptier there than they will be.
        alias: write the `@champion` alias after a promotion.
        sticky: a client keeps its slot while the weights allow it.
        breaking: go on although callers of the live revision would miss something.
        max_p50_ms: P(latency > this) must be at most 50 %; None for no such limit.
        max_disagreement: P(answers differ from live's) must be at most this; None to tell it
            only. max_psi: the outputs' population stability index beyond which nothing advances.
        tolerance: two answers that are no class scores agree within this share of their size.
    """

    steps: tuple[int, ...] = (1, 5, 25, 50, 100)
    step_seconds: float = 30.0
    min_requests: int = 5
    max_p99_ms: float | None = None
    max_error_rate: float = 0.01
    alpha: float = 0.05
    margin: float = 0.25
    warmup_seconds: float = 1.0
    burst_seconds: float = 5.0
    bake_seconds: float = 300.0
    deadline_seconds: float = 3600.0
    on_inconclusive: OnInconclusive = OnInconclusive.ROLLBACK
    shadow_percent: int = 0
    shadow_seconds: float = 10.0
    shadow_requests: int = 50
    shadow_wait_seconds: float | None = None
    mirror_percent: int = 0
    allow_low_weight_proof: bool = False
    alias: bool = True
    sticky: bool = False
    max_p50_ms: float | None = None
    max_disagreement: float | None = None
    max_psi: float = 0.2
    tolerance: float = 0.01
    breaking: bool = False

    def __post_init__(self) -> None:
        steps = self.steps
        rising = all(low < high for low, high in itertools.pairwise(steps))
        in_order = bool(steps) and steps[0] >= 1 and steps[-1] == 100 and rising
        _require(in_order, "steps", steps, "give rising percentages from 1 to 100, 100 the last")
        self._check_phases()
        for name in ("step_seconds", "warmup_seconds", "bake_seconds", "shadow_seconds"):
            _require_seconds(name, getattr(self, name))
        _require_positive("deadline_seconds", self.deadline_seconds)
        _require_positive("burst_seconds", self.burst_seconds)
        _require(self.min_requests >= 1, "min_requests", self.min_requests, "give 1 or more")
        for name in ("max_error_rate", "alpha"):
            value = getattr(self, name)
            _require(0 < value < 1, name, value, "give a number between 0 and 1")
        _require(0 <= self.margin <= 10, "margin", self.margin, "give a number from 0 to 10")
        for name in ("max_p50_ms", "max_p99_ms"):
            limit = getattr(self, name)
            kept = limit is None or 1 <= limit <= 60_000
            _require(kept, name, limit, "give 1 to 60000 milliseconds")
        share = self.max_disagreement
        _require(share is None or 0 < share < 1, "max_disagreement", share, "give 0 to 1")
        _require_positive("max_psi", self.max_psi)
        _require(0 <= self.tolerance <= 1, "tolerance", self.tolerance, "give 0 to 1")

    @property
    def shadows(self) -> bool:
        """Whether the candidate's answers are compared with live's on copied requests."""
        return self.shadow_percent > 0 or self.mirror_percent > 0

    def without_shadow(self) -> Self:
        """The same for a proxy that cannot copy requests."""
        return replace(self, shadow_percent=0, mirror_percent=0)

    def _check_phases(self) -> None:
        policy, known = self.on_inconclusive, [each.value for each in OnInconclusive]
        _require(policy in known, "on_inconclusive", policy, f"give {' or '.join(known)}")
        object.__setattr__(self, "on_inconclusive", OnInconclusive(policy))
        for name in ("shadow_percent", "mirror_percent"):
            share = getattr(self, name)
            _require(0 <= share <= 100, name, share, "give 0 to 100 percent")
        if self.shadow_wait_seconds is not None:
            _require_positive("shadow_wait_seconds", self.shadow_wait_seconds)
        copies = self.shadow_requests
        _require(copies >= 1, "shadow_requests", copies, "give 1 or more")

    def representative(self, weight: int) -> bool:
        """Return whether latency seen at this percent of the traffic can be a proof.

        A candidate with a small share has emptier batches and queues than it will have, so it
        can show harm there, but no proof.
        """
        return self.allow_low_weight_proof or weight >= REPRESENTATIVE_WEIGHT

    def require_provable(self) -> None:
        """INVALID_INPUT if latency is limited and no step before the last can prove it."""
        limited = (self.max_p50_ms, self.max_p99_ms) != (None, None)
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
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The loopback ports of one Bento process."""

    http: int
    grpc: int


@dataclass(frozen=True, slots=True)
class DeploymentSettings:
    """How a deployment's daemon works; kept with the deployment.

    Attributes:
        tick_seconds: time between two looks. ready_seconds: limit for a Bento to become ready.
        max_unwatched_seconds: a rollout that no daemon watched for longer is rolled back.
        drain_seconds: limit for requests in flight before an idle slot is stopped.
        alias_retry_seconds: wait after an alias could not be written; it doubles each time.
        tls: the PEM files of the proxy's listener: chain, key, and the CA of callers who must show
            a certificate; empty for plain HTTP.
        replicas: Bento processes per slot; 0 only while scaled to zero. workers: servers
            within each.
        min_replicas, max_replicas: bounds of `replicas` under autoscaling; None for none.
        idle_seconds: time without a request before the last replica is stopped, where
            `min_replicas` is 0.
        hung_seconds: a Bento that gives no sign of life for so long is killed.
        serve, champion: command templates.
        kubernetes: the route and the Services of a deployment in a cluster; None on this machine.
        runs: how rollouts are told to MLflow; empty to leave it out.
        metrics_port: where the daemon's metrics are, on loopback; None for nowhere.
        webhooks: where notices are sent. webhook_secret: the file with which they are signed.
        token_file: the tokens that its callers show; None to take the environment's.
        signer: the public key of who must have signed its bundles; None to take the
            environment's.
        bento_home, tracking_uri: the Bento store and the registry that the deployment was
            started with, for whoever starts its daemon again; None to take the environment's.
    """

    tick_seconds: float = 0.5
    ready_seconds: float = 120.0
    max_unwatched_seconds: float = 30.0
    drain_seconds: float = 10.0
    alias_retry_seconds: float = 30.0
    tls: tuple[str, ...] = ()
    replicas: int = 1
    workers: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    idle_seconds: float = IDLE_SECONDS
    hung_seconds: float = 30.0
    serve: tuple[str, ...] = field(default_factory=bento_command)
    champion: tuple[str, ...] = field(default_factory=champion_command)
    runs: tuple[str, ...] = field(default_factory=runs_command)
    metrics_port: int | None = None
    webhooks: tuple[str, ...] = ()
    webhook_secret: str | None = None
    token_file: str | None = None
    signer: str | None = None
    bento_home: str | None = None
    tracking_uri: str | None = None
    kubernetes: KubernetesTarget | None = None

    def __post_init__(self) -> None:
        _require(len(self.tls) in (0, 2, 3), "tls", self.tls, "give a certificate and its key")
        for url in self.webhooks:
            # Its path is often a secret, so the message does not repeat it.
            held = re.fullmatch(r"https?://[^/\s]+\S*", url) is not None
            _require(held, "webhooks", url[:8], "give a URL with http or https")
        for name in ("tick_seconds", "ready_seconds", "max_unwatched_seconds"):
            _require_positive(name, getattr(self, name))
        for name in ("idle_seconds", "hung_seconds"):
            _require_positive(name, getattr(self, name))
        _require(1 <= self.workers <= MAX_REPLICAS, "workers", self.workers, _COUNT)
        self._check_replicas()
        for name in ("drain_seconds", "alias_retry_seconds"):
            _require_seconds(name, getattr(self, name))

    @property
    def autoscaled(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.max_replicas is not None

    @property
    def sleeps(self) -> bool:
        """Whether all replicas stop when nobody asks."""
        return self.min_replicas == 0

    def _check_replicas(self) -> None:
        least, most = self.min_replicas, self.max_replicas
        if least is None or most is None:
            both = least is None and most is None
            _require(both, "min_replicas, max_replicas", (least, most), "give both or none")
            _require(1 <= self.replicas <= MAX_REPLICAS, "replicas", self.replicas, _COUNT)
            return
        _require(1 <= most <= MAX_REPLICAS, "max_replicas", most, _COUNT)
        _require(0 <= least <= most, "min_replicas", least, f"give 0 to {most}")
        held = least <= self.replicas <= most
        _require(held, "replicas", self.replicas, f"give {least} to {most}")


def check_name(name: str) -> str:
    """Return a deployment's name, or raise INVALID_INPUT: it becomes a directory."""
    if not _NAME.fullmatch(name):
        raise _invalid(
            f"deployment name {name!r} is not 1 to 63 lower case letters, digits and inner hyphens"
        )
    return name


def _require_seconds(name: str, value: float) -> None:
    holds = math.isfinite(value) and value >= 0
    _require(holds, name, value, "give a finite number of seconds, 0 or more")


def _require_positive(name: str, value: float) -> None:
    holds = math.isfinite(value) and value > 0
    _require(holds, name, value, "give a finite number of seconds above 0")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise _invalid(f"{name} = {value!r} is out of range: {wanted}")


def _invalid(message: str) -> MlctlError:
    return MlctlError(ErrorCode.INVALID_INPUT, message)
