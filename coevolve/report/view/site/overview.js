// The landing page: the suite's products, and how many episodes and pairs there are of each sort.
"use strict";

function overviewPage() {
  return [
    h("p", {id: "count", role: "status"}, `${number(data.episodes.length)} episodes and ${number(data.pairs.length)} pairs of ${
      listed(data.episodes, "env").map((env) => label("env", env)).join(", ")}`),
    ...documents(),
    h("h2", {}, "Episodes"),
    rewardLegend(),
    ...byEnvironment(data.episodes, ["method", "iteration", "part", "agent", "split"], "episodes", "mean reward", (row) => row.reward),
    ...(data.pairs.length ? [h("h2", {}, "Pairs"),
      ...byEnvironment(data.pairs, ["method", "iteration", "agent", "kind"], "pairs", "mean gap", (row) => row.gap)] : []),
  ];
}

// The report and the other products, each with links to its files.
function documents() {
  if (!data.documents.length) return [];
  const items = data.documents.map(({title, text, files}) => h("li", {},
    h("strong", {}, title), " ", ...files.flatMap(([name, address], index) => [index ? ", " : "", h("a", {href: address, class: "row"}, name)]),
    h("span", {class: "quiet"}, ` ${text}`)));
  return [h("h2", {}, "Report, tables and figures"), h("ul", {class: "documents"}, ...items)];
}

// For each environment a table of groups of rows: their values of `fields`, their number, and the mean of `value`.
function byEnvironment(rows, fields, list, heading, value) {
  return listed(rows, "env").map((env, index) => {
    const groups = new Map();
    for (const row of rows) {
      if (row.env !== env) continue;
      const key = JSON.stringify(fields.map((name) => String(row[name])));
      const group = groups.get(key) ?? {row, count: 0, sum: 0};
      group.count += 1;
      group.sum += value(row);
      groups.set(key, group);
    }
    const head = [...fields.map((name) => [name, NUMBERS.has(name)]), [list, true], [heading, true]];
    const body = [...groups.values()].sort((a, b) => compareGroups(a.row, b.row, fields)).map((group) => overviewRow(group, fields, list, env));
    return h("details", {open: index === 0 || groups.size < 40}, h("summary", {}, label("env", env)), scrolled(label("env", env),
      h("table", {}, h("thead", {}, h("tr", {}, ...head.map(([name, right]) => h("th", {scope: "col", class: right ? "number" : null}, NAMES[name] ?? name)))),
        h("tbody", {}, ...body))));
  });
}

function overviewRow({row, count, sum}, fields, list, env) {
  const query = new URLSearchParams({env, ...Object.fromEntries(fields.map((name) => [name, String(row[name])]))});
  const cells = fields.map((name) => h("td", {class: NUMBERS.has(name) ? "number" : null}, shown(list, name, row[name])));
  const mean = sum / count;
  return h("tr", {}, ...cells, h("td", {class: "number"}, h("a", {href: `#/${list}?${query}`, class: "row"}, number(count))),
    h("td", {class: `number ${list === "episodes" ? rewardClass(mean) : ""}`}, format(mean)));
}

// Methods in the suite's order, what they share first; other fields by their number or name.
function compareGroups(a, b, fields) {
  const methods = Object.keys(data.labels.method);
  for (const name of fields) {
    const [first, second] = name === "method" ? [a, b].map((row) => methods.indexOf(row.method)) : [a[name], b[name]];
    const order = typeof first === "number" ? first - second : byNumber(String(first), String(second));
    if (order) return order;
  }
  return 0;
}

function listed(rows, name) {
  return [...new Set(rows.map((row) => row[name]))];
}
