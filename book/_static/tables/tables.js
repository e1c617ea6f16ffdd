/* Tables of "Results": a click on a heading sorts (sortable.min.js does that), a field filters the rows
 * of a long table, and a button saves those that are shown as CSV. Without JavaScript they are tables.
 */
(() => {
  "use strict";

  const LONG = 10; // rows of a table that is worth filtering
  const NUMBER = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?$/i;

  /** A cell's text without its interval, and the interval's two ends. */
  function parts(cell) {
    const copy = cell.cloneNode(true);
    const interval = copy.querySelector(".interval");
    interval?.remove();
    const plain = (text) => text.trim().replaceAll("−", "-");
    const ends = interval ? plain(interval.textContent).replace(/[[\]]/g, "").split(/,\s+/) : [];
    return [plain(copy.textContent), ...ends];
  }

  const number = (text) => (NUMBER.test(text) ? Number(text.replaceAll(",", "")) : text);

  function sortable(table) {
    table.classList.add("sortable", "asc", "n-last"); // small values first, empty cells last
    for (const heading of table.tHead.rows[0].cells) {
      const button = Object.assign(document.createElement("button"), { type: "button" });
      button.append(...heading.childNodes);
      if (!button.textContent.trim()) button.textContent = "row";
      heading.append(button);
    }
    for (const cell of table.tBodies[0].querySelectorAll("td")) cell.dataset.sort = number(parts(cell)[0]);
  }

  /** The rows shown, with the ends of intervals in columns of their own. */
  function csv(table) {
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(parts));
    const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const names = [...table.tHead.rows[0].cells].map((heading) => heading.textContent.trim());
    const wide = names.map((_, k) => rows.some((row) => row[k].length > 1));
    const headings = names.flatMap((name, k) => (wide[k] ? [name, `${name} low`, `${name} high`] : [name]));
    const lines = rows.map((row) => row.flatMap(([value, low = "", high = ""], k) =>
      (wide[k] ? [number(value), low, high] : [number(value)])));
    return [headings, ...lines].map((line) => line.map((value) => quote(`${value}`)).join(",")).join("\n") + "\n";
  }

  function save(table, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function tools(table) {
    const section = table.closest("section");
    const part = table.closest("details")?.querySelector("summary").textContent.trim() ?? "";
    const name = `${section.querySelector("h1, h2, h3").firstChild.textContent} ${part}`.trim();
    const bar = document.createElement("div");
    bar.className = "table-tools";
    bar.innerHTML = `<input type="search" placeholder="Filter rows" aria-label="">
      <span role="status"></span><button type="button">CSV</button>`;
    const [field, status, button] = bar.children;
    field.setAttribute("aria-label", `Filter rows of ${name}`);
    button.setAttribute("aria-label", `CSV of ${name}`);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      const rows = [...table.tBodies[0].rows];
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      const left = rows.filter((row) => !row.hidden).length;
      status.textContent = field.value ? `${left} of ${rows.length} rows` : "";
    });
    button.addEventListener("click", () => save(table, name.replace(/[^\w]+/g, "-").toLowerCase()));
    (table.closest(".pst-scrollable-table-container") ?? table).before(bar);
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const table of document.querySelectorAll("article table")) {
      if (!table.tHead || !table.tBodies.length) continue;
      sortable(table);
      if (table.tBodies[0].rows.length >= LONG) tools(table);
    }
  });
})();
