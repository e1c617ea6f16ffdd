/* The page "Explore a joint": its controls and what they show. Drawing: explore-draw.js.
 *
 * Data comes as scripts that call mlmjointIndex and mlmjointExample, one for each example, read when
 * it is chosen: a page opened from disk may load a script but not a file.
 */
(() => {
  "use strict";

  const draw = window.mlmjointDraw;
  const { number, percent, power, logJoint } = draw;
  const base = new URL("explore/", document.currentScript.src).href;
  const byId = (id) => document.getElementById(id);
  const place = { joint: byId("explore-joint"), steps: byId("explore-steps") };

  const LIVE = "live";
  const SIZES = [15, 30, 60];
  const FIELDS = { "en-small": "English", rxnmapper: "Chemical reactions", "sapiens-vh": "Antibodies" };
  const ABOUT = {
    mlm: "p(a) · p(b), both masked at once: the two are independent, so all rows are proportional.",
    mrf: "∝ p(a | b) · p(b | a): favours pairs in which each word almost implies the other.",
    "mrf-l": "∝ exp(logit of a + logit of b): the same with raw scores.",
    hcb: "∝ p(a | b) / p(a* | b) · p(b | a*), with a pivot a*.",
    ag: "The joint whose own conditionals are nearest to the model’s, by the objective J.",
    "chain-ab": "p(a) · p(b | a): A first, with B still masked, then B.",
    "chain-ba": "p(b) · p(a | b): B first, with A still masked, then A.",
    "chain-mean": "The mean of the two orders.",
    "chain-geo": "∝ the geometric mean of the two orders.",
    gibbs: "The stationary distribution of resampling one position at a time, at random.",
    "chain-conf": "The chain that begins where the model is surer with both masked.",
    "ag-copula": "AG’s odds ratios, with the marginals that the model has when both are masked.",
    "mrf-copula": "The MRF’s odds ratios, with the marginals that the model has when both are masked.",
    head: "A pair head’s mixture of products, read off one pass with both masked: no tables are needed.",
  };

  const state = { index: null, data: null, method: "ag", step: 8, size: 60, cell: [0, 0] };
  const loaded = {};

  window.mlmjointIndex = (index) => {
    state.index = index;
  };
  window.mlmjointExample = (data) => {
    loaded[data.name] = draw.unpack(data);
  };

  function load(file, done) {
    const script = document.createElement("script");
    script.src = base + file;
    script.onload = done;
    script.onerror = () => {
      const message = `${file} could not be read; is the folder _static/explore complete?`;
      (byId("ex-status") || place.joint).textContent = message;
    };
    document.head.append(script);
  }

  const safe = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const word = (side, text) => `<b class="ex-${"ab"[side]}">${safe(text)}</b>`;
  const shown = () => [state.data.n, state.data.m].map((most) => Math.min(state.size, most));

  // What is shown ------------------------------------------------------------------------------

  function scene(more) {
    const [n, m] = shown();
    const { data, cell } = state;
    return { data, cell, n, m, full: false, colour: draw.probabilities(data.lowest), ...more };
  }

  function drawJoint() {
    const { data, cell: [i, j] } = state;
    const { log, margins } = logJoint(data, data.joints[state.method]);
    draw.drawMap(byId("ex-map"), scene({ logs: log, margins, full: true }));
    draw.drawProbabilityScale(byId("ex-scale"));
    byId("ex-readout").innerHTML =
      `${word(0, data.tokens[0][i])} ${word(1, data.tokens[1][j])} ` +
      `<b>${percent(Math.exp(log[i * data.m + j]))}</b> <span>alone: ` +
      `<span class="ex-a">${percent(Math.exp(margins[0][i]))}</span> and ` +
      `<span class="ex-b">${percent(Math.exp(margins[1][j]))}</span></span>`;
  }

  function describeJoint() {
    const { data, method } = state;
    const { log, objective, information } = logJoint(data, data.joints[method]);
    const [n, m] = shown();
    let mass = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) mass += Math.exp(log[i * data.m + j]);
    byId("ex-about").textContent = ABOUT[method] + (method === "hcb" ? ` Here it is “${pivot(data)}”.` : "");
    byId("ex-facts").innerHTML = [
      [data.known === false ? "the likeliest pair under AG" : "the pair in the text", percent(Math.exp(log[data.gold[0] * data.m + data.gold[1]])), ""],
      [`all ${n} × ${m} pairs shown`, percent(Math.min(mass, 1)), "of the probability"],
      ["distance J from the model’s conditionals", `${number(objective, 4)} nats`,
        `no joint is below ${number(data.bound, 4)}`],
      ...(information === undefined ? [] : [["what the two words say about each other",
        `${number(information, 3)} nats`, "mutual information"]]),
    ].map(([name, value, more]) => `<div><dt>${name}</dt><dd>${value} <small>${more}</small></dd></div>`).join("");
    byId("ex-top").innerHTML = data.top[method].map(([a, b, p]) =>
      `<tr><td>${word(0, a)}</td><td>${word(1, b)}</td><td>${percent(p)}</td></tr>`).join("");
  }

  /** The likeliest token at A with both masked: HCB's default. */
  function pivot(data) {
    const alone = [...logJoint(data, data.joints.mlm).margins[0]];
    return data.tokens[0][alone.indexOf(Math.max(...alone))];
  }

  function drawSteps() {
    const { data, cell: [i, j] } = state;
    const now = logJoint(data, data.steps[state.step]).log;
    const solved = logJoint(data, data.joints.ag).log;
    draw.drawMap(byId("ex-published"), scene({ logs: now }));
    draw.drawMap(byId("ex-solved"), scene({ logs: solved }));
    const low = data.lowest * Math.LN10;
    const ratio = now.map((log, k) => (Math.max(log, solved[k]) < low ? NaN : log - solved[k]));
    draw.drawMap(byId("ex-ratio"), scene({ logs: ratio, colour: draw.ratios }));
    draw.drawRatioScale(byId("ex-scale-ratio"));
    draw.drawCurve(byId("ex-curve"), data, state.step);
    const k = i * data.m + j;
    byId("ex-compare").innerHTML =
      `${word(0, data.tokens[0][i])} ${word(1, data.tokens[1][j])} ` +
      `published <b>${percent(Math.exp(now[k]))}</b>, solved <b>${percent(Math.exp(solved[k]))}</b>, ` +
      `ratio <b>${number(Math.exp(now[k] - solved[k]), 3)}</b>`;
  }

  function describeSteps() {
    const { data, step } = state;
    const count = data.steps[step].steps;
    const name = count === 0 ? "the uniform start" : `${count} step${count === 1 ? "" : "s"}`;
    byId("ex-step").setAttribute("aria-valuetext", name);
    byId("ex-step-value").textContent = name;
    byId("ex-published-name").textContent = count === 0 ? "Published: the start" : `Published, after ${name}`;
    byId("ex-solved-name").textContent = `Solved, in ${data.joints.ag.passes} passes`;
    const row = (label, { objective, residual }, current) => {
      const above = objective - data.bound;
      const cells = [
        number(objective, 4),
        above > 1e-5 * data.bound ? `+ ${number(above, 4)}` : "0",
        residual === undefined ? "–" : number(residual, 3),
      ];
      return `<tr${current ? ' aria-current="true"' : ""}><th scope="row">${label}</th>` +
        `${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`;
    };
    byId("ex-table").innerHTML =
      data.steps.map((stop, k) => row(stop.steps, stop, k === step)).join("") +
      row("solved", data.joints.ag, false);
  }

  /** A tab for every construction that the data have: a joint computed here has more than a stored one. */
  function fillTabs() {
    const { methods, live } = state.index;
    const some = [...methods, ...live].filter(([method]) => method in state.data.joints);
    if (`${some.map(([method]) => method)}` === `${tabs().map((tab) => tab.dataset.method)}`) return;
    place.joint.querySelector('[role="tablist"]').innerHTML = some.map(([method, name]) => `<button type="button"
      role="tab" id="ex-tab-${method}" data-method="${method}" aria-controls="ex-panel">${safe(name)}</button>`).join("");
    for (const tab of tabs()) {
      tab.addEventListener("keydown", tabKeys);
      tab.addEventListener("click", () => {
        state.method = tab.dataset.method;
        remember();
        showTab();
      });
    }
  }

  function showTab() {
    for (const tab of tabs()) {
      const chosen = tab.dataset.method === state.method;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) byId("ex-panel").setAttribute("aria-labelledby", tab.id);
    }
    describeJoint();
    drawJoint();
  }

  function showExample() {
    const { data } = state;
    const [before, a, between, b, after] = data.text;
    byId("ex-sentence").innerHTML =
      `${safe(before)}${word(0, a)}<sub class="ex-a">A</sub>${safe(between)}` +
      `${word(1, b)}<sub class="ex-b">B</sub>${safe(after)}`;
    byId("ex-sentence").classList.toggle("ex-code", data.model.name !== "en-small");
    const pairs = data.vocabulary.map((count) => count.toLocaleString("en")).join(" × ");
    byId("ex-note").textContent = `${data.note} Model ${data.model.name}, ${pairs} pairs.`;
    byId("ex-lowest").textContent = power(data.lowest);
    byId("ex-blank").textContent = `Blank where both are below ${power(data.lowest)}.`;
    byId("ex-status").textContent = "";
    const most = Math.max(data.n, data.m);
    state.size = Math.min(most, SIZES.at(-1));
    state.cell = data.gold.map((k) => Math.min(k, state.size - 1));
    const sizes = [...SIZES.filter((size) => size < most), most];
    const radio = (size) => `<label><input type="radio" name="ex-size" value="${size}"> ${size}</label>`;
    byId("ex-sizes").innerHTML = sizes.map(radio).join(" ");
    byId("ex-sizes").querySelector(`[value="${state.size}"]`).checked = true;
    for (const part of Object.values(place)) part.classList.add("ex-ready");
    fillTabs();
    showTab();
    describeSteps();
    drawSteps();
  }

  function redraw() {
    if (!state.data) return;
    drawJoint();
    drawSteps();
  }

  // What can be chosen -------------------------------------------------------------------------

  const tabs = () => [...place.joint.querySelectorAll('[role="tab"]')];

  function choose(name) {
    const show = () => {
      if (byId("ex-example").value !== name) return; // another was chosen while this one was read
      state.data = loaded[name];
      if (!(state.method in state.data.joints)) state.method = "ag";
      remember();
      showExample();
    };
    byId("ex-example").value = name;
    if (loaded[name]) show();
    else load(`${name}.js`, show);
  }

  /** Keep the address a link to what is shown. */
  function remember() {
    const name = byId("ex-example").value;
    const address = loaded[name]?.address?.(state.method) ?? `#show-${name}-${state.method}`;
    try {
      history.replaceState(null, "", address);
    } catch {
      // Some browsers refuse on pages from disk; only the link is lost.
    }
  }

  /** Show what a link to #show-EXAMPLE-METHOD names; any other link is left to the browser. */
  function follow(otherwise) {
    const [, name, method] = location.hash.match(/^#show-([a-z]+)-([a-z-]+)$/) || [];
    const known = state.index.examples.some((example) => example[0] === name) && method in ABOUT;
    if (known) {
      state.method = method;
      place.joint.scrollIntoView();
    }
    if (known || otherwise) choose(known ? name : otherwise);
  }

  /** Show a joint that was computed in this browser: the example LIVE of the list. */
  function showLive(data, method) {
    loaded[LIVE] = draw.unpack(data);
    const list = byId("ex-example");
    if (!list.querySelector(`[value="${LIVE}"]`)) list.prepend(new Option("Your sentence", LIVE));
    if (method in ABOUT) state.method = method;
    choose(LIVE);
  }
  window.mlmjointExplore = { showLive, method: () => state.method };

  function select(i, j) {
    const cell = shown().map((count, side) => Math.min(Math.max([i, j][side], 0), count - 1));
    if (`${cell}` === `${state.cell}`) return;
    state.cell = cell;
    redraw();
  }

  function listen(canvas) {
    const point = (event) => {
      if (!state.data) return;
      const at = draw.layout(canvas, scene({ full: canvas.id === "ex-map" }));
      const box = canvas.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - at.top) / at.cell);
      const j = Math.floor((event.clientX - box.left - at.left) / at.cell);
      const [n, m] = shown();
      if (i >= 0 && i < n && j >= 0 && j < m) select(i, j);
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("keydown", (event) => {
      const [i, j] = state.cell;
      const to = {
        ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1], Home: [i, 0], End: [i, Infinity],
        ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], PageUp: [i - 10, j], PageDown: [i + 10, j],
      }[event.key];
      if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      select(...to);
    });
  }

  function tabKeys(event) {
    const all = tabs();
    const k = all.indexOf(event.currentTarget);
    const to = { ArrowLeft: k - 1, ArrowRight: k + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const tab = all[(to + all.length) % all.length];
    tab.focus();
    tab.click();
  }

  // The page -----------------------------------------------------------------------------------

  const map = (id, what) => `<div class="ex-map"><canvas id="${id}" tabindex="0" role="application"
    aria-roledescription="heatmap" aria-label="${what} Rows are tokens at A, columns tokens at B.
    Arrow keys move from pair to pair."></canvas></div>`;

  function build() {
    const { examples } = state.index;
    const options = Object.entries(FIELDS).map(([model, field]) => {
      const those = examples.filter((example) => example[1] === model);
      const lines = those.map(([name, , title]) => `<option value="${name}">${safe(title)}</option>`);
      return `<optgroup label="${field}">${lines.join("")}</optgroup>`;
    });
    place.joint.innerHTML = `
      <div class="ex-pick"><label for="ex-example">Example</label>
        <select id="ex-example">${options.join("")}</select></div>
      <p id="ex-sentence"></p><p id="ex-note"></p><p id="ex-status" role="status"></p>
      <div role="tablist" aria-label="Construction" class="ex-tabs"></div>
      <div role="tabpanel" id="ex-panel">
        <div class="ex-bar"><p id="ex-about"></p>
          <fieldset><legend>Tokens</legend><span id="ex-sizes"></span></fieldset></div>
        <div class="ex-body">
          <div>
            <p id="ex-readout" aria-live="polite"></p>
            ${map("ex-map", "The joint.")}
            <div class="ex-legend"><div><canvas id="ex-scale" aria-hidden="true"></canvas></div>
              <p><span id="ex-lowest"></span><span>probability of the pair, log scale</span><span>1</span></p></div>
          </div>
          <div><dl id="ex-facts"></dl>
            <table class="ex-pairs"><caption>Likeliest pairs</caption><thead><tr>
              <th scope="col">A</th><th scope="col">B</th><th scope="col">probability</th>
              </tr></thead><tbody id="ex-top"></tbody></table></div>
        </div>
      </div>`;
    place.steps.innerHTML = `
      <div class="ex-slide"><label for="ex-step">Published update:
        <output id="ex-step-value" for="ex-step"></output></label>
        <input type="range" id="ex-step" min="0" max="10" step="1" value="${state.step}">
        <div id="ex-curve"></div></div>
      <p id="ex-compare" aria-live="polite"></p>
      <div class="ex-three">
        <figure><figcaption id="ex-published-name"></figcaption>
          ${map("ex-published", "The joint after the published steps.")}</figure>
        <figure><figcaption id="ex-solved-name"></figcaption>${map("ex-solved", "The solved joint.")}</figure>
        <figure><figcaption>Published ÷ solved</figcaption>${map("ex-ratio", "The ratio of the two.")}
          <div class="ex-legend"><div><canvas id="ex-scale-ratio" aria-hidden="true"></canvas></div>
            <p><span>1/${draw.TIMES}</span><span>1</span><span>${draw.TIMES} times</span></p>
            <p id="ex-blank"></p></div></figure>
      </div>
      <table class="ex-evidence"><caption>Every stop of the slider</caption><thead><tr>
        <th scope="col">steps</th><th scope="col">J in nats</th><th scope="col">above bound</th>
        <th scope="col">residual</th></tr></thead><tbody id="ex-table"></tbody></table>`;

    byId("ex-example").addEventListener("change", (event) => choose(event.target.value));
    byId("ex-sizes").addEventListener("change", (event) => {
      state.size = Number(event.target.value);
      state.cell = state.cell.map((k) => Math.min(k, state.size - 1));
      describeJoint();
      redraw();
    });
    byId("ex-step").addEventListener("input", (event) => {
      state.step = Number(event.target.value);
      describeSteps();
      drawSteps();
    });
    for (const id of ["ex-map", "ex-published", "ex-solved", "ex-ratio"]) listen(byId(id));
    const themes = { attributes: true, attributeFilter: ["data-theme"] };
    new MutationObserver(redraw).observe(document.documentElement, themes);
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      // Drawing changes the height, which is no reason to draw again.
      if (contentRect.width !== width) redraw();
      width = contentRect.width;
    }).observe(place.joint);
    window.addEventListener("hashchange", () => follow());
    follow(examples[0][0]);
  }

  load("index.js", build);
})();
