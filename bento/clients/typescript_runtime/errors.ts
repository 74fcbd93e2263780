/** What a call fails with, whatever the reason. A caller's own abort is thrown as it is. */
export class ModelError extends Error {
  override readonly name = "ModelError";
  /** The stable name of what is wrong, such as "invalid_input"; "" if a proxy told none. */
  readonly code: string;
  /** What to do about it. */
  readonly hint: string;
  /** The HTTP status; 0 if there was no answer. */
  readonly status: number;
  /** How many seconds the server asks to wait; undefined if it does not. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ModelErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code ?? "";
    this.hint = details.hint ?? "";
    this.status = details.status ?? 0;
    this.retryAfter = details.retryAfter;
  }

  /** Whether the call may be repeated: the server is overloaded, starts, stops, or was not reached. */
  get isTemporary(): boolean {
    if (this.code !== "") return TEMPORARY_CODES.has(this.code);
    return TEMPORARY_STATUSES.has(this.status);
  }
}

export interface ModelErrorDetails {
  readonly code?: string;
  readonly hint?: string;
  readonly status?: number;
  readonly retryAfter?: number | undefined;
  readonly cause?: unknown;
}

const TEMPORARY_CODES: ReadonlySet<string> = new Set(["unavailable", "not_ready", "queue_full"]);
// Those of a proxy, which tells no code.
const TEMPORARY_STATUSES: ReadonlySet<number> = new Set([429, 502, 503]);

/** The error of a request that must not be sent. */
export function invalidInput(message: string, hint = ""): ModelError {
  return new ModelError(message, { code: "invalid_input", hint });
}

/** The error of an answer that is none of the protocol. */
export function badAnswer(cause: unknown): ModelError {
  return new ModelError("the answer is not one of the protocol", { cause });
}

/** The error of a call that took too long. */
export function late(): ModelError {
  return new ModelError("the answer was not there in time", {
    code: "deadline_exceeded",
    hint: "Allow more time, or send fewer rows in each request.",
  });
}
