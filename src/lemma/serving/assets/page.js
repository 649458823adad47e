"use strict";
/* The page of `lemma serve`. All it knows comes from the API: /v1/models, /v1/completions, and /look /count /evaluate. */
const byId = (name) => document.getElementById(name);
const VERBS = ["generate", "look", "count", "evaluate"];
const SUMMARY = ["family", "parameters", "learned", "steps", "stopped", "tokens", "training_loss", "validation_loss",
  "perplexity", "best_perplexity", "best_step", "seconds", "tokens_per_second", "data_hash"];
let models = [], controller = null;

const run = () => models.find((model) => model.id === byId("run").value);
const number = (value) => Number.isInteger(value) ? value.toLocaleString("en") : Number(value).toPrecision(6);

/* Runs */
async function start() {
  try {
    models = (await (await fetch("/v1/models")).json()).data;
  } catch (error) {
    return showStatus(`The server does not answer: ${error.message}`);
  }
  byId("run").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
  choose();
}

function choose() {
  const model = run(), writes = model.answers === "prompt";
  stopGenerating();
  byId("facts").textContent = model.family + (writes ? "" : `, gives the ${model.answers} of a text`);
  byId("prompt-label").textContent = writes ? "Prompt" : "Source";
  byId("settings").hidden = byId("settings").disabled = !writes;
  byId("result").hidden = true;
  byId("heads").hidden = true;
  showStatus("");
  for (const verb of VERBS) byId(`tab-${verb}`).hidden = !model.shows.includes(verb);
  const open = VERBS.find((verb) => !byId(verb).hidden);
  show(model.shows.includes(open) ? open : "generate");
}

/* Tabs */
function show(verb) {
  for (const other of VERBS) {
    const chosen = other === verb, tab = byId(`tab-${other}`);
    byId(other).hidden = !chosen;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
  }
  if (verb === "look" && !byId("look-text").value) byId("look-text").value = byId("prompt").value;
  if (verb === "count") byId("account").src = `/count?model=${encodeURIComponent(run().id)}`;
  if (verb === "evaluate") showSummary();
}

function switchTab(event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1 }, there = VERBS.filter((verb) => !byId(`tab-${verb}`).hidden);
  const here = there.findIndex((verb) => byId(`tab-${verb}`) === document.activeElement);
  if (here < 0 || !(event.key in steps)) return;
  const next = there[(here + steps[event.key] + there.length) % there.length];
  show(next);
  byId(`tab-${next}`).focus();
}

/* Generate */
function readForm() {
  const request = { model: run().id, prompt: byId("prompt").value, stream: true, stream_options: { include_usage: true } };
  if (run().answers !== "prompt") return request;
  const seed = byId("seed").value;
  Object.assign(request, { temperature: Number(byId("temperature").value), max_tokens: Number(byId("tokens").value),
    top_p: Number(byId("top-p").value) });
  return seed === "" ? request : { ...request, seed: Number(seed) };
}

async function generate(event) {
  event.preventDefault();
  stopGenerating();
  const mine = controller = new AbortController(), request = readForm();
  const progress = { tokens: 0, seed: null, started: performance.now() };
  clear(run().answers === "prompt" ? request.prompt : "");
  showStatus("waiting …");
  try {
    const answer = await fetch("/v1/completions", { method: "POST", signal: mine.signal,
      headers: { "content-type": "application/json" }, body: JSON.stringify(request) });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const chunk of events(answer.body)) readChunk(chunk, progress);
    showStatus(summary(progress, run().answers === "prompt"));
  } catch (error) {
    const aborted = error.name === "AbortError";
    if (controller === mine || !aborted) showStatus(aborted ? "stopped" : error.message, !aborted);
  } finally {
    if (controller === mine) busy(false);
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

function readChunk(chunk, progress) {
  if (chunk.error) throw new Error(chunk.error.message);
  progress.seed = chunk.seed;
  if (chunk.usage) progress.tokens = chunk.usage.completion_tokens;
  for (const choice of chunk.choices) {
    if (choice.text) write(choice.text);
    if (choice.loop) showNote(choice.loop.remark);
    if (choice.remark) showNote(choice.remark);
    if (choice.chances) showChances(choice.chances);
  }
}

function write(piece) {
  const box = byId("text"), follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  byId("after").append(piece);
  if (follows) box.scrollTop = box.scrollHeight;
  if (byId("status").textContent !== "generating …") showStatus("generating …");
}

function showChances(chances) {
  const rows = Object.entries(chances).sort((one, other) => other[1] - one[1]);
  fill(byId("chances"), rows.map(([name, chance]) => [name, chance.toFixed(3)]));
  byId("chances").hidden = false;
}

function summary(progress, writes) {
  if (!writes) return "done";
  const seconds = (performance.now() - progress.started) / 1000;
  return `${number(progress.tokens)} tokens in ${seconds.toFixed(1)} s, seed ${progress.seed}`;
}

function clear(before) {
  byId("before").textContent = before;
  byId("after").textContent = "";
  byId("loop").hidden = byId("chances").hidden = true;
  byId("result").hidden = false;
  busy(true);
}

function busy(is) {
  byId("stop").hidden = !is;
  byId("go").disabled = is;
}

function stopGenerating() {
  if (controller) controller.abort();
  busy(false);
}

function showNote(words) {
  byId("loop").textContent = words;
  byId("loop").hidden = false;
}

function showStatus(words, wrong = false) {
  byId("status").textContent = words;
  byId("status").className = wrong ? "trouble" : "soft";
}

/* Look and evaluate */
function look(event) {
  event.preventDefault();
  const words = new URLSearchParams({ model: run().id, text: byId("look-text").value });
  byId("heads").hidden = false;
  byId("heads").src = `/look?${words}`;
}

async function showSummary() {
  const found = await (await fetch(`/evaluate?model=${encodeURIComponent(run().id)}`)).json();
  const own = Object.entries(found).filter(([name, value]) => typeof value === "number" && !SUMMARY.includes(name)
    && !["planned_steps", "setup_seconds", "best_loss"].includes(name));
  const rows = [...SUMMARY.map((name) => [name, found[name]]), ...own].filter(([, value]) => value !== null && value !== undefined);
  fill(byId("summary"), rows.map(([name, value]) => [name.replaceAll("_", " "), typeof value === "number" ? number(value) : value]));
  byId("samples-title").hidden = !found.samples?.length;
  byId("samples").replaceChildren(...(found.samples ?? []).map((text) => element("p", "text", text)));
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

byId("run").addEventListener("change", choose);
byId("ask").addEventListener("submit", generate);
byId("stop").addEventListener("click", stopGenerating);
byId("look-form").addEventListener("submit", look);
document.querySelector("[role=tablist]").addEventListener("keydown", switchTab);
for (const verb of VERBS) byId(`tab-${verb}`).addEventListener("click", () => show(verb));
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stopGenerating(); });
start();
