// node checks.mjs DIST ECHO_URL SERVER_URL DIGEST: calls a server that echoes tensors of every
// datatype, and a real one, with the compiled packages.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const [dist, echo, url, digest] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${dist}/${path}`));
const tiny = await load("tiny/src/index.js");
const every = await load("every/src/index.js");
const { DEFAULT_RETRY, ModelError, waitAfter } = tiny;
const SHAPE = [2, 3, 2];
const text = (value) => new TextEncoder().encode(value);

function tensors() {
  const big = [2n ** 63n - 1n, -(2n ** 63n)];
  const data = {
    BOOL: Uint8Array.from({ length: 12 }, (_, at) => at % 2),
    UINT8: Uint8Array.from({ length: 12 }, (_, at) => 255 - at),
    UINT16: Uint16Array.from({ length: 12 }, (_, at) => 65535 - at),
    UINT32: Uint32Array.from({ length: 12 }, (_, at) => 4294967295 - at),
    UINT64: BigUint64Array.from({ length: 12 }, (_, at) => 2n ** 64n - 1n - BigInt(at)),
    INT8: Int8Array.from({ length: 12 }, (_, at) => at - 128),
    INT16: Int16Array.from({ length: 12 }, (_, at) => at - 32768),
    INT32: Int32Array.from({ length: 12 }, (_, at) => at - 2147483648),
    INT64: BigInt64Array.from({ length: 12 }, (_, at) => big[at % 2]),
    FP16: Uint16Array.from({ length: 12 }, (_, at) => 0x3c00 + at),
    BF16: Uint16Array.from({ length: 12 }, (_, at) => 0x3f80 + at),
    FP32: Float32Array.from({ length: 12 }, (_, at) => (at === 3 ? NaN : at / 3)),
    FP64: Float64Array.from({ length: 12 }, (_, at) => (at === 4 ? -Infinity : at / 3)),
    BYTES: Array.from({ length: 12 }, (_, at) => (at === 5 ? Uint8Array.of(255) : text(`${at} "ü\n`))),
  };
  const named = Object.entries(data).map(([name, data]) => [`${name}_in`, { data, shape: SHAPE }]);
  return Object.fromEntries(named);
}

async function rejection(promise) {
  let found;
  await promise.then(
    () => assert.fail("it was not rejected"),
    (error) => (found = error),
  );
  assert.equal(found.name, "ModelError", String(found));  // each package has its own class
  return found;
}

// Every datatype, there and back.
const request = tensors();
// A view that starts in the middle of its buffer.
request.FP32_in.data = new Float32Array([9, ...request.FP32_in.data]).subarray(1);
const { meta, ...echoed } = await new every.Client(echo).infer(request);
assert.deepEqual(echoed, request);
assert.equal(meta.modelDigest, every.DIGEST);

// A real server.
const x = (rows = 1) => ({ x: { data: new Float32Array(4 * rows).fill(1), shape: [rows, 4] } });
const client = new tiny.Client(`${url}/`);
const answer = await client.infer(x(2), { requestId: "mine" });
assert.deepEqual([...answer.y.data], new Array(8).fill(6));
assert.deepEqual(answer.y.shape, [2, 4]);
assert.deepEqual([answer.meta.requestId, answer.meta.modelDigest], ["mine", digest]);
assert.equal(await client.servedDigest(), digest);
assert.equal(tiny.DIGEST, digest);
assert.equal(await client.ready(), true);
assert.equal(await new tiny.Client("http://127.0.0.1:9").ready(), false);
const large = await rejection(client.infer(x(10_000)));
assert.deepEqual([large.code, large.status, large.hint !== ""], ["payload_too_large", 413, true]);
for (const wrong of [
  {},
  { x: { data: new Float64Array(4), shape: [1, 4] } },
  { x: { data: new Float32Array(3), shape: [1, 4] } },
  { x: { data: new Float32Array(3), shape: [1, 3] } },
]) {
  const error = await rejection(client.infer(wrong));
  assert.deepEqual([error.code, error.status], ["invalid_input", 0]);
}
const late = await rejection(client.infer(x(), { timeoutSeconds: 1e-6 }));
assert.equal(late.code, "deadline_exceeded");
assert.deepEqual((await client.infer(x(), { timeoutSeconds: Infinity })).y.shape, [1, 4]);
const gone = new tiny.Client("http://127.0.0.1:9", { retry: { attempts: 2, firstSeconds: 0.01 } });
assert.equal((await rejection(gone.infer(x()))).code, "unavailable");

// What is sent, and when it is sent again.
const sent = [];
function scripted(...answers) {
  return async (target, init) => {
    sent.push(init);
    const next = answers.shift();
    return next === undefined ? fetch(target, init) : next(init);
  };
}
const busy = (wait) => () =>
  new Response('{"error":"full","code":"queue_full"}', { status: 429, headers: { "retry-after": wait } });
const proxy = () => new Response("<html>", { status: 502 });
const retry = { firstSeconds: 0.01 };
const patient = new tiny.Client(url, { fetch: scripted(busy("0"), proxy), retry, token: "secret" });
await patient.infer(x());
assert.equal(sent.length, 3);
assert.ok(sent.every(({ headers }) => headers.authorization === "Bearer secret"));
const tired = new tiny.Client(url, { fetch: scripted(busy("60")), retry });
const full = await rejection(tired.infer(x()));
assert.deepEqual([full.code, full.retryAfter, sent.length], ["queue_full", 60, 4]);
const broken = () => new Response('{"error":"no","code":"internal"}', { status: 500 });
const failed = await rejection(new tiny.Client(url, { fetch: scripted(broken) }).infer(x()));
assert.deepEqual([failed.code, failed.isTemporary, sent.length], ["internal", false, 5]);
const odd = () => new Response("{}", { status: 200 });
assert.match((await rejection(new tiny.Client(url, { fetch: scripted(odd) }).infer(x()))).message, /protocol/);
const error = new ModelError("", { code: "queue_full", retryAfter: 2 });
assert.equal(waitAfter(DEFAULT_RETRY, error, 1, 0), 2);
assert.equal(waitAfter(DEFAULT_RETRY, new ModelError("", { code: "unavailable" }), 3, 1), 0.4 * 1.5);
assert.equal(waitAfter(DEFAULT_RETRY, error, DEFAULT_RETRY.attempts, 0), undefined);

// An aborted call rejects with the caller's reason, while it is sent and between attempts.
const hangs = (init) =>
  new Promise((_, reject) => init.signal.addEventListener("abort", () => reject(init.signal.reason)));
for (const answer of [hangs, busy("4")]) {
  const caller = new AbortController();
  const reason = new Error("enough");
  const asked = new tiny.Client(url, {
    fetch: scripted((init) => (setTimeout(() => caller.abort(reason), 20), answer(init))),
    retry: { firstSeconds: 4 },
  });
  await assert.rejects(asked.infer(x(), { signal: caller.signal }), reason);
  await assert.rejects(asked.infer(x(), { signal: caller.signal }), reason);
}
const slow = new tiny.Client(url, { fetch: scripted(hangs), timeoutSeconds: 0.05 });
assert.equal((await rejection(slow.infer(x()))).code, "deadline_exceeded");
console.log("all checks passed");
