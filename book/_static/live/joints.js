/* Joints of two small conditional tables, in the reader's browser: the constructions, the solved
 * Arnold-Gokhale joint with its residual and lower bound, and the measures that the page shows.
 *
 * logA[i * m + j] is log p(a=i | b=j) and logB[i * m + j] is log p(b=j | a=i), over n tokens at A and m
 * at B. Tables here have at most some 200 x 200 cells, so everything is dense and in double precision.
 */

const TINY = 1e-300;
const STEPS = [0, 1, 2, 3, 5, 8, 13, 20, 40, 100, 300]; // stops of the published update

const sum = (values) => values.reduce((total, value) => total + value, 0);
const logAdd = (x, y) => Math.max(x, y) + Math.log1p(Math.exp(-Math.abs(x - y)));

export function logSumExp(values) {
  const top = values.reduce((x, y) => Math.max(x, y), -Infinity);
  return top === -Infinity ? top : top + Math.log(sum(values.map((value) => Math.exp(value - top))));
}

/** log-probabilities from logits. */
export function logSoftmax(logits) {
  const z = logSumExp(logits);
  return logits.map((value) => value - z);
}

/** Σ over rows and over columns of an (n, m) table. */
function margins(table, n, m) {
  const [rows, cols] = [new Float64Array(n), new Float64Array(m)];
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      rows[i] += table[i * m + j];
      cols[j] += table[i * m + j];
    }
  }
  return [rows, cols];
}

/** log μ of all cells, normalised, with both log marginals. */
function normalised(log, n, m) {
  const z = logSumExp(log);
  const out = Float64Array.from(log, (value) => value - z);
  const logs = margins(out.map(Math.exp), n, m).map((sums) => sums.map((p) => Math.log(Math.max(p, TINY))));
  return { log: out, margins: logs };
}

/** Σ_j KL(p(·|b=j) ‖ μ(·|b=j)) + Σ_i KL(p(·|a=i) ‖ μ(·|a=i)), in nats. */
export function objective({ a, b, logA, logB, n, m }, { log, margins: [rows, cols] }) {
  let total = 0;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      const k = i * m + j;
      total += a[k] * (logA[k] - log[k] + cols[j]) + b[k] * (logB[k] - log[k] + rows[i]);
    }
  }
  return Math.max(0, total);
}

/** KL(μ ‖ μ_A μ_B): how much the two tokens say about each other, in nats. */
export function information({ log, margins: [rows, cols] }) {
  const m = cols.length;
  return Math.max(0, sum(log.map((x, k) => Math.exp(x) * (x - rows[Math.floor(k / m)] - cols[k % m]))));
}

/** Stationary distribution of (n, n) transition weights, by elimination without a subtraction. */
function stationary(chain, n) {
  for (let k = n - 1; k > 0; k--) {
    let pivot = 0;
    for (let j = 0; j < k; j++) pivot += chain[k * n + j];
    for (let i = 0; i < k; i++) {
      chain[i * n + k] /= Math.max(pivot, TINY);
      for (let j = 0; j < k; j++) chain[i * n + j] += chain[i * n + k] * chain[k * n + j];
    }
  }
  const out = new Float64Array(n);
  out[0] = 1;
  for (let k = 1; k < n; k++) for (let i = 0; i < k; i++) out[k] += out[i] * chain[i * n + k];
  const total = sum(out);
  return out.map((value) => value / total);
}

/** m_A and m_B of random-scan Gibbs sampling. */
function gibbs({ a, b, n, m }) {
  const chain = new Float64Array(n * n); // from a to b to another a
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < n; k++) for (let j = 0; j < m; j++) chain[i * n + k] += b[i * m + j] * a[k * m + j];
  }
  const rows = stationary(chain, n);
  const cols = new Float64Array(m);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) cols[j] += rows[i] * b[i * m + j];
  return [rows, cols];
}

// Arnold-Gokhale -------------------------------------------------------------------------------

/** The balance equations at log strengths z: their sums, gradient, weights and largest violation. */
function balance(q, n, m, z) {
  const [sums, weights] = [new Float64Array(n + m), new Float64Array(n * m)];
  const top = z.reduce((x, y) => Math.max(x, y));
  const strength = z.map((x) => Math.exp(Math.max(x - top, -600))); // never zero
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      const k = i * m + j;
      const share = q[k] / (strength[i] + strength[n + j]);
      sums[i] += share * strength[i];
      sums[n + j] += share * strength[n + j];
      weights[k] = share * strength[i] * (strength[n + j] / (strength[i] + strength[n + j]));
    }
  }
  const gradient = sums.map((value) => value - 1);
  return { z, sums, gradient, weights, residual: gradient.reduce((x, y) => Math.max(x, Math.abs(y)), 0) };
}

