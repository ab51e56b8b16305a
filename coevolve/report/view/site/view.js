// The data. Pages are drawn in pages.js, overview.js and conversation.js; all of them put text into the page as text, never as markup.
"use strict";

const PAGE_ROWS = 100;
const PIECES_KEPT = 20;

const data = {title: "", labels: {}, documents: [], sources: [], tasks: [], episodes: [], pairs: [], byId: new Map(), byPair: new Map()};
const pieces = new Map(); // number -> promise of its episodes
const waiting = new Map(); // number -> what to call with its episodes

// What the scripts in data/ call.
const receive = {
  start({title, labels, documents}) { Object.assign(data, {title, labels, documents}); },
  source(source) { data.sources.push(source); },
  task([id, split, kind, about]) { data.tasks.push({id, split, kind, about}); },
  row([id, task, agent, reward, stop, turns, piece, place]) {
    const {env, method, seed, iteration, part} = data.sources.at(-1);
    const {id: taskId, split, kind, about} = data.tasks[task];
    const episode = {id, task: taskId, split, kind, about, method, env, seed, iteration, part, agent, stop, reward, turns, piece, place};
    data.episodes.push(episode);
    data.byId.set(id, [...(data.byId.get(id) ?? []), episode]);
  },
  pair([chosen, rejected, chosenReward, rejectedReward, task, kind, dpo, sft, differs, chosenTurns, rejectedTurns]) {
    const {env, method, seed, iteration, agent} = data.sources.at(-1);
    const id = `${chosen}-${rejected}`;
    const pair = {id, chosen, rejected, chosenReward, rejectedReward, task, kind, dpo, sft, differs, chosenTurns, rejectedTurns,
      env, method, seed, iteration, agent, gap: chosenReward - rejectedReward};
    data.pairs.push(pair);
    data.byPair.set(id, [...(data.byPair.get(id) ?? []), pair]);
  },
  episodes(number, episodes) {
    waiting.get(number)?.(episodes);
    waiting.delete(number);
  },
};

// The whole episode of a row; loads the piece it lies in.
async function whole(episode) {
  const piece = await load(episode.piece);
  return piece[episode.place];
}

function load(number) {
  if (!pieces.has(number)) {
    if (pieces.size >= PIECES_KEPT) pieces.delete(pieces.keys().next().value);
    pieces.set(number, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      waiting.set(number, resolve);
      script.src = `data/episodes/${number}.js`;
      script.onload = () => script.remove();
      script.onerror = () => { pieces.delete(number); reject(new Error(`data/episodes/${number}.js is missing`)); };
      document.head.append(script);
    }));
  }
  return pieces.get(number);
}

// A kind of list: its rows, the filters it offers and the columns it shows.
const LISTS = {
  episodes: {
    rows: () => data.episodes,
    path: "episode",
    choices: ["method", "env", "iteration", "seed", "part", "agent", "split", "kind", "stop"],
    orders: {"as run": null, "reward, low first": (a, b) => a.reward - b.reward, "reward, high first": (a, b) => b.reward - a.reward,
      "turns, many first": (a, b) => b.turns - a.turns},
    columns: ["method", "env", "iteration", "seed", "part", "agent", "task", "about", "stop", "reward", "turns"],
    reward: (row) => row.reward,
    text: (row) => `${row.id} ${row.task} ${row.about}`,
    sides: (row) => [row],
  },
  pairs: {
    rows: () => data.pairs,
    path: "pair",
    choices: ["method", "env", "iteration", "seed", "agent", "kind"],
    orders: {"as built": null, "reward gap, small first": (a, b) => a.gap - b.gap, "reward gap, large first": (a, b) => b.gap - a.gap},
    columns: ["method", "env", "iteration", "seed", "agent", "kind", "task", "chosenReward", "rejectedReward", "differs"],
    reward: (row) => row.rejectedReward,
    text: (row) => `${row.id} ${row.task} ${sideOf(row.chosen)?.about ?? ""}`,
    sides: (row) => [sideOf(row.chosen), sideOf(row.rejected)].filter(Boolean),
  },
};

const NAMES = {env: "environment", part: "from", about: "instruction", chosenReward: "chosen", rejectedReward: "rejected",
  differs: "first difference", text: "task or id"};
const REWARDS = new Set(["reward", "chosenReward", "rejectedReward"]);
const NUMBERS = new Set(["iteration", "seed", "reward", "turns", "chosenReward", "rejectedReward", "differs"]);

function sideOf(id) {
  return data.byId.get(id)?.[0];
}

// Rows that pass all filters but the search in turns, in the asked order.
function chosenRows(list, asked) {
  const low = asked.get("low") ?? "", high = asked.get("high") ?? "", words = lower(asked.get("text"));
  const choices = list.choices.filter((name) => asked.get(name));
  const rows = list.rows().filter((row) =>
    choices.every((name) => String(row[name]) === asked.get(name))
    && (low === "" || list.reward(row) >= Number(low)) && (high === "" || list.reward(row) <= Number(high))
    && (!words || lower(list.text(row)).includes(words)));
  const order = list.orders[asked.get("order")];
  return order ? rows.toSorted(order) : rows;
}

// Of these rows those with a turn that contains the words; `progress` hears how many are done and says whether to go on.
async function searchTurns(list, rows, words, progress) {
  const found = [];
  for (const [done, row] of rows.entries()) {
    if (done % 200 === 0 && !progress(done, rows.length)) return null;
    for (const side of list.sides(row)) {
      const {turns} = await whole(side);
      if (turns.some((turn) => lower(`${turn.text}\n${turn.observation}`).includes(lower(words)))) {
        found.push(row);
        break;
      }
    }
  }
  return found;
}

function lower(text) {
  return (text ?? "").toLowerCase();
}
