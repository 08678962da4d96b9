// Draws the charts and attention maps of the page from the JSON beside them, in the page's colors, and switches tabs.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const fonts = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
const plain = { responsive: true, displayModeBar: false };
const LEVELS = 32767, RANGE = 14; // of a packed map: see figures/heatmap.py
const DIVERGING = [[0, "#b35806"], [0.25, "#f1a340"], [0.5, "#f7f7f7"], [0.75, "#998ec3"], [1, "#542788"]];
const SEQUENTIAL = [[0, "#00224e"], [0.25, "#434e6c"], [0.5, "#7d7c78"], [0.75, "#bcae6c"], [1, "#fee838"]]; // cividis

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function data(element) {
  return JSON.parse(element.closest("figure").querySelector('script[type="application/json"]').textContent);
}

// A line keeps the color of its system. On a dark page it is mixed with the color of the text, so that black is seen too.
function themedColor(own) {
  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const ink = channels(color("ink"));
  return dark.matches ? `rgb(${channels(own).map((part, i) => Math.round(0.55 * part + 0.45 * ink[i]))})` : own;
}

function themedTrace(trace) {
  const own = themedColor(trace.line.color);
  return { ...trace, line: { ...trace.line, color: own }, marker: { ...trace.marker, color: own } };
}

function themedLayout(layout) {
  const [ink, soft, line, card] = ["ink", "soft", "line", "card"].map(color);
  const axis = {
    gridcolor: line, linecolor: line, zeroline: false, automargin: true, tickfont: { color: soft },
    ticks: "",
  };
  const title = (text) => ({ text, standoff: 8, font: { color: soft, size: 12 } });
  return {
    ...layout,
    xaxis: { ...layout.xaxis, ...axis, showgrid: false, showline: true, title: title(layout.xaxis.title.text) },
    yaxis: { ...layout.yaxis, ...axis, title: title(layout.yaxis.title.text) },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 12, r: 16, t: 8, b: 12 },
    font: { family: fonts, size: 12, color: ink },
    hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink }, namelength: 40 },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { color: ink } },
  };
}

function drawChart(chart) {
  const { data: traces, layout } = data(chart);
  Plotly.react(chart, traces.map(themedTrace), themedLayout(layout), plain);
}

// The rows of weights of a packed map: each is a sign and 15 bits of logarithm.
function unpack({ size, high, data: text }) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const codes = new DataView(bytes.buffer);
  const weight = (i) => {
    const code = codes.getInt16(2 * i, true);
    return code && Math.sign(code) * Math.exp(high + (Math.abs(code) - LEVELS) / (LEVELS - 1) * RANGE);
  };
  return Array.from({ length: size }, (_, t) => Array.from({ length: size }, (_, s) => weight(t * size + s)));
}

function share(sorted, part) {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}

// The value that a color shows: the logarithm of a weight, or the weight itself if any is negative.
function shades(rows) {
  const flat = rows.flat().filter((x) => x !== 0);
  if (flat.some((x) => x < 0)) {
    const most = share(flat.map(Math.abs).sort((a, b) => a - b), 0.95);
    return { z: rows, zmin: -most, zmax: most, colorscale: DIVERGING, title: "weight" };
  }
  const logs = flat.map(Math.log10).sort((a, b) => a - b);
  const [low, high] = [share(logs, 0.01), share(logs, 0.995)];
  const middle = (low + high) / 2, half = Math.max(high - low, 0.5) / 2;
  const z = rows.map((row) => row.map((x) => (x > 0 ? Math.log10(x) : middle - half)));
  return { z, zmin: middle - half, zmax: middle + half, colorscale: SEQUENTIAL, title: "log₁₀ weight" };
}

// The tokens of a pool, as text.
function words(run, size, i) {
  const first = Math.ceil(i * run.length / size), next = Math.ceil((i + 1) * run.length / size);
  const text = run.tokens.slice(first, Math.min(next, first + 8)).join(run.separator).replace(/\n/g, "⏎");
  const where = next - first > 1 ? `${first}–${next - 1}` : `${first}`;
  return text ? `${where} “${text}”` : where;
}

function mix(scale, part) {
  const place = Math.min(Math.max(part, 0), 1) * (scale.length - 1), i = Math.min(Math.floor(place), scale.length - 2);
  const [a, b] = [scale[i][1], scale[i + 1][1]].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return a.map((x, c) => x + (b[c] - x) * (place - i));
}

