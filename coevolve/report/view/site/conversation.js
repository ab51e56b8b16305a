// Episodes and pairs as conversations between an agent and its environment.
"use strict";

const LONG = 500; // characters of an observation that is folded
const LONG_LINES = 12;
const PREVIEW = 180;

async function episodePage(id) {
  const rows = data.byId.get(id);
  if (!rows) return [h("p", {role: "alert"}, `There is no episode ${id} here.`)];
  const episode = await whole(rows[0]);
  const pairs = data.pairs.filter((pair) => pair.chosen === id || pair.rejected === id);
  const used = pairs.map((pair) => h("div", {}, h("a", {href: `#/pair/${pair.id}`},
    `${pair.chosen === id ? "chosen" : "rejected"}, ${label("pair", pair.kind)}, ${where(pair)}, for the ${pair.agent} agent`)));
  return [
    h("h2", {}, `Episode of ${episode.task.task_id}`),
    badges(episode),
    h("p", {}, rows.map((row) => `${where(row)}, ${label("part", row.part)}`).join("; ")),
    legend(),
    h("details", {class: "facts"}, h("summary", {}, "Policy, sampling and environment"), facts({
      episode: id,
      task: `${episode.task.task_id} (${episode.task.split}${episode.task.kind ? `, ${episode.task.kind}` : ""})`,
      reward: `${format(episode.reward)} (environment: ${format(episode.raw_score)})`,
      error: episode.error,
      policy: episode.policy ? `${episode.policy.name}, sha256 ${episode.policy.sha256}` : null,
      sampling: episode.sampling ? `temperature ${episode.sampling.temperature}, top p ${episode.sampling.top_p}, seed ${episode.seed}, sample ${episode.sample}` : null,
      environment: `${episode.environment}, protocol ${episode.protocol}`,
    })),
    ...promptBoxes(episode),
    ...episode.turns.map((turn, index) => turnBox(turn, index + 1, episode.agent)),
    h("p", {class: "quiet"}, `End: ${label("stop", episode.stop)}.`),
    ...(pairs.length ? [h("h2", {}, "Pairs with this episode"), ...used] : []),
  ];
}

async function pairPage(id) {
  const rows = data.byPair.get(id);
  if (!rows) return [h("p", {role: "alert"}, `There is no pair ${id} here.`)];
  const pair = rows[0];
  const [chosen, rejected] = await Promise.all([pair.chosen, pair.rejected].map((side) => sideOf(side) ? whole(sideOf(side)) : null));
  const turns = Math.max(chosen?.turns.length ?? 0, rejected?.turns.length ?? 0);
  const common = chosen && rejected ? (pair.differs || turns + 1) - 1 : 0;
  const sides = [
    {name: "chosen", episode: chosen, kept: pair.chosenTurns, head: sideHead("chosen", pair.chosen, pair.chosenReward, chosen)},
    {name: "rejected", episode: rejected, kept: pair.rejectedTurns, head: sideHead("rejected", pair.rejected, pair.rejectedReward, rejected)},
  ];
  return [
    h("h2", {}, `Pair: ${label("pair", pair.kind)}, ${pair.task}`),
    h("p", {}, `First difference: ${pair.differs ? `turn ${pair.differs}` : "none"}`),
    legend(),
    ...(chosen ?? rejected ? promptBoxes(chosen ?? rejected, LONG) : []),
    h("details", {class: "facts"}, h("summary", {}, `Used in ${number(rows.length)} ${rows.length === 1 ? "training" : "trainings"}`),
      h("ul", {}, ...rows.map((row) => h("li", {}, `${where(row)}, for the ${row.agent} agent: DPO ${format(row.dpo)}, SFT ${format(row.sft)}`)))),
    h("div", {class: "sides"}, ...sides.map((side) => side.head)),
    common ? h("details", {class: "common"},
      h("summary", {}, common === 1 ? "Turn 1 is the same on both sides" : `Turns 1 to ${common} are the same on both sides`),
      ...chosen.turns.slice(0, common).map((turn, index) => turnBox(turn, index + 1, chosen.agent))) : null,
    h("div", {class: "sides"}, ...Array.from({length: turns - common}, (_, index) =>
      sides.map((side) => sideTurn(side, common + index, pair.differs))).flat()),
  ].filter(Boolean);
}

function sideHead(name, id, reward, episode) {
  return h("div", {class: `side-head ${name}`},
    h("h3", {}, name === "chosen" ? "✓ Chosen" : "✗ Rejected", " ", rewardBadge(reward)),
    h("p", {}, h("a", {href: `#/episode/${id}`}, id), episode ? ` ${agentName(episode.agent)}, ${label("stop", episode.stop)}` : " this episode is not in the results"));
}

