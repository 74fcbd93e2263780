"""Every failure that mlctl can name, with its hint and its status in each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bundle.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """How one error shows: `exit_code` of a command, `http` status, `grpc` status name."""

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
            "A value given by the caller is wrong.",
            "Correct the value that the message names.",
            2,
            400,
            "INVALID_ARGUMENT",
        ),
        ErrorCode.UNSUPPORTED_MEDIA_TYPE: ErrorSpec(
            "The request's content type is not served.",
            "Send application/json, or binary tensor data with Inference-Header-Content-Length.",
            2,
            415,
            "INVALID_ARGUMENT",
        ),
        ErrorCode.PAYLOAD_TOO_LARGE: ErrorSpec(
            "The request is larger than the server accepts.",
            "Send fewer rows in each request.",
            2,
            413,
            "RESOURCE_EXHAUSTED",
        ),
        ErrorCode.NOT_FOUND: ErrorSpec(
            "There is nothing under that name.", "Check the name.", 3, 404, "NOT_FOUND"
        ),
        ErrorCode.METHOD_NOT_ALLOWED: ErrorSpec(
            "The path does not take that method.",
            "Use the method that the Allow header names.",
            2,
            405,
            "UNIMPLEMENTED",
        ),
        ErrorCode.UNAUTHENTICATED: ErrorSpec(
            "The server asks for a token, and the request shows none that is valid.",
            "Send the header `Authorization: Bearer TOKEN`; who operates the server has one.",
            2,
            401,
            "UNAUTHENTICATED",
        ),
        ErrorCode.NOT_PERMITTED: ErrorSpec(
            "The server does not let its callers do that.",
            "Ask who operates the server.",
            2,
            403,
            "PERMISSION_DENIED",
        ),
        ErrorCode.KEY_NOT_FOUND: ErrorSpec(
            "No answer is precomputed for that entity key.",
            "Send the inputs as well: then the model answers.",
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
            "`mlctl build NAME` builds one; `bentoml list` shows what there is, with the "
            "BENTOML_HOME that `mlctl doctor` names.",
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
            "The MLflow registry could not be reached or answered with an error.",
            "Check MLFLOW_TRACKING_URI, or unset it to use the local registry.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.PICKLE_REFUSED: ErrorSpec(
            "The model is stored as a pickle, which runs code when it is loaded.",
            'Log it again with serialization_format="pt2", or, if you trust its author, '
            "pass --allow-pickle (the manifest records it).",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.UNSUPPORTED_MODEL: ErrorSpec(
            "The registered model has a form that mlctl does not take.",
            "Log it with mlflow.pytorch (pt2) or mlflow.onnx, with a tensor signature.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.MANIFEST_INVALID: ErrorSpec(
            "The bundle's manifest is missing or not valid.",
            _BUNDLE_HINT,
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.MANIFEST_VERSION_UNKNOWN: ErrorSpec(
            "The bundle's manifest has a schema version that this mlctl does not know.",
            "Use the mlctl that wrote it, or build it again with this one.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.FILE_ALTERED: ErrorSpec(
            "A file of the bundle is not the one its manifest lists.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.FILE_MISSING: ErrorSpec(
            "A file that the manifest lists is not in the bundle.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.FILE_UNLISTED: ErrorSpec(
            "The bundle holds a file that its manifest does not list.",
            _BUNDLE_HINT,
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.PATH_UNSAFE: ErrorSpec(
            "A path in the bundle is a link or points outside of it.",
            _BUNDLE_HINT,
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DIGEST_MISMATCH: ErrorSpec(
            "The bundle is not the one that was asked for.",
            "Fetch it again; the registry's mlctl.digest tag names the right one.",
            4,
            500,
            "DATA_LOSS",
        ),
        ErrorCode.SIGNATURE_INVALID: ErrorSpec(
            "A signature is asked for, and the bundle has none that is valid.",
            "Sign it with `mlctl sign`, or give the public key of who signed it.",
            4,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.PARITY_FAILED: ErrorSpec(
            "The model's answers on its golden rows differ from the recorded ones.",
            "Run `mlctl optimize` on this kind of machine; do not serve this bundle here.",
            5,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.EXPORT_FAILED: ErrorSpec(
            "The model could not be exported to ONNX faithfully.",
            "Rewrite the part of the model that the message names.",
            6,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.NOTHING_PASSED: ErrorSpec(
            "No variant meets the goals.",
            "Loosen the goal that the table names, or give more rows to judge on.",
            5,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.RUNTIME_MISSING: ErrorSpec(
            "A package that this command needs is not installed.",
            "Install the extra that the message names.",
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
            "The execution provider that was asked for is not the one that runs.",
            "`mlctl doctor` says what is missing; MLCTL_PROVIDER=cpu serves on the CPU.",
            7,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.PATH_INACCESSIBLE: ErrorSpec(
            "The operating system does not let mlctl read or write a path.",
            "Check the owner and the permissions of the path that the message names.",
            2,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DISK_FULL: ErrorSpec(
            "There is no space left to write to.",
            "Free some space, then run the same command again: finished work is kept.",
            13,
            507,
            "RESOURCE_EXHAUSTED",
        ),
        ErrorCode.PORT_TAKEN: ErrorSpec(
            "Another process listens on that port.",
            "Pass a free port with --port.",
            8,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.DEPLOYMENT_EXISTS: ErrorSpec(
            "A deployment with that name runs already.",
            "Change its model with `mlctl promote`, or stop it with `mlctl down`.",
            8,
            409,
            "ALREADY_EXISTS",
        ),
        ErrorCode.ROLLOUT_ACTIVE: ErrorSpec(
            "A rollout of this deployment is under way.",
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
            "The candidate refuses what callers of the live model send, or lacks what they read.",
            "Start it beside the live one with `mlctl up` under another name, or, if all callers "
            "are ready for it, promote it with --allow-breaking.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.WORSE_EVIDENCE: ErrorSpec(
            "The candidate's proved score is clearly worse than the live model's on the same data.",
            "Promote another version, or start this one all the same with --force.",
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
            "A rollout is not expected to end before its deadline at today's traffic.",
            "Send more traffic, allow more time with --deadline, loosen the limits, or start it "
            "all the same with --force.",
            11,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.JOB_CHANGED: ErrorSpec(
            "The output holds answers of a batch job that is not this one.",
            "Give another --out, or remove those answers and begin anew with --restart.",
            8,
            409,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.JOB_RUNNING: ErrorSpec(
            "Another process writes to that output.", "Wait for its end.", 8, 409, "ABORTED"
        ),
        ErrorCode.TOO_MANY_BAD_ROWS: ErrorSpec(
            "A batch job met more bad rows than --max-errors allows.",
            "Look at their reasons, then mend the input, or run it again with a larger "
            "--max-errors: finished work is kept.",
            14,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.SOURCE_UNAVAILABLE: ErrorSpec(
            "Rows could not be read, even after waiting: the place did not answer.",
            "Once it is reachable again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.SINK_UNAVAILABLE: ErrorSpec(
            "Answers could not be written, even after waiting.",
            "Once the place is reachable again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.CLUSTER_UNAVAILABLE: ErrorSpec(
            "The cluster that scores a batch did not answer, or lost the same work repeatedly.",
            "Once it is well again, run the same command: finished work is kept.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.BROKER_UNAVAILABLE: ErrorSpec(
            "A stream's broker did not answer, even after waiting.",
            "Once it is reachable again, run the same command: it goes on after the last commit.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.INDEX_UNAVAILABLE: ErrorSpec(
            "The index of Python packages could not be reached.",
            "Run it where it can be reached, or give a lock file that was made there with --lock.",
            12,
            503,
            "UNAVAILABLE",
        ),
        ErrorCode.TOO_MANY_DEAD_LETTERS: ErrorSpec(
            "More of a stream's messages could not be answered than --max-dead-rate allows.",
            "Look at their reasons with `mlctl stream peek`, mend the senders or the model, then "
            "run it again: nothing after the last commit was taken.",
            14,
            500,
            "FAILED_PRECONDITION",
        ),
        ErrorCode.QUEUE_FULL: ErrorSpec(
            "The server has as much work waiting as it accepts.",
            "Retry after the time that Retry-After names.",
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
            "Stopped by the user.", "Run the same command again to go on.", 130, 503, "CANCELLED"
        ),
    }
)
