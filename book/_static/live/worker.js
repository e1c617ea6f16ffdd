/* The model of the live pages, in a worker: it reads a sentence, runs the passes that a question takes,
 * and answers with joints or with the best fillings. The page stays free to scroll and to cancel.
 *
 * onnxruntime-web runs a graph whose weights are the package's own safetensors file (book/make/live.py
 * writes the graph). Every file comes from the book itself.
 *
 * A message {id, kind, model, ...} is answered by {id, kind: "progress" | "done" | "error", ...}.
 */
import * as ort from "./vendor/ort.wasm.min.mjs";
import { Tokenizer } from "./vendor/tokenizers.min.mjs";
import { derive, logSoftmax, topCells } from "./joints.js";

const BATCH = 25; // sequences a run: more gain nothing, and a run cannot be cancelled
const PAIRS = 12; // likeliest pairs of a joint
const FEWEST = 6; // tokens shown at least
const WIDE = 16; // partial fillings that are extended at once
const MOST = 4; // masks on the page of fillings
const BUDGET = 2000; // passes after which the best so far are shown

ort.env.wasm.numThreads = 1; // more would need headers that few servers send
ort.env.wasm.wasmPaths = new URL("vendor/", import.meta.url).href;

const models = {}; // name: a promise of {tokenizer, session, head, length, mask, special}
const tokenizers = {};
const cancelled = new Set();

class Stop extends Error {}
class Bad extends Error {} // input that the reader can put right

const say = (id, kind, more) => self.postMessage({ id, kind, ...more });
const pause = () => new Promise((go) => setTimeout(go)); // lets a cancel message in
const address = (name, file) => new URL(`${name}/${file}`, import.meta.url).href;

async function download(name, file, heard = () => {}) {
  const answer = await fetch(address(name, file)).catch(() => {
    throw new Bad("The model could not be read: the connection is gone. Try again when it is back.");
  });
  if (!answer.ok) throw new Bad(`${file} of the model ${name} is not there; is the folder _static/live complete?`);
  const total = Number(answer.headers.get("content-length")) || 0;
  const parts = [];
  let size = 0;
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    heard((size += value.length), Math.max(total, size));
  }
  const bytes = new Uint8Array(size);
  parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 0);
  return bytes;
}

function tokenizer(name) {
  return (tokenizers[name] ??= download(name, "tokenizer.json").then((bytes) => {
    const json = JSON.parse(new TextDecoder().decode(bytes));
    const words = new Map(Object.entries(json.model.vocab));
    const tokens = [...words.entries()].sort((x, y) => x[1] - y[1]).map(([token]) => token);
    const special = new Set(json.added_tokens.map((token) => token.id));
    const config = { mask_token: "[MASK]", unk_token: "[UNK]", pad_token: "[PAD]", cls_token: "[CLS]", sep_token: "[SEP]" };
    return { encode: new Tokenizer(json, config), tokens, special, mask: words.get("[MASK]"), words };
  }));
}

/** A session for a graph whose weights are the given files, {name: bytes}. */
async function start(name, graph, files) {
  const externalData = Object.entries(files).map(([path, data]) => ({ path, data }));
  return ort.InferenceSession.create(await download(name, graph), { externalData, executionProviders: ["wasm"] });
}

async function load(id, name) {
  const begin = async () => {
    const parts = await tokenizer(name);
    const heard = (done, total) => say(id, "progress", { stage: "download", done, total });
    const about = JSON.parse(new TextDecoder().decode(await download(".", "models.json")))[name];
    const weights = { "model.safetensors": await download(name, "model.safetensors", heard) };
    say(id, "progress", { stage: "start", done: 0, total: 1 });
    const session = await start(name, "graph.onnx", weights);
    if (about.head) weights["head.safetensors"] = await download(name, "head.safetensors");
    const head = about.head && (await start(name, "head.onnx", weights));
    const model = { ...parts, session, head, kind: about.head, length: about.length, name };
    const row = Array(Math.min(14, about.length)).fill(model.mask);
    await run(model, Array(BATCH).fill(row), Array(BATCH).fill(1)); // the first run is the slowest
    return model;
  };
  models[name] ??= begin();
  try {
    return await models[name];
  } catch (error) {
    delete models[name]; // so that the next question tries again
    throw error;
  }
}