function sideTurn({name, episode, kept}, index, differs) {
  const turn = episode?.turns[index];
  const first = index + 1 === differs, cut = index >= kept;
  const marks = `${name}${first ? " differs" : ""}${cut ? " cut" : ""}`;
  if (!turn) return h("div", {class: `turn empty ${name}${first ? " differs" : ""}`},
    h("p", {class: "quiet"}, `Turn ${index + 1}, ${name}: none${first ? " (first difference)" : ""}`));
  const remark = first ? "first difference" : cut ? "cut: not in the pair" : "";
  return turnBox(turn, index + 1, episode.agent, {marks, remark, side: name});
}

function turnBox(turn, index, agent, {marks = "", remark = "", side = ""} = {}) {
  const remarks = [turn.truncated ? "cut at the token limit" : "", turn.action === null ? "no action" : "", remark].filter(Boolean);
  return h("section", {class: `turn ${marks}`, "aria-label": `turn ${index}${side ? `, ${side}` : ""}`},
    h("h3", {}, `Turn ${index}, ${side ? `${side}, ` : ""}score ${format(turn.score)}`,
      remarks.length ? h("span", {class: "remark"}, ` (${remarks.join("; ")})`) : ""),
    bubble("agent", agentName(agent), actionText(turn.text)), bubble("environment", "environment", folded(turn.observation)));
}

function bubble(kind, speaker, content) {
  return h("div", {class: `bubble ${kind}`}, h("span", {class: "speaker"}, speaker), content);
}

// The text of a turn: what stands before the action, and the action.
function actionText(text) {
  const start = text.indexOf("Action:");
  if (start < 0) return h("pre", {}, text);
  return h("pre", {}, h("span", {class: "thought"}, text.slice(0, start)), h("span", {class: "action"}, text.slice(start)));
}

// A long text behind its beginning.
function folded(text, shownFirst = PREVIEW) {
  const lines = text.split("\n");
  if (text.length <= LONG && lines.length <= LONG_LINES) return h("pre", {}, text);
  const preview = [...text.replaceAll(/\s+/g, " ")].slice(0, shownFirst).join("");
  return h("details", {class: "long"}, h("summary", {}, h("span", {class: "preview"}, `${preview} … `),
    h("span", {class: "more"}, `all ${number(text.length)} characters`)), h("pre", {}, text));
}

// The instruction, and before it what else stands in the prompt.
function promptBoxes(episode, long = 3 * LONG) {
  const before = episode.prompt.slice(0, -1), task = episode.prompt.at(-1);
  return [
    before.length ? h("details", {}, h("summary", {}, `${number(before.length)} messages before the task`), ...before.map((message) =>
      bubble(message.role === "assistant" ? "agent" : "environment", message.role, h("pre", {}, message.content)))) : null,
    task ? h("section", {class: "instruction", "aria-label": "instruction"}, h("h3", {}, "Instruction"),
      bubble("environment", "task", task.content.length > long ? folded(task.content, 2 * PREVIEW) : h("pre", {}, task.content))) : null,
  ].filter(Boolean);
}

function badges(episode) {
  const kind = episode.stop === "done" ? "" : episode.stop === "env_error" ? "none" : "part";
  return h("p", {class: "badges"}, rewardBadge(episode.reward), h("span", {class: `badge ${kind}`}, label("stop", episode.stop)),
    h("span", {class: "badge"}, `${number(episode.turns.length)} turns`), h("span", {class: "badge"}, agentName(episode.agent)));
}

function rewardBadge(reward) {
  return h("span", {class: `badge ${rewardClass(reward)}`}, `reward ${format(reward)}`);
}

function rewardClass(reward) {
  return reward >= 1 ? "full" : reward > 0 ? "part" : "none";
}

function rewardLegend(...more) {
  const samples = [["full", "reward 1: solved"], ["part", "between 0 and 1"], ["none", "0 or less"]];
  return h("ul", {class: "legend", "aria-label": "Legend"}, ...samples.map(([kind, text]) => h("li", {class: kind}, text)), ...more);
}

function legend() {
  return rewardLegend(h("li", {class: "bubble agent"}, "thought and action"), h("li", {class: "bubble environment"}, "observation"));
}

function agentName(agent) {
  return agent === "expert" ? "expert" : `${agent} agent`;
}

function facts(entries) {
  const given = Object.entries(entries).filter(([, value]) => value);
  return h("dl", {}, ...given.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function where({method, env, seed, iteration}) {
  return `${label("method", method)}, ${label("env", env)}, seed ${seed}${iteration ? `, iteration ${iteration}` : ""}`;
}
