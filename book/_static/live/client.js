/* What the live pages share: whether a model can run here, and questions to its worker.
 *
 * A classic script, like the others of these pages, so that a page opened from disk can still say what
 * is missing.
 */
window.mlmjointLive = (() => {
  "use strict";

  const base = new URL(".", document.currentScript.src).href;
  // The smallest module with a SIMD instruction.
  const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
  let worker = null;
  let count = 0;
  const waiting = new Map();

  /** Why no model can run here, in one sentence; null if one can. */
  function obstacle() {
    if (location.protocol === "file:") {
      return "A page opened from disk cannot run the model: serve the book with “python -m http.server” " +
        "in its folder, and open http://localhost:8000.";
    }
    try {
      if (WebAssembly.validate(new Uint8Array(SIMD))) return null;
    } catch {
      // no WebAssembly at all
    }
    return "This browser cannot run the model: it lacks WebAssembly with SIMD, which all current browsers have.";
  }

  function start() {
    worker = new Worker(`${base}worker.js`, { type: "module" });
    worker.onmessage = ({ data: { id, kind, ...more } }) => {
      const question = waiting.get(id);
      if (!question) return;
      if (kind === "progress") return question.heard(more);
      waiting.delete(id);
      if (kind === "done") question.resolve(more.answer);
      else question.reject(Object.assign(new Error(more.message), { cancelled: more.cancelled }));
    };
    worker.onerror = (event) => {
      const error = new Error(`The model could not be started: ${event.message || "its script could not be read"}.`);
      waiting.forEach(({ reject }) => reject(error));
      waiting.clear();
      worker = null;
    };
  }

  /** Ask the worker: {answer: a promise, cancel: a function}. `heard` is told of progress. */
  function ask(kind, message, heard = () => {}) {
    if (!worker) start();
    const id = ++count;
    const answer = new Promise((resolve, reject) => waiting.set(id, { resolve, reject, heard }));
    worker.postMessage({ id, kind, ...message });
    return { answer, cancel: () => worker?.postMessage({ id, kind: "cancel" }) };
  }

  /** What a progress bar shows of a message. */
  function describe({ stage, done, total }) {
    if (stage === "download") return `Reading the model: ${(done / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
    if (stage === "start") return "Starting the model";
    if (stage === "search") return `${done} passes`;
    return `${done} of ${total} passes`;
  }

  return { obstacle, ask, describe };
})();