/** The sentence as ids with its special tokens, and where its masks are. */
function read({ encode, mask, name, length }, text, fewest, most) {
  if (!text.trim()) throw new Bad("The field is empty; type a sentence with [MASK] in it.");
  const ids = Array.from(encode.encode(text.normalize()).ids, Number);
  if (ids.length > length) {
    throw new Bad(`The sentence has ${ids.length} tokens and ${name} reads ${length}; shorten it.`);
  }
  const masks = ids.flatMap((token, place) => (token === mask ? [place] : []));
  if (masks.length < fewest || masks.length > most) {
    const wanted = most ? (fewest === most ? "exactly two, or click two words" : `${fewest} to ${most}`) : "none, or click nothing";
    throw new Bad(`The sentence has ${masks.length} [MASK]; write ${wanted}.`);
  }
  return { ids, masks };
}

const splitRows = ({ data, dims: [n, width] }) =>
  Array.from({ length: n }, (_, k) => Float64Array.from(data.subarray(k * width, (k + 1) * width)));

function feeds(rows, places) {
  const ids = new ort.Tensor("int64", BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);
  return { ids, positions: new ort.Tensor("int64", BigInt64Array.from(places, BigInt), [rows.length]) };
}

/** Logits at one position of each row: rows are token ids of one length. */
async function run({ session }, rows, places) {
  return splitRows((await session.run(feeds(rows, places), ["logits"])).logits);
}

const check = async (id) => {
  await pause();
  if (cancelled.delete(id)) throw new Stop();
};

/** Ids of the `count` largest values, those of special tokens left out. */
function largest(values, count, special) {
  const order = Array.from(values.keys()).filter((k) => !special.has(k));
  return order.sort((x, y) => values[y] - values[x]).slice(0, count);
}

/** A head of conditionals over two sets of tokens: the logs of both tables, as derive() reads them. */
async function bothTables({ head }, hidden, sets, masks) {
  const width = hidden.dims[1];
  const states = [0, 1].map((side) => hidden.data.subarray(side * width, (side + 1) * width));
  const given = [];
  for (const side of [0, 1]) {
    const tokens = new ort.Tensor("int64", BigInt64Array.from(sets[1 - side], BigInt), [sets[1 - side].length]);
    const far = new ort.Tensor("int64", [BigInt(masks[1 - side] - masks[side])], [1]);
    const own = new ort.Tensor("float32", Float32Array.of(...states[side], ...states[1 - side]), [2, width]);
    const { logits } = await head.run({ hidden: own, tokens, distance: far });
    given.push(splitRows(logits).map((row) => logSoftmax(Float64Array.from(sets[side], (token) => row[token]))));
  }
  return { given };
}

/** The pair head's joint over two sets of tokens: its components' logs, as derive() reads them. */
async function onePass({ head }, hidden, sets) {
  const { log_w, logits } = await head.run({ hidden });
  const rows = splitRows(logits).map(logSoftmax);
  const rank = rows.length / 2;
  const sides = sets.map((set, side) => rows.slice(side * rank, (side + 1) * rank)
    .map((row) => Float64Array.from(set, (token) => row[token])));
  return { logW: Float64Array.from(log_w.data), sides };
}

// A joint over two masks -----------------------------------------------------------------------

/** places: the two positions that the reader clicked in a sentence without masks, or null */
async function joint({ id, model: name, text, places, count }) {
  const model = await load(id, name);
  const { ids, masks } = places ? { ...read(model, text, 0, 0), masks: places } : read(model, text, 2, 2);
  const gold = places && places.map((place) => ids[place]);
  if (places) ids.forEach((_, place) => places.includes(place) && (ids[place] = model.mask));
  await check(id);
  const start = performance.now();
  const { logits, hidden } = await model.session.run(feeds([ids, ids], masks));
  const both = splitRows(logits);
  const sets = both.map((logits, side) => {
    const best = largest(logits, Math.max(count, FEWEST), model.special);
    if (gold && !best.includes(gold[side])) best[best.length - 1] = gold[side];
    return best;
  });
  const [n, m] = sets.map((set) => set.length);
  const tables = { n, m, logA: new Float64Array(n * m), logB: new Float64Array(n * m) };
  if (model.head) {
    tables.head = await (model.kind === "conditional" ? bothTables : onePass)(model, hidden, sets, masks);
  }
  const alone = both.map((logits, side) => logSoftmax(Float64Array.from(sets[side], (token) => logits[token])));
  Object.assign(tables, { logPa: alone[0], logPb: alone[1], logZa: new Float64Array(m), logZb: new Float64Array(n) });
  let done = 0;
  // Each token of one side is written in turn, and the other side is read.
  for (const [written, masked] of [[1, 0], [0, 1]]) {
    for (let begin = 0; begin < sets[written].length; begin += BATCH) {
      await check(id);
      const part = sets[written].slice(begin, begin + BATCH);
      const rows = part.map((token) => ids.map((old, place) => (place === masks[written] ? token : old)));
      const answers = await run(model, rows, rows.map(() => masks[masked]));
      answers.forEach((logits, row) => {
        const few = Float64Array.from(sets[masked], (token) => logits[token]);
        const logs = logSoftmax(few);
        const k = begin + row;
        (masked === 0 ? tables.logZa : tables.logZb)[k] = few[0] - logs[0];
        logs.forEach((value, l) => {
          if (masked === 0) tables.logA[l * m + k] = value;
          else tables.logB[k * m + l] = value;
        });
      });
      say(id, "progress", { stage: "passes", done: (done += part.length), total: n + m });
    }
  }
  await check(id);
  const found = derive(tables);
  const best = topCells(found.joints.ag, 1)[0];
  const tokens = sets.map((set) => set.map((token) => model.tokens[token]));
  const top = Object.fromEntries(Object.entries(found.joints).map(([method, one]) =>
    [method, topCells(one, PAIRS).map(([i, j, p]) => [tokens[0][i], tokens[1][j], p])]));
  return {
    ...tables, ...found, tokens, top, masks,
    pivot: tokens[0][found.pivot],
    vocabulary: [n, m],
    gold: gold ? gold.map((token, side) => sets[side].indexOf(token)) : best.slice(0, 2),
    known: Boolean(gold),
    seconds: (performance.now() - start) / 1000,
  };
}

