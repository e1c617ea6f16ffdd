/* The field of "Fill the blanks": the ten most probable fillings of up to four masks, with their proof. */
(() => {
  "use strict";

  const live = window.mlmjointLive;
  const place = document.getElementById("fill-live");
  const byId = (id) => document.getElementById(id);
  const TOP = 10;
  const FIRST = { "en-small": "Two [MASK] are [MASK] in the [MASK].", toy: "the [MASK] near the gate [MASK] broken ." };

  place.innerHTML = `
    <form class="lv-form">
      <label for="lv-text">A sentence with one to four [MASK]</label>
      <div class="lv-row"><input id="lv-text" type="text" autocomplete="off" spellcheck="false" maxlength="1000" dir="auto"
        value="${FIRST["en-small"]}">
      <button type="submit" id="lv-go">Fill the blanks</button></div>
      <div class="lv-row lv-options"><label>Model <select id="lv-model">
        <option value="en-small">en-small (English, 18 MB)</option><option value="toy">toy (its grammar, 1 MB)</option></select></label>
      <span class="lv-wait" hidden><progress id="lv-progress" max="1" value="0" aria-label="Progress"></progress>
      <button type="button" id="lv-cancel">Cancel</button></span></div>
      <p id="lv-status" role="status"></p>
      <table class="lv-fillings" hidden><caption>The most probable fillings</caption><thead><tr>
        <th scope="col">words</th><th scope="col">probability</th></tr></thead><tbody id="lv-list"></tbody></table>
    </form>`;
  place.classList.add("ex-ready");

  const [text, model, status] = ["lv-text", "lv-model", "lv-status"].map(byId);
  const wait = place.querySelector(".lv-wait");
  const table = place.querySelector("table");
  let question = null;

  const trouble = live.obstacle();
  if (trouble) {
    status.textContent = trouble;
    for (const part of place.querySelectorAll("input, select, button")) part.disabled = true;
    return;
  }

  function row({ tokens, log }) {
    const line = document.createElement("tr");
    const percent = (100 * Math.exp(log)).toPrecision(3);
    for (const words of [tokens.join(" · "), `${percent} %`]) {
      line.append(Object.assign(document.createElement("td"), { textContent: words }));
    }
    return line;
  }

  async function go() {
    if (question) question.cancel();
    const asked = { model: model.value, text: text.value.replace(/\[mask\]/gi, "[MASK]"), top: TOP };
    const bar = byId("lv-progress");
    const here = (question = live.ask("fill", asked, (message) => {
      if (here !== question) return;
      status.textContent = live.describe(message);
      if (message.stage === "download") Object.assign(bar, { max: message.total || 1, value: message.done });
      else bar.removeAttribute("value"); // how many passes a proof takes is not known before
    }));
    wait.hidden = false;
    status.textContent = "";
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await here.answer;
      if (here !== question) return;
      byId("lv-list").replaceChildren(...answer.fillings.map(row));
      table.hidden = false;
      window.mlmjointLast = answer; // for whoever looks from the console
      const limit = (100 * Math.exp(answer.bound)).toPrecision(2);
      status.textContent = answer.certified
        ? `Certified: no filling outside this list is more probable (${answer.passes} passes, ${answer.seconds.toFixed(1)} seconds).`
        : `Not certified after ${answer.passes} passes: others may have a probability of up to ${limit} %.`;
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

  text.addEventListener("focus", () => live.ask("warm", { model: model.value }).answer.catch(() => {}), { once: true });
  model.addEventListener("change", () => {
    if (Object.values(FIRST).includes(text.value)) text.value = FIRST[model.value];
  });
  place.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  byId("lv-cancel").addEventListener("click", () => question?.cancel());
})();
