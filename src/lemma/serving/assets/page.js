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
  byId("compare").hidden = models.length < 2;
  choose();
}

function choose() {
  const model = run(), writes = model.answers === "prompt";
  stopGenerating();
  controller = null; // what was being written has nothing more to say
  byId("facts").textContent = model.family + (writes ? "" : `, gives the ${model.answers} of a text`);
  byId("prompt-label").textContent = writes ? "Prompt" : "Source";
  byId("settings").hidden = byId("settings").disabled = byId("next").hidden = !writes;
  byId("result").hidden = byId("other-result").hidden = byId("candidates").hidden = true;
  const before = byId("other").value, others = models.filter((one) => one !== model && one.shows.includes("generate"));
  byId("other").replaceChildren(new Option("no other", ""), ...others.map((one) => new Option(one.id, one.id)));
  byId("other").value = others.some((one) => one.id === before) ? before : "";
  byId("heads").hidden = true;
  showStatus("");
  for (const verb of VERBS) byId(`tab-${verb}`).hidden = !model.shows.includes(verb);
  const open = VERBS.find((verb) => !byId(verb).hidden);
  show(model.shows.includes(open) ? open : model.shows[0]);
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

/* Generate: one side for the run, one for the run that it is compared with */
const SHOWN = 8; // most likely tokens at each place

function readForm(model, more) {
  const request = { model: model.id, prompt: byId("prompt").value, ...more };
  if (model.answers !== "prompt") return request;
  const seed = byId("seed").value;
  Object.assign(request, { temperature: Number(byId("temperature").value), max_tokens: Number(byId("tokens").value),
    top_p: Number(byId("top-p").value), logprobs: SHOWN, truncate_prompt_tokens: -1 });
  return seed === "" ? request : { ...request, seed: Number(seed) };
}

class Side {
  constructor(prefix) {
    this.prefix = prefix;
    this.text = this.part("text");
    this.text.addEventListener("click", (event) => this.select(event.target.closest("[data-from]")));
    this.text.addEventListener("keydown", (event) => this.move(event));
  }

  part(name) { return byId(this.prefix + name); }

  clear(model, prompt, titled) {
    this.model = model;
    this.spans = [];
    this.tokens = 0;
    this.chosen = null;
    this.part("title").textContent = model.id;
    this.part("title").hidden = !titled;
    this.part("before").textContent = prompt;
    this.part("after").textContent = "";
    this.part("loop").hidden = this.part("chances").hidden = true;
    this.part("result").hidden = false;
  }

  async generate(signal) {
    const writes = this.model.answers === "prompt", started = performance.now(), progress = { tokens: 0, seed: null, cut: 0 };
    const request = readForm(this.model, { stream: true, stream_options: { include_usage: true } });
    this.say("waiting …");
    const answer = await post(request, signal);
    for await (const chunk of events(answer.body)) this.read(chunk, progress);
    const seconds = (performance.now() - started) / 1000, cut = progress.cut ? `, the prompt's first ${progress.cut} tokens not read` : "";
    this.say(writes ? `${number(progress.tokens)} tokens in ${seconds.toFixed(1)} s, seed ${progress.seed}${cut}` : "done");
  }

  read(chunk, progress) {
    if (chunk.error) throw new Error(chunk.error.message);
    progress.seed = chunk.seed;
    progress.cut = chunk.prompt_tokens_cut;
    if (chunk.usage) progress.tokens = chunk.usage.completion_tokens;
    for (const choice of chunk.choices) {
      if (choice.text) this.write(choice.text, choice.logprobs);
      if (choice.loop) this.showLoop(choice.loop);
      if (choice.remark) this.note(choice.remark);
      if (choice.chances) this.showChances(choice.chances);
    }
  }

  /* One element for each token; for the tokens of one character, one for all of them. */
  write(piece, logprobs) {
    const box = this.text, follows = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
    const told = logprobs ?? { tokens: [] }, whole = told.tokens.join("") !== piece;
    const parts = whole ? [[piece, 0, told.tokens.length]] : told.tokens.map((token, place) => [token, place, place + 1]);
    for (const [text, from, to] of parts) {
      const span = element("span", "token", text);
      span.dataset.from = this.tokens;
      this.tokens += to - from;
      span.dataset.to = this.tokens;
      if (/^\n+$/.test(text)) span.dataset.lines = "";
      const own = (told.token_logprobs ?? []).slice(from, to);
      if (own.length) span.style.setProperty("--chance", Math.exp(own.reduce((sum, one) => sum + one, 0)));
      if (own.length === 1) span.chances = { own: own[0], top: told.top_logprobs[from] };
      this.spans.push(span);
      this.part("after").append(span);
    }
    if (follows) box.scrollTop = box.scrollHeight;
    if (this.part("status").textContent !== "generating …") this.say("generating …");
  }

  /* Every other turn of the loop is marked. */
  showLoop(loop) {
    for (const span of this.spans) {
      const turn = Math.floor((Number(span.dataset.from) - loop.onset) / loop.period);
      if (turn >= 0) span.classList.add(turn % 2 ? "again" : "loops");
    }
    this.note(loop.remark);
  }

  select(span) {
    if (!span?.chances) return;
    this.chosen?.classList.remove("chosen");
    this.chosen = span;
    span.classList.add("chosen");
    const before = this.spans.slice(0, this.spans.indexOf(span)).map((one) => one.textContent).join("");
    const share = percent(Math.exp(span.chances.own));
    showCandidates(`Token ${Number(span.dataset.from) + 1}: ${visible(span.textContent)} had ${share}`, span.chances.top,
      this.part("before").textContent + before, this.model);
  }

  move(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const places = (this.spans ?? []).filter((span) => span.chances); // not the tokens of one character
    if (!(event.key in steps) || !places.length) return;
    event.preventDefault();
    const here = this.chosen ? places.indexOf(this.chosen) + steps[event.key] : 0;
    this.select(places[Math.max(0, Math.min(places.length - 1, here))]);
  }

  showChances(chances) {
    const rows = Object.entries(chances).sort((one, other) => other[1] - one[1]);
    fill(this.part("chances"), rows.map(([name, chance]) => [name, chance.toFixed(3)]));
    this.part("chances").hidden = false;
  }

  note(words) {
    this.part("loop").textContent = words;
    this.part("loop").hidden = false;
  }

  say(words, wrong = false) { showStatus(words, wrong, this.part("status")); }
}

const SIDES = [new Side(""), new Side("other-")];

async function post(request, signal) {
  const answer = await fetch("/v1/completions", { method: "POST", signal,
    headers: { "content-type": "application/json" }, body: JSON.stringify(request) });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer;
}

async function generate(event) {
  event.preventDefault();
  stopGenerating();
  const mine = controller = new AbortController(), second = models.find((model) => model.id === byId("other").value);
  const runs = second ? [run(), second] : [run()];
  byId("other-result").hidden = true;
  byId("candidates").hidden = true;
  busy(true);
  await Promise.all(runs.map(async (model, place) => {
    const side = SIDES[place];
    side.clear(model, model.answers === "prompt" ? byId("prompt").value : "", runs.length > 1);
    try {
      await side.generate(mine.signal);
    } catch (error) {
      const aborted = error.name === "AbortError";
      if (controller === mine || !aborted) side.say(aborted ? "stopped" : error.message, !aborted);
    }
  }));
  if (controller === mine) busy(false);
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

/* Token by token: what may come next, with its probability */
const visible = (text) => `“${text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;
const percent = (chance) => chance >= 0.1 ? `${(100 * chance).toFixed(0)} %` : `${(100 * chance).toPrecision(2)} %`;

async function nextToken() {
  stopGenerating();
  const model = run(), prompt = byId("prompt").value;
  try {
    const request = readForm(model, { echo: true }); // with the prompt's own tokens also the one that ends a text is told
    const answer = await (await post({ ...request, temperature: 0, top_p: 1, max_tokens: 1 })).json();
    showStatus("");
    showCandidates(`What comes next, by ${model.id}`, answer.choices[0].logprobs.top_logprobs.at(-1) ?? {}, prompt, model);
  } catch (error) {
    showStatus(error.message, true);
  }
}

function showCandidates(title, top, before, model) {
  byId("candidates-title").textContent = title;
  const found = Object.entries(top).sort((one, other) => other[1] - one[1]);
  byId("candidates-list").replaceChildren(...found.map(([text, logprob]) => {
    const button = element("button", "candidate", ""), bar = element("span", "bar", ""), chance = Math.exp(logprob);
    button.type = "button";
    bar.style.setProperty("--chance", chance);
    button.append(element("code", "", visible(text)), bar, element("span", "share", percent(chance)));
    button.addEventListener("click", () => {
      byId("prompt").value = before + text;
      byId("run").value = model.id;
      choose();
      nextToken();
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  byId("candidates").hidden = false;
}

function busy(is) {
  byId("stop").hidden = !is;
  byId("go").disabled = byId("next").disabled = is;
}

function stopGenerating() {
  if (controller) controller.abort();
  busy(false);
}

function showStatus(words, wrong = false, place = byId("status")) {
  place.textContent = words;
  place.className = wrong ? "trouble" : "soft";
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
byId("next").addEventListener("click", nextToken);
byId("look-form").addEventListener("submit", look);
document.querySelector("[role=tablist]").addEventListener("keydown", switchTab);
for (const verb of VERBS) byId(`tab-${verb}`).addEventListener("click", () => show(verb));
byId("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stopGenerating(); });
start();
