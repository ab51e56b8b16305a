// Draws what the address asks for: #/episodes?method=eto, #/pairs?kind=failure_failure, #/episode/ID, #/pair/CHOSEN-REJECTED.
"use strict";

const main = document.getElementById("main");
const form = document.getElementById("filters");
let lastList = "#/episodes"; // where Escape goes back to
let shownRows = []; // of the last list, for j and k on a page
let drawing = 0; // counts pages, so that a slow one does not overwrite a later one

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
  const [path, query] = (location.hash || "#/episodes").slice(2).split("?");
  const [kind, id] = path.split("/");
  const list = kind === "pairs" || kind === "pair" ? "pairs" : "episodes";
  for (const name of Object.keys(LISTS)) {
    document.getElementById(`to-${name}`).ariaCurrent = name === list ? "page" : null;
  }
  form.hidden = id !== undefined;
  try {
    const page = id === undefined ? await listPage(list, new URLSearchParams(query), turn)
      : kind === "pair" ? await pairPage(id) : await episodePage(id);
    if (turn !== drawing || page === null) return;
    main.replaceChildren(...page);
    const mark = id === undefined ? null : main.querySelector(".differs");
    if (mark) mark.scrollIntoView({block: "center"});
    else if (id !== undefined) scrollTo(0, 0);
  } catch (error) {
    main.replaceChildren(h("p", {role: "alert"}, `${error.message}. Make the view again.`));
  }
}

async function listPage(name, asked, turn) {
  const list = LISTS[name];
  drawFilters(name, list, asked);
  lastList = location.hash || "#/episodes";
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
    h("p", {id: "count", role: "status"}, `${rows.length} of ${list.rows().length} ${name}${rows.length ? what : ""}`),
    rows.length ? table(list, rows.slice(first, first + PAGE_ROWS)) : h("p", {}, "Nothing passes these filters."),
    pager(name, asked, first, rows.length),
  ];
}

function table(list, rows) {
  const head = list.columns.map((name) => h("th", {scope: "col", class: NUMBERS.has(name) ? "number" : null}, NAMES[name] ?? name));
  return h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.map((row) => tableRow(list, row))));
}

function tableRow(list, row) {
  const cells = list.columns.map((name) => {
    const text = name === "method" ? label(row.method) : format(row[name]);
    const shown = name === "task" ? h("a", {href: `#/${list.path}/${row.id}`, class: "row"}, text) : text;
    return h("td", {class: NUMBERS.has(name) ? "number" : null}, shown);
  });
  return h("tr", {}, ...cells);
}

