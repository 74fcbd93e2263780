// What the compiler must accept, and what it must reject.
import { Client } from "./tiny/src/index.js";
import type { InferRequest, InferResponse } from "./tiny/src/index.js";
import type { InferRequest as EveryRequest } from "./every/src/index.js";

export async function accepted(client: Client): Promise<Float32Array> {
  const request: InferRequest = { x: { data: Float32Array.of(1, 2, 3, 4), shape: [1, 4] } };
  const answer: InferResponse = await client.infer(request, { timeoutSeconds: 1 });
  return answer.y.data;
}

// @ts-expect-error - the input is missing
export const missing: InferRequest = {};
// @ts-expect-error - another datatype's array
export const double: InferRequest = { x: { data: new Float64Array(4), shape: [1, 4] } };
// @ts-expect-error - numbers where values of 64 bits are bigints
export const wide: EveryRequest["INT64_in"] = { data: new Int32Array(4), shape: [1, 4] };
