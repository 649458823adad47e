"use strict";
// The page is complete without this script. It adds: heads that open, cells that can be locked, the arithmetic of a
// cell worked out from the model's own numbers, and images to save. No network.
(() => {
  const data = JSON.parse(document.getElementById("payload").textContent);
  const root = document.documentElement, panel = document.getElementById("head");
  const tiles = [...document.querySelectorAll(".tile")], preview = document.getElementById("preview");
  const dark = data.colours[data.colours.length - 1];
  let head = null;                      // the open head, unpacked
  let at = null, locked = false;        // the cell whose arithmetic is shown, and whether pointing elsewhere changes it
  root.classList.add("script");

  // Numbers and words

  const escaped = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  const safe = text => String(text).replace(/[&<>"']/g, character => escaped[character]);
  const short = (text, most = 10) => [...text].length > most ? [...text].slice(0, most - 1).join("") + "…" : text;
  const number = (value, digits = 4) => {
    const size = Math.abs(value), plain = size === 0 || size >= .1;
    const small = size >= 1e-6 ? value.toPrecision(digits) : value.toExponential(2);
    return (plain ? value.toFixed(digits) : small).replace(/-/g, "−");
  };
  const signed = value => value < 0 ? "− " + number(-value) : "+ " + number(value);
  const level = weight => Math.round(Math.sqrt(Math.min(Math.max(weight, 0), 1)) * (data.colours.length - 1));
  const ink = place => place > data.colours.length * 0.57 ? "#ffffff" : "#1c1d21";

  // Unpacking: arrays are little-endian numbers in base64

  const bytes = place => Uint8Array.from(atob(data.arrays[place]), character => character.charCodeAt(0));
  const floats = place => new Float32Array(bytes(place).buffer);

  function vectors(packed) {
    const numbers = packed.bytes === 4 ? floats(packed.array) : new Int16Array(bytes(packed.array).buffer);
    const row = i => Array.from(numbers.subarray(i * packed.width, (i + 1) * packed.width), x => x * packed.unit);
    return { width: packed.width, row };
  }

  function unpack(packed) {
    const [rows, columns] = packed.size, mask = bytes(packed.mask);
    const scores = floats(packed.scores), sums = floats(packed.sums);
    const bias = packed.bias === null ? null : floats(packed.bias);
    const places = new Int32Array(rows * columns).fill(-1);       // where a visible cell's numbers stand
    for (let cell = 0, next = 0; cell < places.length; cell++)
      if (mask[cell >> 3] >> (7 - cell % 8) & 1) places[cell] = next++;
    const place = (i, j) => places[i * columns + j];
    const seen = (i, j) => place(i, j) >= 0;
    const power = (i, j) => seen(i, j) ? Math.exp(scores[place(i, j)] - sums[2 * i]) : 0;
    return {
      ...packed, rows, columns, seen, power,
      queryTokens: data.texts[packed.rows], keyTokens: data.texts[packed.columns],
      score: (i, j) => scores[place(i, j)], most: i => sums[2 * i], sum: i => sums[2 * i + 1],
      bias: bias && ((i, j) => bias[place(i, j)]),
      weight: (i, j) => seen(i, j) ? power(i, j) / sums[2 * i + 1] : 0,
      vectors: packed.vectors && packed.vectors.map(vectors),
    };
  }

  const range = count => [...Array(count).keys()];
  const name = (text, place) => `${text.start + place} “${text.words[place]}”`;
  const title = one => `Layer ${one.layer}, head ${one.head}`;

  function strongest(count, weight) {
    return range(count).reduce((best, place) => weight(place) > weight(best) ? place : best, 0);
  }

  // Images as SVG text: shown as they are, or saved

  const svg = (width, height, body) =>
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" ` +
    `font-family="system-ui, 'DejaVu Sans', sans-serif">${body}</svg>`;
  const write = (x, y, text, more = "") => `<text x="${x}" y="${y}" font-size="12" fill="#1c1d21" ${more}>${text}</text>`;
  const label = (text, place, most) =>
    `<tspan font-size="9" fill="#5d616b">${text.start + place} </tspan>` +
    `<tspan style="unicode-bidi:isolate">${safe(short(text.words[place], most))}</tspan>`;

  function linesSvg(one) {
    const step = 20, left = 118, right = 234, top = 24, parts = [];
    for (const i of range(one.rows)) for (const j of range(one.columns)) {
      const weight = one.weight(i, j), middle = (left + right) / 2;
      const start = top + (i + .5) * step, end = top + (j + .5) * step;
      if (weight < .01) continue;
      const curve = `M${left} ${start}C${middle} ${start} ${middle} ${end} ${right} ${end}`;
      parts.push(`<path data-i="${i}" data-j="${j}" d="${curve}" fill="none" stroke="${dark}" ` +
        `stroke-width="${(.6 + 3 * weight).toFixed(2)}" stroke-opacity="${Math.sqrt(weight).toFixed(3)}"/>`);
    }
    for (const i of range(one.rows)) parts.push(write(left - 5, top + i * step + 14, label(one.queryTokens, i),
      `text-anchor="end" data-side="query" data-i="${i}" data-j="${strongest(one.columns, j => one.weight(i, j))}"`));
    for (const j of range(one.columns)) parts.push(write(right + 5, top + j * step + 14, label(one.keyTokens, j),
      `data-side="key" data-i="${strongest(one.rows, i => one.weight(i, j))}" data-j="${j}"`));
    parts.push(write(left - 5, 14, "query", 'text-anchor="end" opacity=".7"'));
    parts.push(write(right + 5, 14, "key", 'opacity=".7"'));
    return svg(352, top + Math.max(one.rows, one.columns) * step + 8, parts.join(""));
  }

  function matrixSvg(one) {
    const wide = 34, high = 22, left = 110, top = 110;
    const parts = [write(8, 18, safe(title(one)), 'font-weight="600"')];
    for (const i of range(one.rows))
      parts.push(write(left - 6, top + i * high + 15, label(one.queryTokens, i), 'text-anchor="end"'));
    for (const j of range(one.columns)) {
      const x = left + j * wide + 18;
      parts.push(`<g transform="rotate(-60 ${x} ${top - 6})">${write(x, top - 6, label(one.keyTokens, j))}</g>`);
    }
    for (const i of range(one.rows)) for (const j of range(one.columns)) if (one.seen(i, j)) {
      const weight = one.weight(i, j), shade = level(weight), x = left + j * wide, y = top + i * high;
      parts.push(`<rect x="${x}" y="${y}" width="${wide - 1}" height="${high - 1}" fill="${data.colours[shade]}"/>` +
        `<text x="${x + wide / 2}" y="${y + 15}" font-size="10" text-anchor="middle" fill="${ink(shade)}">` +
        `${weight.toFixed(2)}</text>`);
    }
    return svg(left + one.columns * wide + 70, top + one.rows * high + 10, parts.join(""));
  }

  function gridSvg() {
    const layers = [...document.querySelectorAll(".layer")].map(layer => [...layer.querySelectorAll(".tile")]);
    const side = 96, most = Math.max(...layers.map(layer => layer.length));
    const parts = [write(8, 20, safe(document.querySelector("h1").textContent), 'font-weight="600"')];
    layers.forEach((layer, row) => layer.forEach((tile, column) => {
      const x = 8 + column * (side + 12), y = 36 + row * (side + 34);
      const words = tile.getAttribute("aria-label").replace("Layer ", "").replace(", head ", ".");
      parts.push(`<image x="${x}" y="${y}" width="${side}" height="${side}" preserveAspectRatio="none" ` +
        `style="image-rendering:pixelated" href="${tile.querySelector("img").src}"/>` +
        `<rect x="${x}" y="${y}" width="${side}" height="${side}" fill="none" stroke="#dcdcd6"/>` +
        `<text x="${x}" y="${y + side + 13}" font-size="10">${safe(short(words, 18))}</text>`);
    }));
    return svg(8 + most * (side + 12), 36 + layers.length * (side + 34), parts.join(""));
  }

  function strip([words, values]) {       // a vector as bars, each on its own scale
    const width = 340, most = Math.max(...values.map(Math.abs)) || 1, each = width / values.length, zero = 38;
    const bars = values.map((value, place) => {
      const size = Math.abs(value) / most * 18, top = value < 0 ? zero : zero - size;
      return `<rect x="${(place * each).toFixed(2)}" y="${top.toFixed(2)}" height="${size.toFixed(2)}" ` +
        `width="${Math.max(each - 1.5, each * .7).toFixed(2)}" fill="${value < 0 ? "#b8860b" : dark}"/>`;
    });
    return svg(width, 58, write(0, 13, safe(words)) +
      write(width, 13, "±" + number(most, 3), 'text-anchor="end" opacity=".7"') +
      `<path d="M0 ${zero}H${width}" stroke="#b9bac0" stroke-width=".6"/>` + bars.join(""));
  }

  function arithmeticSvg(one, [i, j]) {
    const rows = steps(one, i, j).flatMap(([words, value]) =>
      value.split("\n").map((line, place) => [place ? "" : words, line]));
    const lines = rows.map(([words, value], row) => write(8, 48 + row * 20, safe(words)) +
      write(160, 48 + row * 20, safe(value), 'font-family="monospace" xml:space="preserve"'));
    const top = 70 + lines.length * 20, strips = stripRows(one, i, j);
    const inner = strips.map((row, place) =>
      strip(row).replace("<svg ", `<svg x="${8 + place % 2 * 370}" y="${top + (place >> 1) * 66}" `));
    const all = write(8, 20, safe(heading(one, i, j)), 'font-weight="600"') + lines.join("") + inner.join("");
    return svg(900, top + Math.ceil(strips.length / 2) * 66, all);
  }

  // The arithmetic of one cell

  const heading = (one, i, j) => `${title(one)}: ${name(one.queryTokens, i)} attends to ${name(one.keyTokens, j)}`;
  const dot = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);

  function product(one, i, j) {           // q·k from the model's own score; the vectors serve where the cell is masked
    if (one.seen(i, j)) return (one.score(i, j) - (one.bias ? one.bias(i, j) : 0)) / one.scale;
    return one.vectors ? dot(one.vectors[0].row(i), one.vectors[1].row(j)) : null;
  }

  function terms(one, i, j, total) {      // the largest products by name, and all others as one number
    const q = one.vectors[0].row(i), k = one.vectors[1].row(j);
    const order = range(q.length).sort((a, b) => Math.abs(q[b] * k[b]) - Math.abs(q[a] * k[a]));
    const few = order.slice(0, q.length <= 4 ? q.length : 3);
    const rest = total - few.reduce((sum, c) => sum + q[c] * k[c], 0);
    const named = few.map(c => `(${number(q[c], 3)})(${number(k[c], 3)})`).join(" + ");
    return named + (q.length > few.length ? ` ${signed(rest)} from ${q.length - few.length} more` : "");
  }

  function steps(one, i, j) {
    const rows = [], total = product(one, i, j);
    const named = one.vectors ? terms(one, i, j, total) + "\n    = " : "";
    if (total !== null) rows.push(["query · key", `q·k = ${named}${number(total)}`, "product"]);
    if (!one.seen(i, j)) return [...rows, ["mask", "this query may not see this key: its score is −∞", "mask"],
      ["softmax", "exp(−∞) = 0, so α = 0", "alpha"]];
    const score = one.score(i, j), power = one.power(i, j), weight = one.weight(i, j);
    const count = range(one.columns).filter(column => one.seen(i, column)).length;
    const keys = one.all > one.columns ? `those of all ${one.all} keys that may be seen`
      : `${count} visible key${count > 1 ? "s" : ""}`;
    const scaled = number(total * one.scale), most = number(one.most(i));
    rows.push(["times scale", `${number(total)} × ${number(one.scale)} = ${scaled}`, "scaled"]);
    rows.push(["plus bias", one.bias ? `${scaled} ${signed(one.bias(i, j))} = ${number(score)}`
      : `none: the score is ${number(score)}`, "score"]);
    rows.push(["mask", "none: this query may see this key", "mask"]);
    rows.push(["exponential", `exp(score − row maximum) = exp(${number(score)} − ` +
      `${one.most(i) < 0 ? `(${most})` : most}) = ${number(power)}`, "power"]);
    const sink = one.sink === null ? "" : ` and the sink, whose score is ${number(one.sink)}`;
    rows.push(["sum of the row", `Σ exp = ${number(one.sum(i))} over ${keys}${sink}`, "sum"]);
    rows.push(["weight", `α = ${number(power)} / ${number(one.sum(i))} = ${number(weight)}`, "alpha"]);
    if (one.vectors && one.vectors[2]) {
      const v = one.vectors[2].row(j), more = v.length > 4 ? ", …" : "";
      const list = values => values.slice(0, 4).map(x => number(x, 3)).join(", ") + more;
      rows.push(["weight times value",
        `α·v = ${number(weight)} × (${list(v)})\n    = (${list(v.map(x => weight * x))})`, "mixed"]);
    }
    return rows;
  }

  function stripRows(one, i, j) {
    if (!one.vectors) return [];
    const [queries, keys, values] = one.vectors, q = queries.row(i), k = keys.row(j);
    const rows = [["query q", q], ["key k", k], ["products q∗k", q.map((x, c) => x * k[c])]];
    if (!values || !one.seen(i, j)) return rows;
    const v = values.row(j), weight = one.weight(i, j);
    rows.push(["value v", v], ["α·v", v.map(x => weight * x)]);
    if (one.all === one.columns) rows.push(["output Σ α·v", range(one.columns).reduce(
      (sum, column) => values.row(column).map((x, c) => sum[c] + one.weight(i, column) * x), v.map(() => 0))]);
    return rows;
  }

  // The open head

  function matrixTable(one) {
    const above = range(one.columns).map(j => `<th scope="col" title="${safe(name(one.keyTokens, j))}">` +
      `<bdi>${safe(short(one.keyTokens.words[j]))}</bdi><i>${one.keyTokens.start + j}</i></th>`);
    const rows = range(one.rows).map(i => {
      const cells = range(one.columns).map(j => {
        const place = `data-i="${i}" data-j="${j}" tabindex="-1"`;
        if (!one.seen(i, j)) return `<td class="masked" ${place} aria-label="masked"></td>`;
        const weight = one.weight(i, j), shade = level(weight), colour = weight < .005 ? "#77746a" : ink(shade);
        return `<td ${place} style="background:${data.colours[shade]};color:${colour}">${weight.toFixed(2)}</td>`;
      });
      return `<tr><th scope="row" title="${safe(name(one.queryTokens, i))}"><i>${one.queryTokens.start + i}</i>` +
        `<bdi>${safe(short(one.queryTokens.words[i]))}</bdi></th>${cells.join("")}</tr>`;
    });
    const upright = one.keyTokens.words.every(word => [...word].length <= 3) ? " upright" : "";
    return `<table class="matrix${upright}"><thead><tr><th></th>${above.join("")}</tr></thead>` +
      `<tbody>${rows.join("")}</tbody></table>`;
  }

  const save = view => `<button type="button" class="export" data-view="${view}">Save as SVG</button>`;

  function open(place, scroll) {
    head = unpack(data.heads[place]);
    head.place = place;
    locked = false;
    tiles.forEach(tile => tile.removeAttribute("aria-current"));
    tiles[place].setAttribute("aria-current", "true");
    document.getElementById("one-title").textContent = title(head);
    panel.innerHTML = `<p>${safe(head.about)}</p><div class="bar"><button type="button" data-go="-1">Previous head</button>` +
      `<button type="button" data-go="1">Next head</button><a href="#all">All heads</a></div><div class="views">` +
      `<div class="view"><h3>Lines ${save("lines")}</h3><div class="scroller tall lines">${linesSvg(head)}</div></div>` +
      `<div class="view"><h3>Weights α ${save("matrix")}</h3><div class="scroller tall">${matrixTable(head)}</div></div></div>` +
      `<p class="note">Point at a cell, line or token to see its arithmetic; click to lock it. With keys: arrows move, ` +
      `Enter locks, Escape unlocks. Lines of less than 0.01 are not drawn.</p>` +
      `<div class="sum"><h3><span>Arithmetic of one cell</span>${save("arithmetic")}</h3><div class="bar">` +
      `<button type="button" class="unlock" hidden>Unlock</button><b id="cell" aria-live="polite"></b></div>` +
      `<ol class="steps"></ol><div class="strips"></div></div>`;
    const row = head.rows - 1;
    show(row, strongest(head.columns, j => head.weight(row, j)), null);
    cell(...at).tabIndex = 0;
    reveal(cell(...at));
    reveal(panel.querySelector(`.lines text[data-side="query"][data-i="${row}"]`));
    if (scroll) document.getElementById("one").scrollIntoView({ behavior: "auto" });
  }

  function reveal(one) {                  // bring it to the middle of its own scroller; the page stays where it is
    const box = one.closest(".scroller"), frame = box.getBoundingClientRect(), place = one.getBoundingClientRect();
    box.scrollTop += place.top - frame.top - (frame.height - place.height) / 2;
    box.scrollLeft += place.left - frame.left - (frame.width - place.width) / 2;
  }

  const cell = (i, j) => panel.querySelector(`td[data-i="${i}"][data-j="${j}"]`);

  function show(i, j, side) {             // side: whose lines stand out; null for all lines alike
    at = [i, j];
    panel.querySelectorAll(".at, .on").forEach(one => one.classList.remove("at", "on"));
    cell(i, j).classList.add("at");
    cell(i, j).parentNode.firstChild.classList.add("on");
    panel.querySelector(".matrix thead tr").children[j + 1].classList.add("on");
    panel.querySelectorAll(".lines path").forEach(path => {
      const here = +path.dataset.i === i && +path.dataset.j === j;
      const near = side === "key" ? +path.dataset.j === j : +path.dataset.i === i;
      path.classList.toggle("faint", side !== null && !near);
      path.classList.toggle("here", here && side !== null);
    });
    for (const token of [`[data-side="query"][data-i="${i}"]`, `[data-side="key"][data-j="${j}"]`])
      panel.querySelector(`.lines text${token}`).classList.add("on");
    panel.querySelector("#cell").innerHTML =
      `<bdi>${safe(name(head.queryTokens, i))}</bdi> attends to <bdi>${safe(name(head.keyTokens, j))}</bdi>`;
    panel.querySelector(".steps").innerHTML = steps(head, i, j).map(([words, value, part]) =>
      `<li class="${part === "alpha" ? "result" : ""}"><span>${safe(words)}</span>` +
      `<code data-part="${part}">${safe(value)}</code></li>`).join("");
    panel.querySelector(".strips").innerHTML = stripRows(head, i, j).map(strip).join("");
  }

  function lock(yes) {
    locked = yes;
    panel.querySelector(".unlock").hidden = !yes;
    panel.classList.toggle("locked", yes);
  }

  function download(view) {
    const views = { grid: gridSvg, lines: linesSvg, matrix: matrixSvg, arithmetic: arithmeticSvg };
    const made = views[view](head, at), link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([made], { type: "image/svg+xml" }));
    link.download = view === "grid" ? "heads.svg" : `layer-${head.layer}-head-${head.head}-${view}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // What a person does

  const pointed = event => event.target.closest("[data-i]");
  const point = event => {
    const one = pointed(event);
    if (one && !locked) show(+one.dataset.i, +one.dataset.j, one.dataset.side || "query");
  };
  panel.addEventListener("mouseover", point);
  panel.addEventListener("focusin", point);
  panel.addEventListener("mouseleave", () => { if (head && !locked) show(...at, null); });
  panel.addEventListener("click", event => {
    const one = pointed(event), go = event.target.closest("[data-go]");
    if (go) return open((head.place + +go.dataset.go + data.heads.length) % data.heads.length, false);
    if (event.target.closest(".unlock")) { lock(false); cell(...at).focus(); return undefined; }
    if (!one) return undefined;
    lock(false);
    show(+one.dataset.i, +one.dataset.j, one.dataset.side || "query");
    return lock(true);
  });

  const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  panel.addEventListener("keydown", event => {
    const one = event.target.closest("td[data-i]"), move = arrows[event.key];
    if (one && move) {
      const next = cell(+one.dataset.i + move[0], +one.dataset.j + move[1]);
      if (next) { one.tabIndex = -1; next.tabIndex = 0; next.focus(); }
      event.preventDefault();
    } else if (one && (event.key === "Enter" || event.key === " ")) {
      one.click();
      event.preventDefault();
    }
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape") { if (head && locked) lock(false); preview.hidden = true; }
  });

  tiles.forEach((tile, place) => {
    tile.addEventListener("click", event => { event.preventDefault(); preview.hidden = true; open(place, true); });
    tile.addEventListener("keydown", event => {
      const layer = tile.parentNode, layers = [...document.querySelectorAll(".tiles")], move = arrows[event.key];
      if (!move) return;
      const other = layers[layers.indexOf(layer) + move[0]], column = [...layer.children].indexOf(tile) + move[1];
      if (other && other.children[column]) other.children[column].focus();
      event.preventDefault();
    });
    for (const begin of ["mouseenter", "focus"]) tile.addEventListener(begin, () => {
      const one = data.heads[place], image = tile.querySelector("img").src;
      preview.innerHTML = `<img alt="" src="${image}"><b>${title(one)}</b><br>${safe(one.about)}`;
      preview.hidden = false;
    });
    for (const end of ["mouseleave", "blur"]) tile.addEventListener(end, () => { preview.hidden = true; });
  });
  document.querySelectorAll(".numbers tbody a").forEach((link, place) => link.addEventListener("click", event => {
    event.preventDefault();
    open(place, true);
  }));
  document.querySelectorAll(".found a").forEach(link => link.addEventListener("click", event => {
    event.preventDefault();
    open(+link.dataset.head, true);
  }));
  document.addEventListener("click", event => {
    const button = event.target.closest(".export");
    if (button) download(button.dataset.view);
  });
  open(data.first, false);
})();
