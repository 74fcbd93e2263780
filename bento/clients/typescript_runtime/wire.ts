import { badAnswer, invalidInput, ModelError } from "./errors.ts";
import { checkShape, countOf, fromBytes, fromValues, toBytes } from "./tensors.ts";
import type { AnyTensor, Data, Datatype, Spec } from "./tensors.ts";

const LENGTH_HEADER = "inference-header-content-length";
// JSON has no form of them in JavaScript, so they are binary data in any case.
const ALWAYS_BINARY: ReadonlySet<Datatype> = new Set(["FP16", "BF16"]);

/** What an answer tells of itself. */
export interface Meta {
  readonly modelName: string;
  /** The digest of the model that has answered. */
  readonly modelDigest: string;
  readonly requestId: string;
  readonly parameters: Readonly<Record<string, unknown>>;
}

/** A request on the wire. */
export interface Encoded {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly headers: Readonly<Record<string, string>>;
}

/** An answer, read: its tensors by their names in the protocol. */
export interface Decoded {
  readonly tensors: ReadonlyMap<string, AnyTensor>;
  readonly meta: Meta;
}

/** The infer request of tensors that were checked. `timeout` is in microseconds. */
export function encode(
  inputs: readonly Spec[],
  outputs: readonly Spec[],
  tensors: ReadonlyMap<string, AnyTensor>,
  binary: boolean,
  timeout: number,
): Encoded {
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  const given = inputs.map((spec) => {
    const { data, shape } = tensors.get(spec.name) as AnyTensor;
    const start = `{"name":${JSON.stringify(spec.name)},"datatype":"${spec.datatype}","shape":[${shape}]`;
    if (!binary && !ALWAYS_BINARY.has(spec.datatype)) return `${start},"data":[${toJson(spec, data)}]}`;
    const bytes = toBytes(data);
    chunks.push(bytes);
    return `${start},"parameters":{"binary_data_size":${bytes.length}}}`;
  });
  const asked = outputs.map((spec) => {
    const parameters = { binary_data: binary || ALWAYS_BINARY.has(spec.datatype) };
    return JSON.stringify({ name: spec.name, parameters });
  });
  const text = `{"parameters":{"timeout":${timeout}},"inputs":[${given}],"outputs":[${asked}]}`;
  const head = new TextEncoder().encode(text);
  if (chunks.length === 0) return { body: head, headers: { "content-type": "application/json" } };
  const headers = {
    "content-type": "application/octet-stream",
    [LENGTH_HEADER]: String(head.length),
  };
  return { body: join([head, ...chunks]), headers };
}

/** The tensors of an answer; a ModelError if it is none of the protocol. */
export function decode(outputs: readonly Spec[], headers: Headers, body: ArrayBuffer): Decoded {
  try {
    const length = Number(headers.get(LENGTH_HEADER) ?? body.byteLength);
    const document: Answer = JSON.parse(new TextDecoder().decode(body.slice(0, length)));
    const binary = cut(document.outputs, new Uint8Array(body, length));
    const tensors = new Map<string, AnyTensor>();
    for (const spec of outputs) {
      const found = document.outputs.find((each) => each.name === spec.name);
      if (found === undefined) throw new Error(`there is no '${spec.name}'`);
      checkShape(spec, found.shape);
      const count = countOf(found.shape);
      const bytes = binary.get(spec.name);
      const data =
        bytes === undefined
          ? fromValues(spec.datatype, count, found.data)
          : fromBytes(spec.datatype, count, bytes);
      tensors.set(spec.name, { data, shape: found.shape });
    }
    const meta = {
      modelName: String(document.model_name),
      modelDigest: String(document.model_version ?? ""),
      requestId: headers.get("x-request-id") ?? "",
      parameters: document.parameters ?? {},
    };
    return { tensors, meta };
  } catch (cause) {
    throw badAnswer(cause);
  }
}

/** The error that an answer with another status than 200 tells. */
export function refusal(status: number, headers: Headers, body: ArrayBuffer): ModelError {
  let said: Partial<Record<"error" | "code" | "hint", string>> = {};
  try {
    said = JSON.parse(new TextDecoder().decode(body)) ?? {};
  } catch {
    // A proxy has answered.
  }
  const wait = headers.get("retry-after") ?? "";
  return new ModelError(String(said.error ?? `the server answered with status ${status}`), {
    code: String(said.code ?? ""),
    hint: String(said.hint ?? ""),
    status,
    retryAfter: /^\d+$/.test(wait) ? Number(wait) : undefined,
  });
}

interface Answer {
  readonly model_name: unknown;
  readonly model_version?: unknown;
  readonly parameters?: Readonly<Record<string, unknown>>;
  readonly outputs: readonly Part[];
}

interface Part {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data?: unknown;
  readonly parameters?: { readonly binary_data_size?: number };
}

function toJson(spec: Spec, data: Data): string {
  if (ArrayBuffer.isView(data)) {
    if (spec.datatype === "BOOL") return Array.from(data as Uint8Array, (each) => each !== 0).join();
    if (data instanceof Float32Array || data instanceof Float64Array) {
      if (!data.every(Number.isFinite)) throw binaryOnly(spec, "has a value that is not finite");
    }
    return data.join();
  }
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  try {
    return data.map((each) => JSON.stringify(decoder.decode(each))).join();
  } catch {
    throw binaryOnly(spec, "holds a value that is not UTF-8");
  }
}

function binaryOnly(spec: Spec, reason: string): ModelError {
  return invalidInput(`'${spec.name}' ${reason}`, "Send it as binary data: { binary: true }.");
}

/** The binary data of each tensor that has some, in the order of the tensors. */
function cut(
  parts: readonly Part[],
  data: Uint8Array<ArrayBuffer>,
): Map<string, Uint8Array<ArrayBuffer>> {
  const found = new Map<string, Uint8Array<ArrayBuffer>>();
  let at = 0;
  for (const { name, parameters } of parts) {
    const size = parameters?.binary_data_size;
    if (size === undefined) continue;
    found.set(name, data.subarray(at, at + size));
    at += size;
  }
  if (at !== data.length) throw new Error("the binary data has another length");
  return found;
}

function join(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
