"use strict";
/* The page of `lemma serve`. All it knows comes from the API: /v1/models, /v1/completions, and /look /count /evaluate. */
const at = (name) => document.getElementById(name);
const VERBS = ["generate", "look", "count", "evaluate"];
const SUMMARY = ["family", "parameters", "learned", "steps", "stopped", "tokens", "training_loss", "validation_loss",
  "perplexity", "best_perplexity", "best_step", "seconds", "tokens_per_second", "data_hash"];
let models = [], writing = null;

const run = () => models.find((model) => model.id === at("run").value);
const number = (value) => Number.isInteger(value) ? value.toLocaleString("en") : Number(value).toPrecision(6);

/* Runs */
async function begin() {
  try {
    models = (await (await fetch("/v1/models")).json()).data;
  } catch (error) {
    return say(`The server does not answer: ${error.message}`);
  }
  at("run").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
  choose();
}

function choose() {
  const model = run(), writes = model.answers === "prompt";
  leave();
  at("facts").textContent = model.family + (writes ? "" : `, gives the ${model.answers} of a text`);
  at("prompt-label").textContent = writes ? "Prompt" : "Source";
  at("settings").hidden = at("settings").disabled = !writes;
  at("result").hidden = true;
  at("heads").hidden = true;
  say("");
  for (const verb of VERBS) at(`tab-${verb}`).hidden = !model.shows.includes(verb);
  const open = VERBS.find((verb) => !at(verb).hidden);
  show(model.shows.includes(open) ? open : "generate");
}

/* Tabs */
function show(verb) {
  for (const other of VERBS) {
    const chosen = other === verb, tab = at(`tab-${other}`);
    at(other).hidden = !chosen;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
  if (verb === "look" && !at("look-text").value) at("look-text").value = at("prompt").value;
  if (verb === "count") at("account").src = `/count?model=${encodeURIComponent(run().id)}`;
  if (verb === "evaluate") summarise();
}

function turn(event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1 }, there = VERBS.filter((verb) => !at(`tab-${verb}`).hidden);
  const here = there.findIndex((verb) => at(`tab-${verb}`) === document.activeElement);
  if (here < 0 || !(event.key in steps)) return;
  const next = there[(here + steps[event.key] + there.length) % there.length];
  show(next);
  at(`tab-${next}`).focus();
}

/* Generate */
function question() {
  const asked = { model: run().id, prompt: at("prompt").value, stream: true, stream_options: { include_usage: true } };
  if (run().answers !== "prompt") return asked;
  const seed = at("seed").value;
  Object.assign(asked, { temperature: Number(at("temperature").value), max_tokens: Number(at("tokens").value),
    top_p: Number(at("top-p").value) });
  return seed === "" ? asked : { ...asked, seed: Number(seed) };
}

async function generate(event) {
  event.preventDefault();
  leave();
  const mine = writing = new AbortController(), asked = question();
  const told = { tokens: 0, seed: null, begun: performance.now() };
  clear(run().answers === "prompt" ? asked.prompt : "");
  say("waiting …");
  try {
    const answer = await fetch("/v1/completions", { method: "POST", signal: mine.signal,
      headers: { "content-type": "application/json" }, body: JSON.stringify(asked) });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const chunk of events(answer.body)) take(chunk, told);
    say(summary(told, run().answers === "prompt"));
  } catch (error) {
    if (writing === mine || error.name !== "AbortError") say(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
  } finally {
    if (writing === mine) busy(false);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (waiting + value).split("\n\n");
    waiting = lines.pop();
    for (const line of lines) if (line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

function take(chunk, told) {
  if (chunk.error) throw new Error(chunk.error.message);
  told.seed = chunk.seed;
  if (chunk.usage) told.tokens = chunk.usage.completion_tokens;
  for (const choice of chunk.choices) {
    if (choice.text) write(choice.text);
    if (choice.loop) note(choice.loop.remark);
    if (choice.remark) note(choice.remark);
    if (choice.chances) weigh(choice.chances);
  }
}

function write(piece) {
  const box = at("text"), follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  at("after").append(piece);
  if (follows) box.scrollTop = box.scrollHeight;
  if (at("status").textContent !== "writing …") say("writing …");
}

function weigh(chances) {
  const rows = Object.entries(chances).sort((one, other) => other[1] - one[1]);
  fill(at("chances"), rows.map(([name, chance]) => [name, chance.toFixed(3)]));
  at("chances").hidden = false;
}

function summary(told, writes) {
  if (!writes) return "done";
  const seconds = (performance.now() - told.begun) / 1000;
  return `${number(told.tokens)} tokens in ${seconds.toFixed(1)} s, seed ${told.seed}`;
}

function clear(before) {
  at("before").textContent = before;
  at("after").textContent = "";
  at("loop").hidden = at("chances").hidden = true;
  at("result").hidden = false;
  busy(true);
}

function busy(is) {
  at("stop").hidden = !is;
  at("go").disabled = is;
}

function leave() {
  if (writing) writing.abort();
  busy(false);
}

function note(words) {
  at("loop").textContent = words;
  at("loop").hidden = false;
}

function say(words, wrong = false) {
  at("status").textContent = words;
  at("status").className = wrong ? "trouble" : "soft";
}

/* Look and evaluate */
function look(event) {
  event.preventDefault();
  const words = new URLSearchParams({ model: run().id, text: at("look-text").value });
  at("heads").hidden = false;
  at("heads").src = `/look?${words}`;
}

async function summarise() {
  const found = await (await fetch(`/evaluate?model=${encodeURIComponent(run().id)}`)).json();
  const own = Object.entries(found).filter(([name, value]) => typeof value === "number" && !SUMMARY.includes(name)
    && !["planned_steps", "setup_seconds", "best_loss"].includes(name));
  const rows = [...SUMMARY.map((name) => [name, found[name]]), ...own].filter(([, value]) => value !== null && value !== undefined);
  fill(at("summary"), rows.map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? number(value) : value]));
  at("samples-title").hidden = !found.samples?.length;
  at("samples").replaceChildren(...(found.samples ?? []).map((text) => element("p", "text", text)));
}

function fill(table, rows) {
  table.tBodies[0].replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("tr"), head = element("th", "", name);
    head.scope = "row";
    row.append(head, element("td", "", value));
    return row;
  }));
}

function element(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  made.textContent = text;
  return made;
}

at("run").addEventListener("change", choose);
at("ask").addEventListener("submit", generate);
at("stop").addEventListener("click", leave);
at("look-form").addEventListener("submit", look);
document.querySelector("[role=tablist]").addEventListener("keydown", turn);
for (const verb of VERBS) at(`tab-${verb}`).addEventListener("click", () => show(verb));
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") leave(); });
begin();
