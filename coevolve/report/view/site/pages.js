// Draws the page of the address: #/, #/episodes?method=eto, #/pairs?kind=failure_failure, #/episode/ID, #/pair/CHOSEN-REJECTED.
"use strict";

const main = document.getElementById("main");
const form = document.getElementById("filters");
let lastList = "#/"; // where Escape goes back to
let shownRows = []; // of the last list, for j and k on a page
let drawing = 0; // counts pages, so that a slow one does not overwrite a later one
const PAGES = {"": "overview", episodes: "episodes", episode: "episodes", pairs: "pairs", pair: "pairs"};

// An element; strings among its children are text.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

async function draw() {
  const turn = ++drawing;
  const [path, query] = (location.hash || "#/").slice(2).split("?");
  const [kind, id] = path.split("/");
  const list = PAGES[kind] ?? "overview";
  for (const name of new Set(Object.values(PAGES))) {
    document.getElementById(`to-${name}`).ariaCurrent = name === list ? "page" : null;
  }
  form.hidden = id !== undefined || list === "overview";
  if (list === "overview") lastList = "#/";
  try {
    const page = list === "overview" ? overviewPage() : id === undefined ? await listPage(list, new URLSearchParams(query), turn)
      : kind === "pair" ? await pairPage(id) : await episodePage(id);
    if (turn !== drawing || page === null) return;
    main.replaceChildren(...page);
    if (id !== undefined) scrollTo(0, 0);
  } catch (error) {
    main.replaceChildren(h("p", {role: "alert"}, `${error.message}. Make the view again.`));
  }
}

async function listPage(name, asked, turn) {
  const list = LISTS[name];
  drawFilters(name, list, asked);
  lastList = location.hash;
  let rows = chosenRows(list, asked);
  if (asked.get("turns")) {
    rows = await searchTurns(list, rows, asked.get("turns"), (done, all) => {
      if (turn === drawing) main.replaceChildren(h("p", {}, `Searching the turns: ${done} of ${all}.`));
      return turn === drawing;
    });
    if (rows === null) return null;
  }
  shownRows = rows;
  const first = Math.min(Number(asked.get("from") ?? 0), Math.max(rows.length - 1, 0));
  const mean = rows.length ? `, mean reward ${format(rows.reduce((sum, row) => sum + list.reward(row), 0) / rows.length)}` : "";
  const what = name === "pairs" ? `${mean} of the rejected` : mean;
  return [
    h("p", {id: "count", role: "status"}, `${number(rows.length)} of ${number(list.rows().length)} ${name}${rows.length ? what : ""}`),
    rewardLegend(),
    rows.length ? table(name, list, rows.slice(first, first + PAGE_ROWS)) : h("p", {}, "Nothing passes these filters."),
    pager(name, asked, first, rows.length),
  ];
}

function table(name, list, rows) {
  const head = list.columns.map((column) => h("th", {scope: "col", class: NUMBERS.has(column) ? "number" : null}, NAMES[column] ?? column));
  return scrolled(name, h("table", {class: "cards"}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.map((row) => tableRow(name, list, row)))));
}

// A table that scrolls on its own where it is wider than the page.
function scrolled(name, content) {
  return h("div", {class: "wide", tabindex: "0", role: "region", "aria-label": name}, content);
}

function tableRow(name, list, row) {
  const cells = list.columns.map((column) => {
    const text = shown(name, column, row[column]);
    const colour = REWARDS.has(column) ? rewardClass(row[column]) : "";
    return h("td", {class: `${NUMBERS.has(column) ? "number" : ""} column-${column} ${colour}`, "data-name": NAMES[column] ?? column},
      column === "task" ? h("a", {href: `#/${list.path}/${row.id}`, class: "row"}, text) : text);
  });
  return h("tr", {}, ...cells);
}

function pager(name, asked, first, all) {
  const to = (from, text) => {
    const query = new URLSearchParams(asked);
    query.set("from", from);
    return h("a", {href: `#/${name}?${query}`}, text);
  };
  return h("p", {}, all > PAGE_ROWS ? `Rows ${number(first + 1)} to ${number(Math.min(first + PAGE_ROWS, all))}. ` : "",
    first > 0 ? to(Math.max(first - PAGE_ROWS, 0), "Earlier rows") : "", " ",
    first + PAGE_ROWS < all ? to(first + PAGE_ROWS, "Later rows") : "");
}

// Drawn once for each list, then only set: a control that is being used keeps its focus.
function drawFilters(name, list, asked) {
  if (form.dataset.list !== name) {
    form.dataset.list = name;
    form.replaceChildren(
      ...list.choices.map((choice) => select(choice, [...new Set(list.rows().map((row) => String(row[choice])))].sort(byNumber))),
      field("low", "reward from", {type: "number", step: "any"}), field("high", "to", {type: "number", step: "any"}),
      select("order", Object.keys(list.orders).slice(1), Object.keys(list.orders)[0]),
      field("text", "task or id", {type: "search"}), field("turns", "words in turns, then Enter", {type: "search"}),
      h("button", {type: "reset"}, "All"));
  }
  for (const control of form.querySelectorAll("[name]")) {
    if (control !== document.activeElement) control.value = asked.get(control.name) ?? "";
  }
}

function select(name, values, none = "any") {
  const options = values.map((value) => h("option", {value}, shown(form.dataset.list, name, value) || "-"));
  return h("label", {}, NAMES[name] ?? name, h("select", {name}, h("option", {value: ""}, none), ...options));
}

function field(name, text, attributes) {
  return h("label", {}, text, h("input", {name, ...attributes}));
}

// What a reader sees of a field's value.
function shown(list, name, value) {
  return label(list === "pairs" && name === "kind" ? "pair" : name, format(value));
}

function label(name, value) {
  return data.labels[name]?.[value] ?? value;
}

// At most three decimals.
function format(value) {
  return typeof value === "number" ? String(Math.round(value * 1000) / 1000) : value;
}

function number(count) {
  return count.toLocaleString("en");
}

function byNumber(a, b) {
  return a.localeCompare(b, "en", {numeric: true});
}

function filter() {
  const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  history.replaceState(null, "", `#/${form.dataset.list}?${asked}`);
  draw();
}

// The row or page after (step 1) or before (step -1) the one the reader is on.
function move(step) {
  const links = [...main.querySelectorAll("a.row")];
  if (links.length) {
    const at = links.indexOf(document.activeElement);
    links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
    return;
  }
  const [kind, id] = location.hash.slice(2).split("/");
  const at = shownRows.findIndex((row) => row.id === id);
  const next = at < 0 ? undefined : shownRows[at + step];
  if (next) location.hash = `#/${kind}/${next.id}`;
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", filter);
form.addEventListener("input", (event) => { if (event.target.name === "text") filter(); });
form.addEventListener("reset", () => { location.hash = `#/${form.dataset.list}`; document.activeElement.blur(); });
addEventListener("hashchange", draw);
addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select");
  if (event.key === "Escape") typing ? event.target.blur() : location.hash = lastList;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  if (event.key === "/" && !form.hidden) { event.preventDefault(); form.elements.text.focus(); }
});
document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("title").textContent = document.title = data.title;
  draw();
});
