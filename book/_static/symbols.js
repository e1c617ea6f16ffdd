/* Equations that explain themselves: a symbol of the notation page shows its definition when it is
 * pointed at, an equation that has the focus defines all of its symbols, and a button copies its LaTeX.
 *
 * MathJax gives every element of its tree a place in the page; a filter between reading and drawing
 * marks those that book/make/symbols.py has a definition for.
 */
(() => {
  "use strict";

  const known = window.mlmjointSymbols;
  const [page, section] = known.encoder;
  const everywhere = location.pathname.includes(`/${page}.`);

  // Marking the symbols ------------------------------------------------------------------------

  const text = (node) => (node.isKind("text") ? node.getText() : node.childNodes.map((child) => (child ? text(child) : "")).join(""));

  /** What follows a node up to the closing bracket: the nodes and their text; null if nothing opens. */
  function argument(node) {
    const [row, nodes] = [node.parent, []];
    const start = row.childNodes.indexOf(node) + 1;
    for (let k = start, depth = 0; k < row.childNodes.length; k++) {
      const part = text(row.childNodes[k]);
      nodes.push(row.childNodes[k]);
      depth += (part === "(") - (part === ")");
      if (depth === 0) return k > start ? { nodes, inner: nodes.slice(1, -1).map(text).join("") } : null;
    }
    return null;
  }

  /** p(a=i), p(i | j), p(· | a=i) are "(", "(a|", "(b|"; "" for a probability of anything else. */
  function bracket(base, inner) {
    const [left, right] = inner.split(/[∣|]/);
    if (base === "p" && !/^[abij⋅·]/.test(left)) return "";
    if (right === undefined) return "(";
    return /^[ai]/.test(left) || (/^[⋅·]/.test(left) && /^[bj]/.test(right)) ? "(a|" : "(b|";
  }

  function mark(node, table) {
    const parent = node.parent;
    const scripted = /^m(sub|sup|subsup)$/.test(parent.kind) && parent.childNodes[0] === node;
    const host = scripted ? parent : node;
    const [sub, sup] = ["sub", "sup"].map((side) => {
      const child = scripted && parent.childNodes[parent[side]];
      return child ? text(child) : "";
    });
    const base = text(node);
    const call = sub || sup ? null : argument(host);
    const keys = [sup && `${base}^${sup}`, sub && `${base}_${/^[ij]+$/.test(sub) ? "ij" : sub}`,
      call && base + bracket(base, call.inner), base];
    const key = keys.find((name) => name && name in table);
    if (!key) return;
    const nodes = [host, ...(key.includes("(") ? call.nodes : [])];
    for (const one of nodes) if (!one.attributes.isSet("data-symbol")) one.attributes.set("data-symbol", key);
  }

  function markAll({ math, data }) {
    const inside = everywhere || math.start.node?.parentElement?.closest(`[id="${section}"]`);
    const table = known[inside ? "symbols-encoder" : "symbols"];
    const letters = [];
    data.root.walkTree((node) => node.isKind("mi") && letters.push(node));
    letters.forEach((node) => mark(node, table));
    if (inside) data.root.attributes.set("data-encoder", "");
  }

  // Showing what they mean ---------------------------------------------------------------------

  const box = Object.assign(document.createElement("div"), { id: "symbol-box", hidden: true });
  box.setAttribute("role", "tooltip");
  let wanted = 0;

  async function show(place, keys) {
    const now = ++wanted;
    const table = known[place.closest("[data-encoder]") ? "symbols-encoder" : "symbols"];
    const lines = [...new Set(keys.map((key) => table[key]))].filter(Boolean);
    if (!lines.length) return hide();
    MathJax.typesetClear([box]);
    box.innerHTML = lines.map((line) => `<p>${line}</p>`).join("");
    await MathJax.typesetPromise([box]);
    for (const formula of box.querySelectorAll("[tabindex]")) formula.removeAttribute("tabindex");
    if (now !== wanted) return;
    box.hidden = false;
    const at = place.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8);
    const below = at.bottom + 6 + box.offsetHeight < innerHeight;
    box.style.left = `${Math.max(left, 8) + scrollX}px`;
    box.style.top = `${(below ? at.bottom + 6 : at.top - box.offsetHeight - 6) + scrollY}px`;
    place.closest("mjx-container").setAttribute("aria-describedby", box.id);
  }

  function hide() {
    wanted++;
    box.hidden = true;
    document.querySelector(`[aria-describedby="${box.id}"]`)?.removeAttribute("aria-describedby");
  }

  const symbol = (event) => event.target.closest?.("article [data-symbol]");
  function listen() {
    document.body.append(box);
    for (const kind of ["mouseover", "click"]) {
      document.addEventListener(kind, (event) => {
        const place = symbol(event);
        if (place) show(place, [place.dataset.symbol]);
        else hide();
      });
    }
    document.addEventListener("focusin", (event) => {
      const formula = event.target.closest?.("article mjx-container");
      if (!formula) return hide();
      show(formula, [...formula.querySelectorAll("mjx-math [data-symbol]")].map((one) => one.dataset.symbol));
    });
    document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  }

  // Copying ------------------------------------------------------------------------------------

  function addButtons() {
    for (const item of MathJax.startup.document.math) {
      const place = item.display && item.typesetRoot?.closest("div.math");
      if (!place) continue;
      const button = Object.assign(document.createElement("button"), { type: "button", className: "copy-tex" });
      button.textContent = "LaTeX";
      button.setAttribute("aria-label", "Copy this equation as LaTeX");
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(item.math.trim());
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "LaTeX"), 1500);
      });
      const frame = Object.assign(document.createElement("div"), { className: "equation" });
      place.replaceWith(frame);
      frame.append(place, button);
    }
  }

  const config = (window.MathJax ??= {});
  config.startup = { ...config.startup, ready() {
    MathJax.startup.defaultReady();
    MathJax.startup.document.inputJax[0].postFilters.add(markAll);
    MathJax.startup.promise.then(addButtons);
    listen();
  } };
})();
