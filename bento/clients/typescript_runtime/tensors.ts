import { invalidInput } from "./errors.ts";

/** Values in row-major order, and the size of each dimension. */
export interface Tensor<Data> {
  readonly data: Data;
  readonly shape: readonly number[];
}

/** What carries the values of each datatype of the V2 protocol. */
export interface DataOf {
  /** 0 or 1. */
  BOOL: Uint8Array;
  UINT8: Uint8Array;
  UINT16: Uint16Array;
  UINT32: Uint32Array;
  UINT64: BigUint64Array;
  INT8: Int8Array;
  INT16: Int16Array;
  INT32: Int32Array;
  INT64: BigInt64Array;
  /** The bits of each value. */
  FP16: Uint16Array;
  /** The bits of each value: the upper half of a float. */
  BF16: Uint16Array;
  FP32: Float32Array;
  FP64: Float64Array;
  BYTES: readonly Uint8Array[];
}

export type Datatype = keyof DataOf;
export type Data = DataOf[Datatype];
export type AnyTensor = Tensor<Data>;

/** One tensor of the model: its name and datatype in the protocol; -1 in `shape` is any size. */
export interface Spec {
  readonly name: string;
  readonly field: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
}

interface ArrayType {
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
  new (buffer: ArrayBuffer): Exclude<Data, readonly Uint8Array[]>;
}

const ARRAYS: Readonly<Record<Exclude<Datatype, "BYTES">, ArrayType>> = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP16: Uint16Array,
  BF16: Uint16Array,
  FP32: Float32Array,
  FP64: Float64Array,
};

if (new Uint8Array(Uint16Array.of(1).buffer)[0] !== 1) {
  throw new Error("this machine has the highest byte of a number first, which is not supported");
}

/** Throws a ModelError unless `value` is a tensor of `spec`. */
export function checkTensor(spec: Spec, value: AnyTensor | undefined): AnyTensor {
  if (value === undefined) throw invalidInput(`'${spec.name}' is missing`);
  const { data, shape } = value;
  if (spec.datatype === "BYTES") {
    if (!Array.isArray(data) || !data.every((each) => each instanceof Uint8Array)) {
      const hint = "Encode texts: new TextEncoder().encode(text).";
      throw invalidInput(`'${spec.name}' is not an array of Uint8Array`, hint);
    }
  } else if (!(data instanceof ARRAYS[spec.datatype])) {
    throw invalidInput(`'${spec.name}' is not a ${ARRAYS[spec.datatype].name}`);
  }
  checkShape(spec, shape);
  const count = countOf(shape);
  if (data.length !== count) {
    throw invalidInput(`'${spec.name}' has ${data.length} values, expected ${count} for [${shape}]`);
  }
  return value;
}

/** Throws a ModelError unless `shape` is one of `spec`. */
export function checkShape(spec: Spec, shape: readonly number[]): void {
  const fits =
    shape.length === spec.shape.length &&
    shape.every((size) => Number.isSafeInteger(size) && size >= 0) &&
    spec.shape.every((want, at) => want === -1 || want === shape[at]);
  if (!fits) {
    const hint = "A dimension of -1 may have any size; the others are fixed.";
    throw invalidInput(`'${spec.name}' has shape [${shape}], expected [${spec.shape}]`, hint);
  }
}

/** How many values a tensor of that shape has. */
export function countOf(shape: readonly number[]): number {
  return shape.reduce((count, size) => count * size, 1);
}

/** Raw little-endian data; each element of BYTES after its length in four bytes. */
export function toBytes(data: Data): Uint8Array<ArrayBuffer> {
  if (ArrayBuffer.isView(data)) {
    return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
  }
  const size = data.reduce((sum, each) => sum + 4 + each.length, 0);
  const bytes = new Uint8Array(size);
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const each of data) {
    view.setUint32(at, each.length, true);
    bytes.set(each, at + 4);
    at += 4 + each.length;
  }
  return bytes;
}

/** The values in raw data, which starts at any place; throws if they are not `count`. */
export function fromBytes(datatype: Datatype, count: number, bytes: Uint8Array<ArrayBuffer>): Data {
  const data = datatype === "BYTES" ? cut(bytes) : new ARRAYS[datatype](bytes.slice().buffer);
  if (data.length !== count) throw new Error(`there are ${data.length} values, not ${count}`);
  return data;
}

/** The values that JSON has; throws if they are none of the datatype. */
export function fromValues(datatype: Datatype, count: number, values: unknown): Data {
  if (!Array.isArray(values) || values.length !== count) throw new Error("the data is too short");
  if (datatype === "BYTES") return values.map((each) => new TextEncoder().encode(String(each)));
  const Kind = ARRAYS[datatype];
  const data = new Kind(new ArrayBuffer(count * Kind.BYTES_PER_ELEMENT));
  values.forEach((value: unknown, at) => {
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
      if (!Number.isSafeInteger(value)) throw new Error("a number is too large for JSON here");
      data[at] = BigInt(value as number);
    } else {
      data[at] = Number(value);
    }
  });
  return data;
}

function cut(bytes: Uint8Array): Uint8Array[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found: Uint8Array[] = [];
  let at = 0;
  while (at < bytes.length) {
    const end = at + 4 + view.getUint32(at, true);
    if (end > bytes.length) throw new Error("the data ends inside of an element");
    found.push(bytes.slice(at + 4, end));
    at = end;
  }
  return found;
}
