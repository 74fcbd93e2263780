"""The templates of what differs from model to model in a TypeScript client."""

PACKAGE = """\
{
  "name": "$distribution",
  "version": "$version",
  "description": "Client of model $name, digest $digest.",
  "type": "module",
  "exports": { ".": { "types": "./dist/index.d.ts", "default": "./dist/index.js" } },
  "files": ["dist", "src"],
  "engines": { "node": ">=18" },
  "scripts": {
    "build": "tsc",
    "prepare": "tsc",
    "smoke": "node dist/smoke.js"
  },
  "devDependencies": { "typescript": "^5.9.3" }
}
"""

TSCONFIG = """\
{
  "compilerOptions": {
    "target": "ES2022",
    "module": "NodeNext",
    "lib": ["ES2022", "DOM"],
    "types": [],
    "strict": true,
    "noUncheckedIndexedAccess": true,
    "exactOptionalPropertyTypes": true,
    "noImplicitOverride": true,
    "noUnusedLocals": true,
    "noUnusedParameters": true,
    "verbatimModuleSyntax": true,
    "erasableSyntaxOnly": true,
    "rewriteRelativeImportExtensions": true,
    "declaration": true,
    "rootDir": "src",
    "outDir": "dist"
  },
  "include": ["src"]
}
"""

INDEX = """\
// $header
export { Client, DIGEST, MODEL } from "./model.ts";
export type { InferRequest, InferResponse } from "./model.ts";
export type { Retry } from "./runtime/calls.ts";
export type { CallOptions, ClientOptions } from "./runtime/client.ts";
export { ModelError } from "./runtime/errors.ts";
export type { Tensor } from "./runtime/tensors.ts";
export type { Meta } from "./runtime/wire.ts";
"""

MODEL = """\
// $header
import { ModelClient } from "./runtime/client.ts";
import type { CallOptions, ClientOptions, Contract } from "./runtime/client.ts";
import type { DataOf, Tensor } from "./runtime/tensors.ts";
import type { Meta } from "./runtime/wire.ts";

/** The model's name. */
export const MODEL = "$name";
/** The digest of the model that this client was made for. */
export const DIGEST = "$digest";

/** What the model takes. */
export interface InferRequest {
$request
}

/** What the model gives. */
export interface InferResponse {
$response
  /** Who has answered. */
  readonly meta: Meta;
}

export const CONTRACT: Contract = {
  name: MODEL,
  inputs: [
$inputs
  ],
  outputs: [
$outputs
  ],
};

/** Asks the model over HTTP at `url`, the root of its server. */
export class Client extends ModelClient {
  constructor(url: string, options: ClientOptions = {}) {
    super(CONTRACT, url, options);
  }

  /** The model's answer; a ModelError says why there is none. */
  async infer(request: InferRequest, options: CallOptions = {}): Promise<InferResponse> {
    const answer: unknown = await this.ask({ ...request }, options);
    return answer as InferResponse;
  }
}
"""

SMOKE = """\
// $header
// Asks a running server in every way: node smoke.js URL. The token, if one is needed, is taken
// from MLCTL_TOKEN. Ends with an error unless every way answers alike.
import { Client, ModelError } from "./index.ts";
import type { InferRequest, InferResponse } from "./index.ts";
import { CONTRACT } from "./model.ts";
import type { AnyTensor } from "./runtime/tensors.ts";

declare const process: {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
};

type Tensors = Readonly<Record<string, AnyTensor>>;

/** A request of the right form. */
function example(): InferRequest {
  return {
$example
  };
}

type Value = number | bigint | Uint8Array;

function close(one: Value | undefined, other: Value | undefined): boolean {
  if (typeof one !== "number") return String(one) === String(other);
  const far = Math.abs(one - Number(other));
  return String(one) === String(other) || far <= 1e-5 + 1e-3 * Math.abs(one);
}

function alike(one: InferResponse, other: InferResponse): boolean {
  const [first, second] = [one, other] as unknown as [Tensors, Tensors];
  return CONTRACT.outputs.every(({ field }) => {
    const [a, b] = [first[field], second[field]];
    const [these, those] = [a, b].map((each) => Array.from<Value>((each?.data ?? []) as Value[]));
    const same = String(a?.shape) === String(b?.shape) && these?.length === those?.length;
    return same && these?.every((value, at) => close(value, those?.[at])) === true;
  });
}

async function refused(client: Client): Promise<boolean> {
  try {
    const shape = new Array<number>(20).fill(1);
    const tensor = { ...example().$first_input, shape };
    await client.infer({ ...example(), $first_input: tensor });
  } catch (error) {
    return error instanceof ModelError && error.code === "invalid_input" && error.status === 0;
  }
  return false;
}

const url = process.argv[2] ?? "http://localhost:3000";
const token = process.env["MLCTL_TOKEN"];
const options = token === undefined ? {} : { token };
const client = new Client(url, options);
const answer = await client.infer(example());
const json = await new Client(url, { ...options, binary: false }).infer(example());
if (!alike(answer, json)) throw new Error("the answers differ");
if (!(await refused(client))) throw new Error("a request of a wrong shape was sent");
console.log(`2 ways answer alike, model $${answer.meta.modelDigest}`);
"""

README = """\
# $distribution

A client of the model `$name`, digest `$digest`, in TypeScript with no
dependencies: it runs where `fetch` is (Node 18 and later, Deno, Bun, browsers).

```
npm install
npm run smoke -- http://localhost:3000
```

```ts
import { Client, ModelError } from "$distribution";

const client = new Client("http://localhost:3000", { timeoutSeconds: 5 });
try {
  const answer = await client.infer({
$example
  });
  console.log(answer.$first_output.data, answer.meta.modelDigest);
} catch (error) {
  if (error instanceof ModelError) console.error(error.code, error.hint);
  else throw error;
}
```

It takes

$takes

and gives

$gives

An FP16 or BF16 value is its bits, an INT64 or UINT64 a `bigint`, a BOOL 0 or 1, and each of BYTES a
`Uint8Array`. `timeoutSeconds` is for a call with all of its attempts, of which there are at most
four, and only for a server that is overloaded, starts, stops, or is not reached; its `Retry-After`
is kept. `{ signal }` ends a call. `{ binary: false }` sends and asks for JSON; FP16 and BF16 stay
binary, and integers above 2^53 of an answer are an error then.
"""