function thumbnail(packed) {
  const { z, zmin, zmax, colorscale } = shades(unpack(packed)), size = packed.size;
  const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const picture = new ImageData(size, size), table = Array.from({ length: 256 }, (_, i) => mix(colorscale, i / 255));
  z.flat().forEach((value, i) => {
    const level = Math.round(Math.min(Math.max((value - zmin) / (zmax - zmin), 0), 1) * 255);
    picture.data.set([...table[level], 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}

// Every head of every layer as a small map; a click enlarges it.
function drawThumbs(element) {
  const run = data(element);
  element.replaceChildren(...run.layers.map((layer, i) => {
    const row = document.createElement("div"), heads = document.createElement("div"), name = document.createElement("p");
    Object.assign(name, { className: "how", textContent: layer.name });
    heads.className = "heads";
    heads.append(...layer.maps.map((packed, j) => {
      const button = Object.assign(document.createElement("button"), { type: "button", title: `${layer.name}, head ${j}` });
      button.append(thumbnail(packed));
      button.dataset.place = `${i} ${j}`;
      button.addEventListener("click", () => pick(i, j));
      return button;
    }));
    row.append(name, heads);
    return row;
  }));
}

const readers = new Map(); // for each map, what it shows now

function drawMap(element) {
  const run = data(element), picked = [layerPicker, headPicker].map((picker) => Number(picker.value));
  const layer = run.layers[Math.min(picked[0], run.layers.length - 1)];
  const packed = layer.maps[Math.min(picked[1], layer.maps.length - 1)];
  const weights = unpack(packed), { title, ...shade } = shades(weights);
  const soft = color("soft"), size = packed.size, pool = run.length / size;
  const places = { x0: (pool - 1) / 2, dx: pool, y0: (pool - 1) / 2, dy: pool }; // the axes count tokens, not pools
  const trace = {
    type: "heatmap", ...shade, ...places, hoverinfo: "none",
    colorbar: { title: { text: title, side: "right", font: { color: soft, size: 11 } }, thickness: 10, len: 0.9, outlinewidth: 0,
      tickfont: { color: soft, size: 11 } },
  };
  const axis = (text) => ({ title: { text }, nticks: 6, constrain: "domain" });
  const layout = themedLayout({ xaxis: axis("key"), yaxis: axis("query") });
  Object.assign(layout.xaxis, { showline: false });
  Object.assign(layout.yaxis, { autorange: "reversed", showgrid: false, scaleanchor: "x" });
  Plotly.react(element, [trace], layout, plain);
  const say = element.parentElement.querySelector(".readout"), place = picked.join(" ");
  for (const button of element.closest("figure").querySelectorAll(".thumbs button")) {
    button.setAttribute("aria-pressed", String(button.dataset.place === place));
  }
  say.textContent = `${layer.name}, head ${Math.min(picked[1], layer.maps.length - 1)}`
    + (size < run.length ? `; ${run.length} tokens pooled to ${size}` : "");
  if (!readers.has(element)) {
    element.on("plotly_hover", ({ points: [point] }) => readers.get(element)(...point.pointNumber));
  }
  readers.set(element, (t, s) => {
    const value = document.createElement("b");
    value.textContent = weights[t][s].toPrecision(3);
    say.replaceChildren(`${words(run, size, t)} reads ${words(run, size, s)}: `, value);
  });
}

const mapElements = [...document.querySelectorAll(".map")];
const layerPicker = document.getElementById("map-layer"), headPicker = document.getElementById("map-head");

function fill(picker, names) {
  const before = Number(picker.value);
  picker.replaceChildren(...names.map((name, i) => new Option(name, i)));
  picker.value = String(Math.min(before, names.length - 1));
}

function pick(layer, head) {
  layerPicker.value = String(layer);
  layerPicker.dispatchEvent(new Event("change"));
  headPicker.value = String(head);
  headPicker.dispatchEvent(new Event("change"));
}

function preparePickers() {
  const runs = mapElements.map(data);
  const longest = runs.reduce((a, b) => (b.layers.length > a.layers.length ? b : a));
  const heads = () => {
    const counts = runs.map((run) => run.layers[Math.min(Number(layerPicker.value), run.layers.length - 1)].maps.length);
    fill(headPicker, Array.from({ length: Math.max(...counts) }, (_, i) => String(i)));
  };
  fill(layerPicker, longest.layers.map((layer, i) => (runs.length > 1 ? String(i) : layer.name.replace("layer ", ""))));
  heads();
  layerPicker.addEventListener("change", () => { heads(); mapElements.forEach(drawMap); });
  document.querySelectorAll(".thumbs").forEach(drawThumbs);
  headPicker.addEventListener("change", () => mapElements.forEach(drawMap));
}

const tabs = [...document.querySelectorAll('[role="tab"]')];
const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));

// A chart has no size while it is hidden, so each panel is drawn when it is shown.
function show(chosen) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === chosen));
    tab.tabIndex = i === chosen ? 0 : -1;
    panels[i].hidden = i !== chosen;
  });
  const tab = tabs[chosen], bar = tab.parentElement;
  bar.scrollLeft = tab.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2; // on a narrow screen the tabs do not all fit
  panels[chosen].querySelectorAll(".chart").forEach(drawChart);
  panels[chosen].querySelectorAll(".map").forEach(drawMap);
}

function selected() {
  return tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => { show(i); history.replaceState(null, "", `#${i}`); });
  tab.addEventListener("keydown", ({ key }) => {
    const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[key];
    if (next === undefined) return;
    const place = (next + tabs.length) % tabs.length;
    show(place);
    tabs[place].focus();
  });
});
document.body.classList.add("tabbed");
document.querySelector(".tabs").hidden = false;
if (mapElements.length) preparePickers();
const asked = Number(location.hash.slice(1));
show(tabs[asked] ? asked : 0);
dark.addEventListener("change", () => show(selected()));
addEventListener("beforeprint", () => panels.forEach((panel) => {
  panel.hidden = false;
  panel.querySelectorAll(".chart").forEach(drawChart);
  panel.querySelectorAll(".map").forEach(drawMap);
}));
addEventListener("afterprint", () => show(selected()));
