"""Every error code with its meaning, its hint, and its status in each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bundle.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """How an error is reported: `exit_code` of a command, `http` status, `grpc` status name."""

    meaning: str
    hint: str
    exit_code: int
    http: int
    grpc: str


_BUNDLE_HINT = "Rebuild it from the registry with `mlctl build`; do not edit a bundle by hand."

ERROR_TABLE: Mapping[ErrorCode, ErrorSpec] = MappingProxyType(
    {
        ErrorCode.INTERNAL: ErrorSpec(
            "An unexpected failure.", "The log has the details.", 1, 500, "INTERNAL"
        ),
        ErrorCode.INVALID_INPUT: ErrorSpec(
            "A value from the caller is not valid.",
            "Correct the value that the message names.",
            2,
            400,
            "INVALID_ARGUMENT",
        ),
        ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorSpec(
            "The server does not accept the request's content type.",
            "Send application/json, or binary tensor data with Inference-Header-Content-Length.",
            2,
            415,
            "INVALID_ARGUMENT",
        ),
        ErrorCode.PAYLOAD_TOO_LARGE: ErrorSpec(
            "The request exceeds the server's size limit.",
            "Send fewer rows in each request.",
            2,
            413,
            "RESOURCE_EXHAUSTED",
        ),
        ErrorCode.NOT_FOUND: ErrorSpec(
            "Nothing has that name.", "Check the name.", 3, 404, "NOT_FOUND"
        ),
        ErrorCode.METHOD_NOT_ALLOWED: ErrorSpec(
            "The path does not support that method.",
            "Use a method of the Allow header.",
            2,
            405,
            "UNIMPLEMENTED",
        ),
        ErrorCode.UNAUTHENTICATED: ErrorSpec(
            "The server requires a token, and the request has no valid one.",
            "Send the header `Authorization: Bearer TOKEN`; the server's operator has the token.",
            2,
            401,
            "UNAUTHENTICATED",
        ),
        ErrorCode.NOT_PERMITTED: ErrorSpec(
            "The server does not permit this request.",
            "Ask the server's operator.",
            2,
            403,
            "PERMISSION_DENIED",
        ),
        ErrorCode.NO_PRECOMPUTED_ANSWER: ErrorSpec(
            "There is no precomputed answer for that entity key.",
            "Send the inputs as well, so that the model can answer.",
            3,
            404,
            "NOT_FOUND",
        ),
        ErrorCode.MODEL_NOT_FOUND: ErrorSpec(
            "The registry has no such model, version or alias.",
            "`mlctl models` lists what is registered.",
            3,
            404,
            "NOT_FOUND",
        ),
        ErrorCode.BENTO_NOT_FOUND: ErrorSpec(
            "The Bento store has no such Bento.",
            "Build one with `mlctl build NAME`; `mlctl doctor` shows which Bento store is used.",
            3,
            404,
            "NOT_FOUND",
        ),
        ErrorCode.DEPLOYMENT_NOT_FOUND: ErrorSpec(
            "No deployment has that name.",
            "`mlctl status` lists deployments; `mlctl up NAME BENTO` starts one.",
            3,
            404,
            "NOT_FOUND",
        ),
        ErrorCode.REGISTRY_UNAVAILABLE: ErrorSpec(
            "The MLflow registry is unreachable or returned an error.",
            "Check MLFLOW_TRACKING_URI, or unset it to use the local registry.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.PICKLE_REJECTED: ErrorSpec(
            "The model is stored as a pickle, which runs code when it is loaded.",
            'Log it again with serialization_format="pt2", or, if you trust its author, '
            "pass --allow-pickle (the manifest records it).",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.UNSUPPORTED_MODEL: ErrorSpec(
            "mlctl does not support this kind of model.",
            "docs/models.md says which models are supported and how to log them.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.MANIFEST_INVALID: ErrorSpec(
            "The bundle's manifest is missing or invalid.",
            _BUNDLE_HINT,
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.MANIFEST_VERSION_UNKNOWN: ErrorSpec(
            "This mlctl does not support the schema version of the bundle's manifest.",
            "Use the mlctl that wrote it, or build the bundle again with this one.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.FILE_ALTERED: ErrorSpec(
            "A file of the bundle differs from its manifest.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.FILE_MISSING: ErrorSpec(
            "A file of the manifest is missing in the bundle.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.FILE_UNLISTED: ErrorSpec(
            "The bundle has a file that its manifest does not list.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.PATH_UNSAFE: ErrorSpec(
            "A path in the bundle is a link or points outside the bundle.",
            _BUNDLE_HINT,
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DIGEST_MISMATCH: ErrorSpec(
            "The bundle has another digest than expected.",
            "Fetch it again; the registry's mlctl.digest tag names the right one.",
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.SIGNATURE_INVALID: ErrorSpec(
            "A signature is required, and the bundle has no valid one.",
            "Sign it with `mlctl sign`, or use the public key of its signer.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.PARITY_FAILED: ErrorSpec(
            "The model's answers on its golden rows differ from the recorded ones.",
            "Run `mlctl optimize` on this kind of machine, and serve its result here.",
            5,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.EXPORT_FAILED: ErrorSpec(
            "The ONNX export differs from the model, or failed.",
            "Rewrite the part of the model that the message names.",
            6,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.NOTHING_PASSED: ErrorSpec(
            "No variant meets the goals.",
            "Loosen the goal in the table, or judge on more rows with --eval-rows.",
            5,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.RUNTIME_MISSING: ErrorSpec(
            "A required package is not installed.",
            "Install the extra in the message.",
            7,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.RUNTIME_CONFLICT: ErrorSpec(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other.",
            "Uninstall both, then install one in the checkout of mlctl: '.[cpu]' or '.[gpu]'.",
            7,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.PROVIDER_UNAVAILABLE: ErrorSpec(
            "The requested execution provider cannot be used.",
            "`mlctl doctor` shows what is missing; MLCTL_PROVIDER=cpu serves on the CPU.",
            7,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.PATH_INACCESSIBLE: ErrorSpec(
            "The operating system denies access to a path.",
            "Check the owner and permissions of the path in the message.",
            2,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DISK_FULL: ErrorSpec(
            "The disk is full.",
            "Free some space, then run the same command again: finished work is kept.",
            13,
            507,
            "RESOURCE_EXHAUSTED",
        ),
        ErrorCode.PORT_TAKEN: ErrorSpec(
            "The port is already in use.",
            "Use a free port with --port.",
            8,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DEPLOYMENT_EXISTS: ErrorSpec(
            "A deployment with that name is already running.",
            "Change its model with `mlctl promote`, or stop it with `mlctl down`.",
            8,
            409,
            "ALREADY_EXISTS",
        ),
        ErrorCode.ROLLOUT_ACTIVE: ErrorSpec(
            "A rollout of this deployment is in progress.",
            "Follow it with `mlctl status NAME`, or end it with `mlctl rollback NAME`.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.ALREADY_LIVE: ErrorSpec(
            "That Bento already has all of the traffic.",
            "There is nothing to promote.",
            8,
            409,
            "ALREADY_EXISTS",
        ),
        ErrorCode.INCOMPATIBLE_INTERFACE: ErrorSpec(
            "The candidate rejects requests of current callers, or lacks outputs that they read.",
            "Start it as another deployment with `mlctl up`, or, if all callers are ready for the "
            "change, promote it with --allow-breaking.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.WORSE_EVIDENCE: ErrorSpec(
            "The candidate's proved score is clearly worse than the live model's on the same data.",
            "Promote another version, or start this one anyway with --skip-checks.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.NOT_READY: ErrorSpec(
            "The server did not become ready in time.",
            "The message ends with the tail of its log.",
            9,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.ROLLED_BACK: ErrorSpec(
            "The rollout was rolled back: all traffic is on the previous model.",
            "`mlctl history NAME` shows the gate, its value, its limit and the counts.",
            10,
            500,
            "ABORTED",
        ),
        ErrorCode.INCONCLUSIVE: ErrorSpec(
            "The rollout ended without enough evidence to promote.",
            "Send more traffic, allow more time with --deadline, or loosen the limits.",
            11,
            500,
            "ABORTED",
        ),
        ErrorCode.INSUFFICIENT_TRAFFIC: ErrorSpec(
            "At the current traffic the rollout is not expected to finish before its deadline.",
            "Send more traffic, allow more time with --deadline, loosen the limits, or start it "
            "anyway with --skip-checks.",
            11,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.JOB_CHANGED: ErrorSpec(
            "The output has answers of another batch job.",
            "Use another --out, or remove those answers and start again with --restart.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.JOB_RUNNING: ErrorSpec(
            "Another process is writing to that output.", "Wait until it ends.", 8, 409, "ABORTED"
        ),
        ErrorCode.TOO_MANY_BAD_ROWS: ErrorSpec(
            "A batch job rejected more rows than --max-errors allows.",
            "Correct the input or raise --max-errors. Finished work is kept, its rejected rows in "
            "the quarantine.",
            14,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.SOURCE_UNAVAILABLE: ErrorSpec(
            "The source of rows, or of features, is unavailable.",
            "When it is reachable again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.SINK_UNAVAILABLE: ErrorSpec(
            "The destination of the answers is unavailable.",
            "When it is reachable again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.CLUSTER_UNAVAILABLE: ErrorSpec(
            "The cluster of a batch job is unreachable, or lost the same work repeatedly.",
            "When it is healthy again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.BROKER_UNAVAILABLE: ErrorSpec(
            "The broker of a stream is unavailable.",
            "When it is reachable again, run the same command: it continues after the last commit.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.PACKAGE_INDEX_UNAVAILABLE: ErrorSpec(
            "The index of Python packages is unreachable.",
            "Run the command where it is reachable, or use a lock file from there with --lock.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.TOO_MANY_DEAD_LETTERS: ErrorSpec(
            "A stream has more dead letters than --max-dead-rate allows.",
            "Look up the reasons with `mlctl stream peek`, and correct the senders or the model. "
            "The next run continues after the last commit.",
            14,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.QUEUE_FULL: ErrorSpec(
            "The server's queue is full.",
            "Retry after the time in Retry-After.",
            9,
            503,
            "RESOURCE_EXHAUSTED",
        ),
        ErrorCode.DEADLINE_EXCEEDED: ErrorSpec(
            "The answer was not ready before the request's deadline.",
            "Allow more time, or send fewer rows in each request.",
            9,
            504,
            "DEADLINE_EXCEEDED",
        ),
        ErrorCode.UNAVAILABLE: ErrorSpec(
            "The server is starting or stopping.", "Retry shortly.", 9, 503, "UNAVAILABLE"
        ),
        ErrorCode.INTERRUPTED: ErrorSpec(
            "Stopped by the user.", "Run the same command again.", 130, 503, "CANCELLED"
        ),
    }
)
