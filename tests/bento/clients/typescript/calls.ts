// node calls.js SERVER_URL DIGEST: what docs/clients.md shows, against a real server.
import createClient from "openapi-fetch";
import type { paths } from "./tiny.js";

declare const process: { argv: string[] };
const [url = "", digest = ""] = process.argv.slice(2);
const client = createClient<paths, "application/json">({ baseUrl: url });

const { data, error } = await client.POST("/v2/models/tiny/infer", {
  body: { inputs: [{ name: "x", datatype: "FP32", shape: [2, 4], data: new Array(8).fill(1) }] },
});
if (error) throw new Error(`${error.code}: ${error.error}`);
const output = data.outputs[0];
console.log(`${output?.name} ${output?.shape} ${output?.data} ${data.model_version === digest}`);

const wrong = await client.POST("/v2/models/tiny/infer", {
  // @ts-expect-error: the model has no input of this name
  body: { inputs: [{ name: "picture", datatype: "FP32", shape: [1, 4], data: [1, 1, 1, 1] }] },
});
console.log(wrong.response.status, wrong.error?.code);
