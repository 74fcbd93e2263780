import { Call, DEFAULT_RETRY } from "./calls.ts";
import type { Retry } from "./calls.ts";
import { badAnswer, ModelError } from "./errors.ts";
import { checkTensor } from "./tensors.ts";
import type { AnyTensor, Spec } from "./tensors.ts";
import { decode, encode, refusal } from "./wire.ts";
import type { Encoded, Meta } from "./wire.ts";

export interface ClientOptions {
  /** The bearer token, if the server asks for one. */
  readonly token?: string;
  /** For a call with all of its attempts; 10 if it is not given. */
  readonly timeoutSeconds?: number;
  readonly retry?: Partial<Retry>;
  /** Binary data (true, the default) or JSON. */
  readonly binary?: boolean;
  /** Instead of the global one: for a proxy, other certificates, or tests. */
  readonly fetch?: typeof fetch;
}

export interface CallOptions {
  readonly timeoutSeconds?: number;
  /** Ends the call with the signal's reason. */
  readonly signal?: AbortSignal;
  /** Returned in the answer's `meta`, and written to the server's log. */
  readonly requestId?: string;
}

/** What a client is made for. */
export interface Contract {
  readonly name: string;
  readonly inputs: readonly Spec[];
  readonly outputs: readonly Spec[];
}

/** Asks one model over HTTP. */
export class ModelClient {
  readonly #contract: Contract;
  readonly #model: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #seconds: number;
  readonly #retry: Retry;
  readonly #binary: boolean;
  readonly #fetch: typeof fetch;

  constructor(contract: Contract, url: string, options: ClientOptions) {
    this.#contract = contract;
    this.#model = `${url.replace(/\/+$/, "")}/v2/models/${encodeURIComponent(contract.name)}`;
    this.#headers = options.token === undefined ? {} : { authorization: `Bearer ${options.token}` };
    this.#seconds = options.timeoutSeconds ?? 10;
    this.#retry = { ...DEFAULT_RETRY, ...options.retry };
    this.#binary = options.binary ?? true;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Whether the model takes requests now. */
  async ready(options: CallOptions = {}): Promise<boolean> {
    try {
      await this.#once(options, "/ready");
      return true;
    } catch (error) {
      if (error instanceof ModelError) return false;
      throw error;
    }
  }

  /** The digest of the model that the server has; this client was made for `DIGEST`. */
  async servedDigest(options: CallOptions = {}): Promise<string> {
    const { body } = await this.#once(options, "");
    try {
      const { versions } = JSON.parse(new TextDecoder().decode(body)) as { versions: unknown[] };
      return String(versions.at(-1));
    } catch (cause) {
      throw badAnswer(cause);
    }
  }

  /** The tensors of the model's answer by their fields; a ModelError says why there is none. */
  protected async ask(
    request: Readonly<Record<string, AnyTensor>>,
    options: CallOptions,
  ): Promise<Record<string, AnyTensor> & { readonly meta: Meta }> {
    const { inputs, outputs } = this.#contract;
    const tensors = new Map(
      inputs.map((spec) => [spec.name, checkTensor(spec, request[spec.field])] as const),
    );
    const call = this.#begin(options);
    try {
      for (;;) {
        try {
          const asked = encode(inputs, outputs, tensors, this.#binary, call.timeout);
          const { headers, body } = await this.#send(call, "/infer", options, asked);
          const answer = decode(outputs, headers, body);
          const found = outputs.map((spec) => [spec.field, answer.tensors.get(spec.name)] as const);
          return { ...Object.fromEntries(found), meta: answer.meta } as never;
        } catch (error) {
          await call.pause(error);
        }
      }
    } finally {
      call.close();
    }
  }

  #begin(options: CallOptions): Call {
    return new Call(options.timeoutSeconds ?? this.#seconds, this.#retry, options.signal);
  }

  async #once(options: CallOptions, path: string): Promise<Received> {
    const call = this.#begin(options);
    try {
      return await this.#send(call, path, options);
    } finally {
      call.close();
    }
  }

  async #send(call: Call, path: string, options: CallOptions, asked?: Encoded): Promise<Received> {
    const identity = options.requestId === undefined ? {} : { "x-request-id": options.requestId };
    const headers = { ...this.#headers, ...asked?.headers, ...identity };
    const init: RequestInit = { method: "GET", headers, signal: call.signal };
    const send = this.#fetch;
    let answer: Response;
    let body: ArrayBuffer;
    try {
      answer = await send(
        `${this.#model}${path}`,
        asked === undefined ? init : { ...init, method: "POST", body: asked.body },
      );
      body = await answer.arrayBuffer();
    } catch (cause) {
      call.signal.throwIfAborted();
      throw new ModelError("the server was not reached, or broke off", {
        code: "unavailable",
        hint: "Is it up, and is this its address?",
        cause,
      });
    }
    if (answer.status !== 200) throw refusal(answer.status, answer.headers, body);
    return { headers: answer.headers, body };
  }
}

interface Received {
  readonly headers: Headers;
  readonly body: ArrayBuffer;
}
