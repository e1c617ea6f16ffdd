/* The field of "Explore a joint": a sentence of the reader's own, its two gaps, and its joint. */
(() => {
  "use strict";

  const live = window.mlmjointLive;
  const place = document.getElementById("explore-live");
  const byId = (id) => document.getElementById(id);
  const COUNTS = [50, 100, 150, 200];
  const HASH = /^#live-([a-z-]+?)-(\d+)-([a-z-]+)-(\d*_?\d*)-(.*)$/;
  const FIRST = { "en-small": "A man is [MASK] [MASK] the street.", toy: "the [MASK] near the gate [MASK] broken ." };

  place.innerHTML = `
    <form class="lv-form">
      <label for="lv-text">Your own sentence</label>
      <div class="lv-row"><input id="lv-text" type="text" autocomplete="off" spellcheck="false" maxlength="1000"
        dir="auto" aria-describedby="lv-help" value="${FIRST["en-small"]}">
      <button type="submit" id="lv-go">Show its joint</button></div>
      <p id="lv-help">Write <code>[MASK]</code> twice, or write a whole sentence and click two of its words:</p>
      <div id="lv-words" role="group" aria-label="Words to hide"></div>
      <div class="lv-row lv-options"><label>Model <select id="lv-model">
        <option value="en-small">en-small (English, 18 MB)</option><option value="toy">toy (its grammar, 1 MB)</option></select></label>
      <label>Words a gap <select id="lv-count">${COUNTS.map((k) => `<option${k === 100 ? " selected" : ""}>${k}</option>`).join("")}</select></label>
      <span class="lv-wait" hidden><progress id="lv-progress" max="1" value="0" aria-label="Progress"></progress>
      <button type="button" id="lv-cancel">Cancel</button></span></div>
      <p id="lv-status" role="status"></p>
    </form>`;

  const [text, model, count, status] = ["lv-text", "lv-model", "lv-count", "lv-status"].map(byId);
  const wait = place.querySelector(".lv-wait");
  let question = null;
  let chosen = []; // positions of the words that were clicked

  place.classList.add("ex-ready");
  const trouble = live.obstacle();
  if (trouble) {
    status.textContent = trouble;
    for (const part of place.querySelectorAll("input, select, button")) part.disabled = true;
    return;
  }

  const masks = () => (text.value.match(/\[MASK\]/gi) || []).length;
  const join = (words) => words.reduce((all, word) => (word.startsWith("##") ? all + word.slice(2) : `${all} ${word}`), "");

  function showProgress(message) {
    status.textContent = live.describe(message);
    const bar = byId("lv-progress");
    if (message.stage === "start") bar.removeAttribute("value");
    else Object.assign(bar, { max: message.total || 1, value: message.done });
  }

  /** The five pieces of the sentence around its two gaps. */
  function pieces(words) {
    if (!chosen.length) {
      const [before, between, after] = text.value.split(/\[MASK\]/i);
      return [before, "___", between, "___", after];
    }
    const [a, b] = chosen;
    return [join(words.slice(1, a)), ` ${words[a]}`, join(words.slice(a + 1, b)), ` ${words[b]}`, join(words.slice(b + 1, -1))];
  }

  function address(method) {
    return `#live-${model.value}-${count.value}-${method}-${chosen.join("_")}-${encodeURIComponent(text.value)}`;
  }

  async function go(method) {
    if (question) question.cancel();
    const asked = { model: model.value, text: text.value.replace(/\[mask\]/gi, "[MASK]"), count: Number(count.value),
      places: chosen.length === 2 ? [...chosen] : null };
    const here = (question = live.ask("joint", asked, (message) => here === question && showProgress(message)));
    wait.hidden = false;
    status.textContent = "";
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await here.answer;
      if (here !== question) return;
      const words = asked.places ? (await live.ask("tokens", asked).answer).tokens : null;
      const link = address("METHOD");
      window.mlmjointExplore.showLive({
        ...answer, name: "live", text: pieces(words), model: { name: asked.model },
        note: `Computed in your browser over the ${answer.vocabulary[0]} likeliest words of each gap, in ${answer.seconds.toFixed(1)} s.`,
        address: (name) => link.replace("METHOD", name),
      }, method ?? window.mlmjointExplore.method());
      window.mlmjointLast = answer; // for whoever looks from the console
      status.textContent = `Done: ${answer.vocabulary[0] + answer.vocabulary[1] + 1} passes in ${answer.seconds.toFixed(1)} seconds; the joint is below.`;
    } catch (error) {
      if (here === question) status.textContent = error.message;
    } finally {
      if (here === question) {
        wait.hidden = true;
        question = null;
        place.removeAttribute("aria-busy");
      }
    }
  }

  // Words to click, once the reader has shown interest ------------------------------------------------

  let latest = 0;
  async function showWords() {
    const now = ++latest;
    chosen = [];
    const group = byId("lv-words");
    group.textContent = "";
    if (masks() || !text.value.trim()) return;
    const { tokens, special } = await live.ask("tokens", { model: model.value, text: text.value }).answer;
    if (now !== latest) return;
    tokens.forEach((token, position) => {
      if (special[position]) return;
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: token });
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => {
        const again = chosen.includes(position);
        chosen = (again ? chosen.filter((old) => old !== position) : [...chosen, position].slice(-2)).sort((x, y) => x - y);
        group.querySelectorAll("button").forEach((other) =>
          other.setAttribute("aria-pressed", chosen.includes(Number(other.dataset.position))));
        if (chosen.length === 2) go();
      });
      button.dataset.position = position;
      group.append(button);
    });
  }

  let timer = null;
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(showWords, 250);
  });
  text.addEventListener("focus", () => live.ask("warm", { model: model.value }, () => {}).answer.catch(() => {}), { once: true });
  model.addEventListener("change", () => {
    if (Object.values(FIRST).includes(text.value)) text.value = FIRST[model.value];
    showWords();
  });
  place.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  byId("lv-cancel").addEventListener("click", () => question?.cancel());

  /** A link to #live-MODEL-COUNT-METHOD-A_B-TEXT asks the same question again. */
  async function follow() {
    const [, name, size, method, at, sentence] = location.hash.match(HASH) || [];
    if (!name || !(name in FIRST)) return;
    model.value = name;
    count.value = COUNTS.includes(Number(size)) ? size : "100";
    try {
      text.value = decodeURIComponent(sentence);
    } catch {
      status.textContent = "The link is damaged; type the sentence.";
      return;
    }
    await showWords();
    chosen = at ? at.split("_").map(Number) : [];
    go(method);
  }
  window.addEventListener("hashchange", follow);
  follow();
})();