/** d with Laplacian(W) d = -gradient: the columns are eliminated, the rows solved by Cholesky. */
function newtonStep({ weights, gradient }, n, m) {
  const columns = Float64Array.from({ length: m }, (_, j) => {
    let total = TINY;
    for (let i = 0; i < n; i++) total += weights[i * m + j];
    return total;
  });
  const matrix = new Float64Array(n * n);
  const right = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    right[i] = -gradient[i];
    for (let j = 0; j < m; j++) right[i] -= (weights[i * m + j] * gradient[n + j]) / columns[j];
    for (let k = 0; k < i; k++) {
      let tie = 0;
      for (let j = 0; j < m; j++) tie += (weights[i * m + j] * weights[k * m + j]) / columns[j];
      matrix[i * n + k] = matrix[k * n + i] = -tie;
      matrix[i * n + i] += tie;
      matrix[k * n + k] += tie;
    }
  }
  // The first row's strength is fixed: only ratios matter.
  const lower = new Float64Array(n * n);
  const x = new Float64Array(n);
  for (let i = 1; i < n; i++) {
    for (let k = 1; k <= i; k++) {
      let value = matrix[i * n + k];
      for (let l = 1; l < k; l++) value -= lower[i * n + l] * lower[k * n + l];
      lower[i * n + k] = i === k ? Math.sqrt(Math.max(value, TINY)) : value / lower[k * n + k];
    }
    let value = right[i];
    for (let l = 1; l < i; l++) value -= lower[i * n + l] * x[l];
    x[i] = value / lower[i * n + i];
  }
  for (let i = n - 1; i > 0; i--) {
    for (let l = i + 1; l < n; l++) x[i] -= lower[l * n + i] * x[l];
    x[i] /= lower[i * n + i];
  }
  const d = new Float64Array(n + m);
  d.set(x);
  for (let j = 0; j < m; j++) {
    let value = -gradient[n + j];
    for (let i = 0; i < n; i++) value += weights[i * m + j] * x[i];
    d[n + j] = value / columns[j];
  }
  return d;
}

/** Log strengths that balance every row and column to `tol`. */
function solve(q, n, m, start, tol = 1e-12, most = 200) {
  let [state, best, passes] = [balance(q, n, m, start), null, 1];
  best = state;
  while (best.residual > tol && passes < most) {
    const d = newtonStep(state, n, m).map((x) => (Number.isFinite(x) ? Math.min(Math.max(x, -5), 5) : 0));
    const slope = sum(d.map((x, k) => x * state.gradient[k]));
    let next = state;
    for (let size = 1; size > 1e-6 && passes < most; size /= 2) {
      next = balance(q, n, m, state.z.map((x, k) => x + size * d[k]));
      passes++;
      if (sum(d.map((x, k) => x * next.gradient[k])) <= 0.5 * Math.abs(slope)) break;
    }
    if (next.residual >= best.residual && next.residual >= state.residual) break; // rounding is left
    state = next;
    if (state.residual < best.residual) best = state;
  }
  return { ...best, passes };
}

const xlogx = (x) => (x > 0 ? x * Math.log(x) : 0);

/** A lower bound on every joint's objective that these strengths prove (eq-ag-dual). */
function lowerBound(q, { a, b, logA, logB, n, m }, { z, gradient }) {
  let total = 0;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) {
      const k = i * m + j;
      total += a[k] * logA[k] + b[k] * logB[k];
      total -= xlogx(q[k] / (1 + Math.exp(z[n + j] - z[i]))) + xlogx(q[k] / (1 + Math.exp(z[i] - z[n + j])));
    }
  }
  const least = z.reduce((x, y) => Math.min(x, y), Infinity);
  // What is left of a violation costs at most its size times a log-probability.
  return Math.max(0, total - sum(gradient.map((left, k) => Math.abs(left) * (1 + 2 * (z[k] - least)))));
}

function strengthsJoint(tables, q, z) {
  const { n, m } = tables;
  return normalised(q.map((value, k) => Math.log(Math.max(value, TINY)) -
    logAdd(z[Math.floor(k / m)], z[n + (k % m)])), n, m);
}

/** The published update from the uniform joint, at each of its stops. */
function publishedSteps(tables, q) {
  const { n, m } = tables;
  const stops = [];
  let z = Float64Array.from({ length: n + m }, (_, k) => Math.log(k < n ? n : m));
  const uniform = normalised(new Float64Array(n * m), n, m);
  stops.push({ steps: 0, ...uniform, objective: objective(tables, uniform) });
  for (let step = 1; step <= STEPS.at(-1); step++) {
    const state = balance(q, n, m, z);
    if (STEPS.includes(step)) {
      const joint = strengthsJoint(tables, q, z);
      stops.push({ steps: step, ...joint, objective: objective(tables, joint), residual: state.residual });
    }
    z = z.map((x, k) => x - Math.log(Math.max(state.sums[k], TINY)));
    const shift = logSumExp(z.subarray(0, n).map((x) => -x));
    z = z.map((x) => x + shift);
  }
  return stops;
}

