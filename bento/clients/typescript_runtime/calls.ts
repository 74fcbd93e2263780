import { late, ModelError } from "./errors.ts";

/**
 * When a call is repeated: a model answers the same question the same way, so it may be.
 *
 * Only what is worth it: a server that is overloaded, starting, stopping or not reached. At most
 * `attempts` in all, `firstSeconds` apart and then twice as long each time, up to `mostSeconds`.
 * The server's Retry-After wins where it is longer; up to a half of each wait is added by
 * chance, so that many clients do not come back at once.
 */
export interface Retry {
  readonly attempts: number;
  readonly firstSeconds: number;
  readonly mostSeconds: number;
}

export const DEFAULT_RETRY: Retry = { attempts: 4, firstSeconds: 0.1, mostSeconds: 5 };

/** Seconds to wait after so many failures; undefined to give up. `luck` is from 0 to 1. */
export function waitAfter(
  retry: Retry,
  error: unknown,
  failures: number,
  luck: number,
): number | undefined {
  if (!(error instanceof ModelError) || !error.isTemporary) return undefined;
  const asked = error.retryAfter ?? 0;
  if (failures >= retry.attempts || asked > retry.mostSeconds) return undefined;
  const own = Math.min(retry.firstSeconds * 2 ** (failures - 1), retry.mostSeconds);
  return Math.max(asked, own) * (1 + luck / 2);
}

/** One call over all of its attempts: its time, and the signal that ends it. */
export class Call {
  readonly signal: AbortSignal;
  readonly #end: number;
  readonly #seconds: number;
  readonly #retry: Retry;
  readonly #timer: ReturnType<typeof setTimeout>;
  readonly #caller: AbortSignal | undefined;
  readonly #stop: AbortController;
  readonly #left = (): void => this.#stop.abort(this.#caller?.reason);
  #failures = 0;

  constructor(seconds: number, retry: Retry, caller: AbortSignal | undefined) {
    if (!(seconds > 0)) throw new RangeError("a call needs more than 0 seconds");
    this.#seconds = seconds;
    this.#retry = retry;
    this.#caller = caller;
    this.#end = performance.now() + seconds * 1000;
    this.#stop = new AbortController();
    this.signal = this.#stop.signal;
    // What is longer does not fit into a timer's number, and is as good as for ever.
    const milliseconds = Math.min(seconds * 1000, 2 ** 31 - 1);
    this.#timer = setTimeout(() => this.#stop.abort(late()), milliseconds);
    if (caller?.aborted) this.#left();
    else caller?.addEventListener("abort", this.#left, { once: true });
  }

  /**
   * What the server is told, in microseconds.
   *
   * The same for each call's first attempt: a server knows a request again by its bytes.
   */
  get timeout(): number {
    const left = (this.#end - performance.now()) / 1000;
    const seconds = this.#failures === 0 ? this.#seconds : left;
    return Math.min(Math.max(1, Math.floor(seconds * 1e6)), Number.MAX_SAFE_INTEGER);
  }

  /** Wait before the next attempt; throws `error` if there is none. */
  async pause(error: unknown): Promise<void> {
    this.signal.throwIfAborted();
    this.#failures += 1;
    const seconds = waitAfter(this.#retry, error, this.#failures, Math.random());
    if (seconds === undefined || performance.now() + seconds * 1000 >= this.#end) throw error;
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        clearTimeout(timer);
        reject(this.signal.reason);
      };
      const timer = setTimeout(() => {
        this.signal.removeEventListener("abort", leave);
        resolve();
      }, seconds * 1000);
      this.signal.addEventListener("abort", leave, { once: true });
    });
  }

  /** The call is over. */
  close(): void {
    clearTimeout(this.#timer);
    this.#caller?.removeEventListener("abort", this.#left);
  }
}