// The best fillings of up to four masks ----------------------------------------------------------

/** The `top` most probable fillings of all V^k under the chain rule from left to right.
 *
 * A partial filling is at least as probable as everything it begins, so once the N-th best complete
 * filling is as probable as every partial one that is left, no better one exists (eq-fill-certificate).
 */
async function fill({ id, model: name, text, top }) {
  const model = await load(id, name);
  const { ids, masks } = read(model, text, 1, MOST);
  const start = performance.now();
  let [open, best, passes] = [[{ tokens: [], log: 0 }], [], 0];
  const threshold = () => (best.length >= top ? best[top - 1].log : -Infinity);
  while (open.length && passes < BUDGET) {
    await check(id);
    open = open.filter((node) => node.log > threshold()).sort((x, y) => y.log - x.log);
    // Nodes of one length are extended together; complete fillings come soon, and set the threshold.
    const deepest = open.reduce((most, node) => Math.max(most, node.tokens.length), 0);
    const depth = best.length >= top ? open[0]?.tokens.length : deepest;
    const chosen = open.filter((node) => node.tokens.length === depth).slice(0, WIDE);
    if (!chosen.length) break;
    open = open.filter((node) => !chosen.includes(node));
    const rows = chosen.map((node) => ids.map((old, place) => node.tokens[masks.indexOf(place)] ?? old));
    const answers = (await run(model, rows, rows.map(() => masks[depth]))).map(logSoftmax);
    passes += rows.length;
    say(id, "progress", { stage: "search", done: passes, total: BUDGET });
    chosen.forEach((node, row) => {
      const logs = answers[row];
      const least = threshold() - node.log;
      if (depth + 1 === masks.length) {
        const order = Array.from(logs.keys()).sort((x, y) => logs[y] - logs[x]).slice(0, top);
        for (const token of order) best.push({ tokens: [...node.tokens, token], log: node.log + logs[token] });
        best = best.sort((x, y) => y.log - x.log).slice(0, top);
      } else {
        logs.forEach((log, token) => {
          if (log > least) open.push({ tokens: [...node.tokens, token], log: node.log + log });
        });
      }
    });
  }
  const bound = open.reduce((most, node) => Math.max(most, node.log), -Infinity);
  return {
    fillings: best.map(({ tokens, log }) => ({ tokens: tokens.map((token) => model.tokens[token]), ids: tokens, log })),
    certified: bound <= threshold(), bound, passes, masks: masks.length,
    seconds: (performance.now() - start) / 1000,
  };
}

// Tokens of a sentence, to be clicked --------------------------------------------------------------

async function tokens({ model: name, text }) {
  const { encode, tokens: names, special } = await tokenizer(name);
  const ids = Array.from(encode.encode(text.normalize()).ids, Number);
  return { ids, tokens: ids.map((token) => names[token]), special: ids.map((token) => special.has(token)) };
}

const warm = async ({ id, model }) => void (await load(id, model));

const kinds = { joint, fill, tokens, warm };

self.onmessage = async ({ data }) => {
  if (data.kind === "cancel") {
    cancelled.add(data.id);
    return;
  }
  try {
    say(data.id, "done", { answer: await kinds[data.kind](data) });
  } catch (error) {
    if (error instanceof Stop) say(data.id, "error", { message: "Cancelled.", cancelled: true });
    else say(data.id, "error", { message: error instanceof Bad ? error.message : `The model failed: ${error.message}` });
  }
};
