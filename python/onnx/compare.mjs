// This script runs exported models with ONNX Runtime on the inputs that 'loadstar forecast
// --inputs' wrote, and compares the results with the forecasts in the same file.
//
// usage: node compare.mjs INPUTS.safetensors FOLDER
import { readFileSync } from "node:fs";
import ort from "onnxruntime-web";

ort.env.wasm.numThreads = 1; // the runtime's threads do not work in Node
ort.env.logLevel = "error";
const [inputs, folder] = process.argv.slice(2);
const file = readFileSync(inputs);
const start = 8 + Number(file.readBigUInt64LE(0));
const header = JSON.parse(file.subarray(8, start));
const array = (name, type) => {
  const [from, to] = header[name].data_offsets;
  return new type(new Uint8Array(file.subarray(start + from, start + to)).buffer);
};
const x = array("inputs", Float32Array);
const kw = array("forecast", Float64Array);
const clients = JSON.parse(header.__metadata__.clients);
const [, examples, width] = header.inputs.shape;
const [, steps, levels] = header.forecast.shape;
let worst = 0;
for (const [i, client] of clients.entries()) {
  const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(`${folder}/${encodeURIComponent(client)}.onnx`)));
  const rows = new ort.Tensor("float32", x.subarray(i * examples * width, (i + 1) * examples * width), [examples, width]);
  const { forecast } = await session.run({ inputs: rows });
  if (forecast.dims.join() !== [steps, levels].join()) throw new Error(`${client}: shape ${forecast.dims}, want ${steps},${levels}`);
  const own = kw.subarray(i * steps * levels, (i + 1) * steps * levels);
  const size = Math.max(...own.map(Math.abs));
  own.forEach((v, k) => (worst = Math.max(worst, Math.abs(v - forecast.data[k]) / size)));
}
console.log(`${clients.length} models, ${steps} steps, ${levels} levels: largest difference ${worst.toExponential(1)} of the largest load`);
if (!(clients.length > 0 && worst < 1e-5)) process.exit(1);