/** A joint's odds ratios with other marginals: iterative proportional fitting. */
function copula(log, n, m, logPa, logPb, tol = 1e-9, most = 2000) {
  const cells = log.map((x) => Math.exp(Math.max(x, -600)));
  const [pa, pb] = [logPa.map(Math.exp), logPb.map(Math.exp)];
  const [f, g] = [new Float64Array(n), new Float64Array(m).fill(1)];
  for (let pass = 0, worst = Infinity; pass < most && worst >= tol; pass++) {
    const cols = new Float64Array(m);
    for (let i = 0; i < n; i++) {
      let row = 0;
      for (let j = 0; j < m; j++) row += cells[i * m + j] * g[j];
      f[i] = pa[i] / Math.max(row, TINY);
      for (let j = 0; j < m; j++) cols[j] += cells[i * m + j] * f[i];
    }
    worst = 0;
    for (let j = 0; j < m; j++) {
      worst = Math.max(worst, Math.abs(cols[j] * g[j] - pb[j]));
      g[j] = pb[j] / Math.max(cols[j], TINY);
    }
  }
  const [u, v] = [f, g].map((side) => side.map((x) => Math.log(Math.max(x, TINY))));
  return log.map((x, k) => x + u[Math.floor(k / m)] + v[k % m]);
}

// All of them ----------------------------------------------------------------------------------

/** Every construction of two tables: {joints: {name: {log, margins, objective, information}}, steps, bound}.
 *
 * tables: {n, m, logA, logB, logPa, logPb, logZa, logZb}, the last four as in mlmjoint.Tables; with a
 * pair head also head: {logW, sides}, its mixture of products (eq-one-pass), or {given}, the
 * conditionals of each side by the token at the other (eq-one-pass-conditionals)
 */
export function derive(tables) {
  const { n, m, logA, logB, logPa, logPb, logZa, logZb, head } = tables;
  const linear = { ...tables, a: logA.map(Math.exp), b: logB.map(Math.exp) };
  const cells = (formula) => {
    const log = new Float64Array(n * m);
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) log[i * m + j] = formula(i * m + j, i, j);
    return normalised(log, n, m);
  };
  const q = linear.a.map((x, k) => x + linear.b[k]);
  const solved = solve(q, n, m, Float64Array.from([...logPa, ...logPb], (x) => -Math.max(x, -300)));
  const [a, b] = gibbs(linear).map((side) => side.map((p) => Math.log(Math.max(p, TINY))));
  const pivot = logPa.indexOf(logPa.reduce((x, y) => Math.max(x, y)));
  const joints = {
    mlm: cells((k, i, j) => logPa[i] + logPb[j]),
    mrf: cells((k) => logA[k] + logB[k]),
    "mrf-l": cells((k, i, j) => logA[k] + logZa[j] + logB[k] + logZb[i]),
    hcb: cells((k, i, j) => logA[k] - logA[pivot * m + j] + logB[pivot * m + j]),
    ag: strengthsJoint(tables, q, solved.z),
    "chain-ab": cells((k, i) => logPa[i] + logB[k]),
    "chain-ba": cells((k, i, j) => logPb[j] + logA[k]),
    "chain-mean": cells((k, i, j) => logAdd(logPa[i] + logB[k], logPb[j] + logA[k])),
    "chain-geo": cells((k, i, j) => 0.5 * (logPa[i] + logB[k] + logPb[j] + logA[k])),
    gibbs: cells((k, i, j) => logAdd(logA[k] + b[j], logB[k] + a[i])),
  };
  const surer = Math.max(...logPa) >= Math.max(...logPb) ? "chain-ab" : "chain-ba";
  joints["chain-conf"] = { ...joints[surer] };
  for (const base of ["ag", "mrf"]) {
    joints[`${base}-copula`] = normalised(copula(joints[base].log, n, m, logPa, logPb), n, m);
  }
  if (head?.given) {
    const [a, b] = head.given;
    joints.head = cells((k, i, j) => logAdd(logPa[i] + b[i][j], logPb[j] + a[j][i]));
  } else if (head) {
    const [rows, cols] = head.sides;
    joints.head = cells((k, i, j) => logSumExp(head.logW.map((w, r) => w + rows[r][i] + cols[r][j])));
  }
  for (const joint of Object.values(joints)) {
    joint.objective = objective(linear, joint);
    joint.information = information(joint);
  }
  Object.assign(joints.ag, { residual: solved.residual, passes: solved.passes });
  const bound = Math.min(lowerBound(q, linear, solved), joints.ag.objective);
  return { joints, steps: publishedSteps(linear, q), bound, pivot };
}

/** The `count` largest cells of a joint: [row, column, probability], best first. */
export function topCells({ log, margins: [, cols] }, count) {
  const order = Array.from(log.keys()).sort((x, y) => log[y] - log[x]).slice(0, count);
  return order.map((k) => [Math.floor(k / cols.length), k % cols.length, Math.exp(log[k])]);
}
