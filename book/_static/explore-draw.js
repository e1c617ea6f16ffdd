/* Drawing for the page "Explore a joint": from an example's data to numbers, heatmaps and a curve.
 *
 * No library: heatmaps, bars and one curve are a few hundred lines of what every browser has. Nothing
 * to license, nothing that ages, and it opens from disk.
 *
 * An example (written by book/make/explorer.py) holds the two conditional tables over the tokens shown
 * and, for each joint, the two vectors of its formula; logJoint puts them together, as
 * mlmjoint/engine/passes/cells.py does.
 */
window.mlmjointDraw = (() => {
  "use strict";

  // Cividis: even steps look even, with every common colour blindness and in grey.
  const CIVIDIS = (
    "#00224e #003170 #2a3f6d #434e6c #575d6d #6a6c71 #7d7c78 #918b78 #a59c74 #bcae6c #d2c060 #e9d34e #fee838"
  ).split(" ");
  const LESS_MORE = {
    light: "#08457e #4a8fc7 #b5d3ea #f3f3f1 #f3cfae #d98a45 #8f4700".split(" "),
    dark: "#8cc8ff #3f86c4 #1f4a70 #24262a #6b4420 #c27a35 #ffc078".split(" "),
  };
  const LOWEST = [-7, -4]; // where the scale of probabilities may end, in powers of ten
  const TIMES = 8; // where the scale of ratios ends, either way

  // Data ---------------------------------------------------------------------------------------

  const floats = (text) =>
    new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const logAdd = (x, y) => Math.max(x, y) + Math.log1p(Math.exp(-Math.abs(x - y)));

  /** An example with its two tables unpacked and the end of its colour scale. */
  function unpack(data) {
    const [n, m] = data.tokens.map((names) => names.length);
    const example = { ...data, n, m }; // one that was computed here has its tables already
    if (data.tables) {
      const logs = floats(data.tables);
      Object.assign(example, { logA: logs.subarray(0, n * m), logB: logs.subarray(n * m) });
    }
    // Most cells of all its joints lie above the darkest colour.
    const all = Float64Array.from(Object.values(data.joints).flatMap((joint) => [...logJoint(example, joint).log]));
    const tenth = all.sort()[Math.floor(all.length / 10)] / Math.LN10;
    example.lowest = Math.min(Math.max(Math.floor(tenth), LOWEST[0]), LOWEST[1]);
    return example;
  }

  /** A stored joint with log μ over the tokens shown and the logs of both marginals. */
  function logJoint({ n, m, logA, logB }, stored) {
    if (stored.log) return stored;
    const vectors = floats(stored.vectors);
    const row = vectors.subarray(0, n);
    const col = vectors.subarray(n, n + m);
    const [ca, cb] = stored.c;
    const cell = {
      product: (k, i, j) => ca * logA[k] + cb * logB[k] + row[i] + col[j],
      mixture: (k, i, j) => logAdd(logA[k] + col[j], logB[k] + row[i]),
      ag: (k, i, j) => logAdd(logA[k], logB[k]) - logAdd(row[i], col[j]),
    }[stored.family];
    stored.log = Float64Array.from(logA, (_, k) => cell(k, Math.floor(k / m), k % m));
    stored.margins = [vectors.subarray(n + m, 2 * n + m), vectors.subarray(2 * n + m)];
    return stored;
  }

  // Numbers ------------------------------------------------------------------------------------

  const digits = (x, count) =>
    x.toLocaleString("en", { minimumSignificantDigits: count, maximumSignificantDigits: count });
  const raised = (k) => [...`${k}`].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  const power = (k) => `10${raised(k)}`;
  function scientific(x) {
    const [lead, exponent] = x.toExponential(1).split("e");
    return `${lead} × ${power(Number(exponent))}`;
  }
  const number = (x, count) =>
    x === 0 ? "0" : x >= 1e-3 && x < 1e7 ? digits(x, count) : scientific(x);
  const percent = (p) => `${number(100 * p, 3)} %`;

  // Colours ------------------------------------------------------------------------------------

  const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  function ramp(colours, share) {
    const x = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
    const k = Math.min(Math.floor(x), colours.length - 2);
    const [from, to] = [channels(colours[k]), channels(colours[k + 1])];
    return from.map((c, q) => Math.round(c + (x - k) * (to[q] - c)));
  }
  const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");
  const probabilities = (lowest) => (log) => ramp(CIVIDIS, 1 - log / Math.LN10 / lowest);
  const ratios = (log) => ramp(LESS_MORE[theme()], 0.5 + (0.5 * (log || 0)) / Math.log(TIMES));

  // Pictures -----------------------------------------------------------------------------------

  /** A canvas as wide as its box, drawn at the screen's own resolution. */
  function prepare(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(canvas.parentElement.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return pen;
  }

  /** Pixels that the longest label of a side needs. */
  function labelRoom(canvas, names) {
    const pen = canvas.getContext("2d");
    pen.font = `bold 13px ${getComputedStyle(canvas).fontFamily}`;
    const widest = Math.max(...names.map((name) => pen.measureText(name).width));
    return Math.min(84, Math.max(30, widest + 10));
  }

  /** Where things lie: labels left and below, bars right and above, none of them on small maps. */
  function layout(canvas, { data, n, m, full }) {
    const width = canvas.parentElement.clientWidth;
    const room = { left: 3, top: 3, right: 3, below: 3 };
    const labels = full && width > 460;
    if (full) Object.assign(room, { top: labels ? 46 : 34, right: labels ? 50 : 34 });
    if (labels) {
      room.left = labelRoom(canvas, data.tokens[0].slice(0, n));
      room.below = labelRoom(canvas, data.tokens[1].slice(0, m));
    }
    const cell = Math.min(full ? 40 : 60, (width - room.left - room.right) / m);
    return { ...room, labels, cell, width: cell * m, height: cell * n };
  }

  /** A heatmap. A scene has data, n, m, cell (the chosen pair), full, logs, colour and margins. */
  function drawMap(canvas, scene) {
    const { data, n, m } = scene;
    const at = layout(canvas, scene);
    const pen = prepare(canvas, at.top + at.height + at.below);
    const image = new ImageData(m, n);
    for (let k = 0; k < n * m; k++) {
      image.data.set(scene.colour(scene.logs[Math.floor(k / m) * data.m + (k % m)]), 4 * k);
      image.data[4 * k + 3] = 255;
    }
    const small = document.createElement("canvas");
    Object.assign(small, { width: m, height: n });
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, at.left, at.top, at.width, at.height);
    frame(pen, at, scene, data.gold, "#ffffff", 1.5);
    frame(pen, at, scene, scene.cell, "#ff5fa2", 2);
    if (!scene.full) return;
    const css = getComputedStyle(canvas);
    drawBars(pen, at, scene, css);
    if (at.labels) drawLabels(pen, at, scene, css);
  }

  function frame(pen, { left, top, cell }, { n, m }, [i, j], colour, line) {
    if (i >= n || j >= m) return;
    for (const [style, grow, wide] of [["#000000", line + 0.5, 1.5], [colour, line / 2, line]]) {
      pen.strokeStyle = style;
      pen.lineWidth = wide;
      const size = cell + 2 * grow;
      pen.strokeRect(left + j * cell - grow, top + i * cell - grow, size, size);
    }
  }

  /** Both marginals, each to its own largest value. */
  function drawBars(pen, at, { n, m, margins }, css) {
    const gap = at.cell > 6 ? 1 : 0.5;
    [n, m].forEach((count, side) => {
      const shares = Array.from(margins[side].subarray(0, count), Math.exp);
      const scale = ((side ? at.top : at.right) - 8) / Math.max(...shares);
      pen.fillStyle = css.getPropertyValue(side ? "--ex-b" : "--ex-a");
      shares.forEach((share, k) => {
        const long = Math.max(1, share * scale);
        const start = k * at.cell + gap / 2;
        if (side) pen.fillRect(at.left + start, at.top - 5 - long, at.cell - gap, long);
        else pen.fillRect(at.left + at.width + 5, at.top + start, long, at.cell - gap);
      });
    });
  }

  function drawLabels(pen, at, { data, n, m, cell }, css) {
    [n, m].forEach((count, side) => {
      for (let k = 0; k < count; k++) {
        const chosen = k === cell[side];
        // The chosen label is larger, and its neighbours make room.
        const crowded = at.cell < 8.5 || Math.abs(k - cell[side]) * at.cell < 13;
        if (!chosen && crowded) continue;
        const size = Math.min(13, Math.max(9, at.cell - 0.5));
        const along = (k + 0.5) * at.cell;
        pen.save();
        if (side) pen.translate(at.left + along, at.top + at.height + 5);
        else pen.translate(at.left - 5, at.top + along);
        pen.rotate(side ? -Math.PI / 2 : 0);
        pen.font = `${chosen ? `bold ${Math.max(size, 12)}` : size}px ${css.fontFamily}`;
        pen.fillStyle = css.getPropertyValue(!chosen ? "--ex-ink" : side ? "--ex-b" : "--ex-a");
        pen.textAlign = "right";
        pen.textBaseline = "middle";
        pen.fillText(data.tokens[side][k], 0, 0.5, 78);
        pen.restore();
      }
    });
  }

  function drawScale(canvas, colour) {
    const pen = prepare(canvas, 10);
    const width = canvas.parentElement.clientWidth;
    for (let x = 0; x < width; x++) {
      pen.fillStyle = `rgb(${colour(x / (width - 1)).join()})`;
      pen.fillRect(x, 0, 1.5, 10);
    }
  }
  const drawProbabilityScale = (canvas) => drawScale(canvas, (share) => ramp(CIVIDIS, share));
  const drawRatioScale = (canvas) =>
    drawScale(canvas, (share) => ratios((2 * share - 1) * Math.log(TIMES)));

  /** J after each step, log scale, above the slider's own stops; the bound as a dashed line. */
  function drawCurve(box, { steps, bound }, chosen) {
    const [width, height, side] = [box.clientWidth, 150, 9];
    const values = steps.map((step) => step.objective);
    const floor = Math.max(Math.min(...values, bound), 1e-9) / 1.6;
    const span = Math.log(Math.max(...values) / floor);
    const x = (k) => (side + (k * (width - 2 * side)) / (steps.length - 1)).toFixed(1);
    const y = (j) => 12 + (1 - Math.log(Math.max(j, floor) / floor) / span) * (height - 34);
    const late = chosen > steps.length / 2;
    const label =
      `J falls from ${number(values[0], 4)} to ${number(values.at(-1), 4)} nats ` +
      `in ${steps.at(-1).steps} steps; the bound is ${number(bound, 4)}.`;
    box.innerHTML = `<svg width="${width}" height="${height}" role="img" aria-label="${label}">
      <line class="ex-bound" x2="${width}" y1="${y(bound)}" y2="${y(bound)}"/>
      <line class="ex-now" x1="${x(chosen)}" x2="${x(chosen)}" y2="${height - 18}"/>
      <polyline points="${values.map((j, k) => `${x(k)},${y(j)}`).join(" ")}"/>
      ${values.map((j, k) => `<circle cx="${x(k)}" cy="${y(j)}" r="${k === chosen ? 5 : 3}"/>`).join("")}
      <text class="ex-value" x="${x(chosen)}" dx="${late ? -10 : 10}" y="${Math.max(y(values[chosen]) - 14, 12)}"
        text-anchor="${late ? "end" : "start"}">J = ${number(values[chosen], 4)}</text>
      <text x="${width}" y="12" text-anchor="end">J in nats, log scale</text>
      <text y="${y(bound) - 5}">bound ${number(bound, 4)}</text>
      ${steps.map((s, k) => `<text x="${x(k)}" y="${height - 4}" text-anchor="middle">${s.steps}</text>`).join("")}
      </svg>`;
  }

  return {
    unpack, logJoint, number, power, percent, probabilities, ratios, layout,
    drawMap, drawProbabilityScale, drawRatioScale, drawCurve, TIMES,
  };
})();
