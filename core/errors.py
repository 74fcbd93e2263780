"""mlctl's errors: their codes, their statuses in each protocol, and the exception.

Raise `MlctlError` with an `ErrorCode`; a command exits with the table's exit code, the
HTTP API answers with its HTTP status, the gRPC API with its gRPC status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class ErrorCode(StrEnum):
    """Names of errors; stable, because scripts and clients match on them."""

    INTERNAL = "internal"
    INVALID_INPUT = "invalid_input"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNAUTHENTICATED = "unauthenticated"
    NOT_PERMITTED = "not_permitted"
    NO_PRECOMPUTED_ANSWER = "no_precomputed_answer"
    MODEL_NOT_FOUND = "model_not_found"
    BENTO_NOT_FOUND = "bento_not_found"
    DEPLOYMENT_NOT_FOUND = "deployment_not_found"
    REGISTRY_UNAVAILABLE = "registry_unavailable"
    PICKLE_REJECTED = "pickle_rejected"
    UNSUPPORTED_MODEL = "unsupported_model"
    MANIFEST_INVALID = "manifest_invalid"
    MANIFEST_VERSION_UNKNOWN = "manifest_version_unknown"
    FILE_ALTERED = "file_altered"
    FILE_MISSING = "file_missing"
    FILE_UNLISTED = "file_unlisted"
    PATH_UNSAFE = "path_unsafe"
    DIGEST_MISMATCH = "digest_mismatch"
    SIGNATURE_INVALID = "signature_invalid"
    PARITY_FAILED = "parity_failed"
    EXPORT_FAILED = "export_failed"
    NOTHING_PASSED = "nothing_passed"
    RUNTIME_MISSING = "runtime_missing"
    RUNTIME_CONFLICT = "runtime_conflict"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    PATH_INACCESSIBLE = "path_inaccessible"
    DISK_FULL = "disk_full"
    PORT_TAKEN = "port_taken"
    DEPLOYMENT_EXISTS = "deployment_exists"
    ROLLOUT_ACTIVE = "rollout_active"
    ALREADY_LIVE = "already_live"
    INCOMPATIBLE_INTERFACE = "incompatible_interface"
    WORSE_EVIDENCE = "worse_evidence"
    NOT_READY = "not_ready"
    ROLLED_BACK = "rolled_back"
    INCONCLUSIVE = "inconclusive"
    INSUFFICIENT_TRAFFIC = "insufficient_traffic"
    JOB_CHANGED = "job_changed"
    JOB_RUNNING = "job_running"
    TOO_MANY_BAD_ROWS = "too_many_bad_rows"
    SOURCE_UNAVAILABLE = "source_unavailable"
    SINK_UNAVAILABLE = "sink_unavailable"
    CLUSTER_UNAVAILABLE = "cluster_unavailable"
    BROKER_UNAVAILABLE = "broker_unavailable"
    PACKAGE_INDEX_UNAVAILABLE = "package_index_unavailable"
    TOO_MANY_DEAD_LETTERS = "too_many_dead_letters"
    QUEUE_FULL = "queue_full"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNAVAILABLE = "unavailable"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """How an error is reported: `exit_code` of a command, `http` status, `grpc` status name."""

    exit_code: int
    http: int
    grpc: str
    meaning: str
    hint: str


_BUNDLE_HINT = "Rebuild it from the registry with `mlctl build`; do not edit a bundle by hand."

ERROR_TABLE: Mapping[ErrorCode, ErrorSpec] = MappingProxyType(
    {
        ErrorCode.INTERNAL: ErrorSpec(
            1, 500, "INTERNAL",
            "An unexpected failure.",
            "The log has the details.",
        ),
        ErrorCode.INVALID_INPUT: ErrorSpec(
            2, 400, "INVALID_ARGUMENT",
            "A value from the caller is not valid.",
            "Correct the value that the message names.",
        ),
        ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorSpec(
            2, 415, "INVALID_ARGUMENT",
            "The server does not accept the request's content type.",
            "Send application/json, or binary tensor data with Inference-Header-Content-Length.",
        ),
        ErrorCode.PAYLOAD_TOO_LARGE: ErrorSpec(
            2, 413, "RESOURCE_EXHAUSTED",
            "The request exceeds the server's size limit.",
            "Send fewer rows in each request.",
        ),
        ErrorCode.NOT_FOUND: ErrorSpec(
            3, 404, "NOT_FOUND",
            "Nothing has that name.",
            "Check the name.",
        ),
        ErrorCode.METHOD_NOT_ALLOWED: ErrorSpec(
            2, 405, "UNIMPLEMENTED",
            "The path does not support that method.",
            "Use a method of the Allow header.",
        ),
        ErrorCode.UNAUTHENTICATED: ErrorSpec(
            2, 401, "UNAUTHENTICATED",
            "The server requires a token, and the request has no valid one.",
            "Send the header `Authorization: Bearer TOKEN`; the server's operator has the token.",
        ),
        ErrorCode.NOT_PERMITTED: ErrorSpec(
            2, 403, "PERMISSION_DENIED",
            "The server does not permit this request.",
            "Ask the server's operator.",
        ),
        ErrorCode.NO_PRECOMPUTED_ANSWER: ErrorSpec(
            3, 404, "NOT_FOUND",
            "There is no precomputed answer for that entity key.",
            "Send the inputs as well, so that the model can answer.",
        ),
        ErrorCode.MODEL_NOT_FOUND: ErrorSpec(
            3, 404, "NOT_FOUND",
            "The registry has no such model, version or alias.",
            "`mlctl models` lists what is registered.",
        ),
        ErrorCode.BENTO_NOT_FOUND: ErrorSpec(
            3, 404, "NOT_FOUND",
            "The Bento store has no such Bento.",
            "Build one with `mlctl build NAME`; `mlctl doctor` shows which Bento store is used.",
        ),
        ErrorCode.DEPLOYMENT_NOT_FOUND: ErrorSpec(
            3, 404, "NOT_FOUND",
            "No deployment has that name.",
            "`mlctl status` lists deployments; `mlctl up NAME BENTO` starts one.",
        ),
        ErrorCode.REGISTRY_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The MLflow registry is unreachable or returned an error.",
            "Check MLFLOW_TRACKING_URI, or unset it to use the local registry.",
        ),
        ErrorCode.PICKLE_REJECTED: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "The model is stored as a pickle, which runs code when it is loaded.",
            'Log it again with serialization_format="pt2", or, if you trust its author, '
            "pass --allow-pickle (the manifest records it).",
        ),
        ErrorCode.UNSUPPORTED_MODEL: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "mlctl does not support this kind of model.",
            "docs/models.md says which models are supported and how to log them.",
        ),
        ErrorCode.MANIFEST_INVALID: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "The bundle's manifest is missing or invalid.",
            _BUNDLE_HINT,
        ),
        ErrorCode.MANIFEST_VERSION_UNKNOWN: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "This mlctl does not support the schema version of the bundle's manifest.",
            "Use the mlctl that wrote it, or build the bundle again with this one.",
        ),
        ErrorCode.FILE_ALTERED: ErrorSpec(
            4, 500, "DATA_LOSS",
            "A file of the bundle differs from its manifest.",
            _BUNDLE_HINT,
        ),
        ErrorCode.FILE_MISSING: ErrorSpec(
            4, 500, "DATA_LOSS",
            "A file of the manifest is missing in the bundle.",
            _BUNDLE_HINT,
        ),
        ErrorCode.FILE_UNLISTED: ErrorSpec(
            4, 500, "DATA_LOSS",
            "The bundle has a file that its manifest does not list.",
            _BUNDLE_HINT,
        ),
        ErrorCode.PATH_UNSAFE: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "A path in the bundle is a link or points outside the bundle.",
            _BUNDLE_HINT,
        ),
        ErrorCode.DIGEST_MISMATCH: ErrorSpec(
            4, 500, "DATA_LOSS",
            "The bundle has another digest than expected.",
            "Fetch it again; the registry's mlctl.digest tag names the right one.",
        ),
        ErrorCode.SIGNATURE_INVALID: ErrorSpec(
            4, 500, "FAILED_PRECONDITION",
            "A signature is required, and the bundle has no valid one.",
            "Sign it with `mlctl sign`, or use the public key of its signer.",
        ),
        ErrorCode.PARITY_FAILED: ErrorSpec(
            5, 500, "FAILED_PRECONDITION",
            "The model's answers on its golden rows differ from the recorded ones.",
            "Run `mlctl optimize` on this kind of machine, and serve its result here.",
        ),
        ErrorCode.EXPORT_FAILED: ErrorSpec(
            6, 500, "FAILED_PRECONDITION",
            "The ONNX export differs from the model, or failed.",
            "Rewrite the part of the model that the message names.",
        ),
        ErrorCode.NOTHING_PASSED: ErrorSpec(
            5, 500, "FAILED_PRECONDITION",
            "No variant meets the goals.",
            "Loosen the goal in the table, or judge on more rows with --eval-rows.",
        ),
        ErrorCode.RUNTIME_MISSING: ErrorSpec(
            7, 500, "FAILED_PRECONDITION",
            "A required package is not installed.",
            "Install the extra in the message.",
        ),
        ErrorCode.RUNTIME_CONFLICT: ErrorSpec(
            7, 500, "FAILED_PRECONDITION",
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other.",
            "Uninstall both, then install one in the checkout of mlctl: '.[cpu]' or '.[gpu]'.",
        ),
        ErrorCode.PROVIDER_UNAVAILABLE: ErrorSpec(
            7, 500, "FAILED_PRECONDITION",
            "The requested execution provider cannot be used.",
            "`mlctl doctor` shows what is missing; MLCTL_PROVIDER=cpu serves on the CPU.",
        ),
        ErrorCode.PATH_INACCESSIBLE: ErrorSpec(
            2, 500, "FAILED_PRECONDITION",
            "The operating system denies access to a path.",
            "Check the owner and permissions of the path in the message.",
        ),
        ErrorCode.DISK_FULL: ErrorSpec(
            13, 507, "RESOURCE_EXHAUSTED",
            "The disk is full.",
            "Free some space, then run the same command again: finished work is kept.",
        ),
        ErrorCode.PORT_TAKEN: ErrorSpec(
            8, 500, "FAILED_PRECONDITION",
            "The port is already in use.",
            "Use a free port with --port.",
        ),
        ErrorCode.DEPLOYMENT_EXISTS: ErrorSpec(
            8, 409, "ALREADY_EXISTS",
            "A deployment with that name is already running.",
            "Change its model with `mlctl promote`, or stop it with `mlctl down`.",
        ),
        ErrorCode.ROLLOUT_ACTIVE: ErrorSpec(
            8, 409, "FAILED_PRECONDITION",
            "A rollout of this deployment is in progress.",
            "Follow it with `mlctl status NAME`, or end it with `mlctl rollback NAME`.",
        ),
        ErrorCode.ALREADY_LIVE: ErrorSpec(
            8, 409, "ALREADY_EXISTS",
            "That Bento already has all of the traffic.",
            "There is nothing to promote.",
        ),
        ErrorCode.INCOMPATIBLE_INTERFACE: ErrorSpec(
            8, 409, "FAILED_PRECONDITION",
            "The candidate rejects requests of current callers, or lacks outputs that they read.",
            "Start it as another deployment with `mlctl up`, or, if all callers are ready for the "
            "change, promote it with --allow-breaking.",
        ),
        ErrorCode.WORSE_EVIDENCE: ErrorSpec(
            8, 409, "FAILED_PRECONDITION",
            "The candidate's proved score is clearly worse than the live model's on the same data.",
            "Promote another version, or start this one anyway with --skip-checks.",
        ),
        ErrorCode.NOT_READY: ErrorSpec(
            9, 503, "UNAVAILABLE",
            "The server did not become ready in time.",
            "The message ends with the tail of its log.",
        ),
        ErrorCode.ROLLED_BACK: ErrorSpec(
            10, 500, "ABORTED",
            "The rollout was rolled back: all traffic is on the previous model.",
            "`mlctl history NAME` shows the gate, its value, its limit and the counts.",
        ),
        ErrorCode.INCONCLUSIVE: ErrorSpec(
            11, 500, "ABORTED",
            "The rollout ended without enough evidence to promote.",
            "Send more traffic, allow more time with --deadline, or loosen the limits.",
        ),
        ErrorCode.INSUFFICIENT_TRAFFIC: ErrorSpec(
            11, 500, "FAILED_PRECONDITION",
            "At the current traffic the rollout is not expected to finish before its deadline.",
            "Send more traffic, allow more time with --deadline, loosen the limits, or start it "
            "anyway with --skip-checks.",
        ),
        ErrorCode.JOB_CHANGED: ErrorSpec(
            8, 409, "FAILED_PRECONDITION",
            "The output has answers of another batch job.",
            "Use another --out, or remove those answers and start again with --restart.",
        ),
        ErrorCode.JOB_RUNNING: ErrorSpec(
            8, 409, "ABORTED",
            "Another process is writing to that output.",
            "Wait until it ends.",
        ),
        ErrorCode.TOO_MANY_BAD_ROWS: ErrorSpec(
            14, 500, "FAILED_PRECONDITION",
            "A batch job rejected more rows than --max-errors allows.",
            "Correct the input or raise --max-errors. Finished work is kept, its rejected rows in "
            "the quarantine.",
        ),
        ErrorCode.SOURCE_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The source of rows, or of features, is unavailable.",
            "When it is reachable again, run the same command: finished work is kept.",
        ),
        ErrorCode.SINK_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The destination of the answers is unavailable.",
            "When it is reachable again, run the same command: finished work is kept.",
        ),
        ErrorCode.CLUSTER_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The cluster of a batch job is unreachable, or lost the same work repeatedly.",
            "When it is healthy again, run the same command: finished work is kept.",
        ),
        ErrorCode.BROKER_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The broker of a stream is unavailable.",
            "When it is reachable again, run the same command: it continues after the last commit.",
        ),
        ErrorCode.PACKAGE_INDEX_UNAVAILABLE: ErrorSpec(
            12, 503, "UNAVAILABLE",
            "The index of Python packages is unreachable.",
            "Run the command where it is reachable, or use a lock file from there with --lock.",
        ),
        ErrorCode.TOO_MANY_DEAD_LETTERS: ErrorSpec(
            14, 500, "FAILED_PRECONDITION",
            "A stream has more dead letters than --max-dead-rate allows.",
            "Look up the reasons with `mlctl stream peek`, and correct the senders or the model. "
            "The next run continues after the last commit.",
        ),
        ErrorCode.QUEUE_FULL: ErrorSpec(
            9, 503, "RESOURCE_EXHAUSTED",
            "The server's queue is full.",
            "Retry after the time in Retry-After.",
        ),
        ErrorCode.RATE_LIMIT_EXCEEDED: ErrorSpec(
            9, 429, "RESOURCE_EXHAUSTED",
            "The client sends more requests per second than the server admits.",
            "Retry after the time in Retry-After, and send requests more slowly.",
        ),
        ErrorCode.DEADLINE_EXCEEDED: ErrorSpec(
            9, 504, "DEADLINE_EXCEEDED",
            "The answer was not ready before the request's deadline.",
            "Allow more time, or send fewer rows in each request.",
        ),
        ErrorCode.UNAVAILABLE: ErrorSpec(
            9, 503, "UNAVAILABLE",
            "The server is starting or stopping.",
            "Retry shortly.",
        ),
        ErrorCode.INTERRUPTED: ErrorSpec(
            130, 503, "CANCELLED",
            "Stopped by the user.",
            "Run the same command again.",
        ),
    }
)  # fmt: skip


class MlctlError(Exception):
    """An error with a code of the table, a message of one sentence, and a hint what to do.

    `message` must be safe for remote clients: no paths of the server and no library text, unless
    only the operator can see the error. `retry_after` is the time in seconds after which a retry
    is likely to succeed, where that is known.
    """

    retry_after: float | None = None

    def __init__(self, code: ErrorCode, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint if hint is not None else ERROR_TABLE[code].hint

    def __reduce__(self) -> tuple[type[MlctlError], tuple[ErrorCode, str, str]]:
        """Pickle as MlctlError: subclasses have other arguments; by default only the message."""
        return MlctlError, (self.code, self.message, self.hint)

    @property
    def spec(self) -> ErrorSpec:
        """The table's row for this error's code."""
        return ERROR_TABLE[self.code]

    def as_dict(self) -> dict[str, str | int]:
        """Return the error as `--json` and the HTTP API print it."""
        return {
            "code": self.code.value,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.spec.exit_code,
        }