function pager(name, asked, first, all) {
  const to = (from, text) => {
    const query = new URLSearchParams(asked);
    query.set("from", from);
    return h("a", {href: `#/${name}?${query}`}, text);
  };
  return h("p", {}, all > PAGE_ROWS ? `Rows ${first + 1} to ${Math.min(first + PAGE_ROWS, all)}. ` : "",
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
  const options = values.map((value) => h("option", {value}, name === "method" ? label(value) : value || "-"));
  return h("label", {}, NAMES[name] ?? name, h("select", {name}, h("option", {value: ""}, none), ...options));
}

function field(name, text, attributes) {
  return h("label", {}, text, h("input", {name, ...attributes}));
}

async function episodePage(id) {
  const places = data.byId.get(id);
  if (!places) return [h("p", {role: "alert"}, `There is no episode ${id} here.`)];
  const episode = await whole(places[0]);
  const pairs = data.pairs.filter((pair) => pair.chosen === id || pair.rejected === id);
  const used = pairs.map((pair) => h("div", {}, h("a", {href: `#/pair/${pair.id}`},
    `${pair.chosen === id ? "chosen" : "rejected"}, ${pair.kind}, ${where(pair)}, for the ${pair.agent} agent`)));
  return [
    h("h2", {}, `Episode ${id}`),
    facts({
      task: `${episode.task.task_id} (${episode.task.split}${episode.task.kind ? `, ${episode.task.kind}` : ""})`,
      agent: episode.agent,
      from: places.map((place) => `${where(place)}, ${place.part}`).join("; "),
      reward: `${format(episode.reward)} (environment: ${format(episode.raw_score)})`,
      "ended by": episode.stop + (episode.error ? `: ${episode.error}` : ""),
      policy: episode.policy ? `${episode.policy.name}, sha256 ${episode.policy.sha256}` : null,
      sampling: episode.sampling ? `temperature ${episode.sampling.temperature}, top p ${episode.sampling.top_p}, seed ${episode.seed}, sample ${episode.sample}` : null,
      environment: `${episode.environment}, protocol ${episode.protocol}`,
    }),
    h("details", {open: true}, h("summary", {}, "Prompt"), ...episode.prompt.map((message) =>
      h("div", {class: "turn"}, h("h3", {}, message.role), h("pre", {class: "answered"}, message.content)))),
    ...episode.turns.map((each, number) => turnBox(each, number + 1)),
    pairs.length ? h("h2", {}, "Pairs it is in") : null, ...used,
  ].filter(Boolean);
}

async function pairPage(id) {
  const places = data.byPair.get(id);
  if (!places) return [h("p", {role: "alert"}, `There is no pair ${id} here.`)];
  const pair = places[0];
  const rows = [sideOf(pair.chosen), sideOf(pair.rejected)];
  const [chosen, rejected] = await Promise.all(rows.map((row) => row ? whole(row) : null));
  const count = Math.max(chosen?.turns.length ?? 0, rejected?.turns.length ?? 0);
  return [
    h("h2", {}, `Pair ${pair.kind} of ${pair.task}`),
    facts({
      "first difference": pair.differs ? `turn ${pair.differs}` : "none",
      weights: places.map((place) => `${where(place)}, for the ${place.agent} agent: DPO ${place.dpo}, SFT ${place.sft}`).join("; "),
    }),
    h("div", {class: "sides"}, sideHead("Chosen", pair.chosen, pair.chosenReward, chosen),
      sideHead("Rejected", pair.rejected, pair.rejectedReward, rejected),
      ...Array.from({length: count}, (_, place) => [
        sideTurn(chosen, place, pair.chosenTurns, pair.differs), sideTurn(rejected, place, pair.rejectedTurns, pair.differs),
      ]).flat()),
  ];
}

function sideHead(title, id, reward, episode) {
  const text = episode ? `${episode.agent}, ended by ${episode.stop}` : "this episode is not in the results";
  return h("div", {}, h("h2", {}, `${title}: reward ${format(reward)}`),
    h("p", {}, h("a", {href: `#/episode/${id}`}, id), ` ${text}`));
}

function sideTurn(episode, place, kept, differs) {
  const each = episode?.turns[place];
  const marks = `${place + 1 === differs ? "differs" : ""} ${place >= kept ? "cut" : ""}`;
  if (!each) return h("div", {class: `turn ${marks}`}, h("p", {class: "quiet"}, "no such turn"));
  return turnBox(each, place + 1, marks, place + 1 === differs ? "first difference" : place >= kept ? "cut: not in the pair" : "");
}

function turnBox(each, number, marks = "", remark = "") {
  return h("section", {class: `turn ${marks}`, "aria-label": `turn ${number}`},
    h("h3", {}, `Turn ${number}, score ${format(each.score)}${each.truncated ? ", cut at the token limit" : ""}`,
      each.action === null ? ", no action found" : "", remark ? h("span", {class: "differs-label"}, ` (${remark})`) : ""),
    h("pre", {class: "said"}, each.text), h("pre", {class: "answered"}, each.observation));
}

function facts(entries) {
  const shown = Object.entries(entries).filter(([, value]) => value);
  return h("dl", {}, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function where({method, env, seed, iteration}) {
  return `${label(method)}, ${env}, seed ${seed}${iteration ? `, iteration ${iteration}` : ""}`;
}

function label(method) {
  return data.labels[method] ?? method;
}

function format(value) {
  return typeof value === "number" ? String(Math.round(value * 1000) / 1000) : value;
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
