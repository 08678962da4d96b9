// Draws the pictures of the page on canvases, with the weights of the patch under the pointer over them.
"use strict";

const galleries = [...document.querySelectorAll(".gallery")].map((figure) => {
  const run = data(figure);
  return { figure, run, chosen: 0, patch: null, maps: new Map() };
});

// A picture as a canvas of its own size.
function painted(run, picture) {
  const bytes = Uint8Array.from(atob(picture.pixels), (letter) => letter.charCodeAt(0)), area = run.size ** 2;
  const canvas = Object.assign(document.createElement("canvas"), { width: run.size, height: run.size });
  const image = new ImageData(run.size, run.size);
  for (let i = 0; i < area; i += 1) {
    const rgb = [0, 1, 2].map((c) => bytes[(run.channels === 3 ? c : 0) * area + i]);
    image.data.set([...rgb, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function best(shares) {
  return shares.indexOf(Math.max(...shares));
}

// The weights of the chosen picture, layer and head; null if it has no maps.
function weightsOf(gallery) {
  const picture = gallery.run.pictures[gallery.chosen];
  if (!picture.maps) return null;
  const [layer, head] = [".look-layer", ".look-head"].map((name) => Number(gallery.figure.querySelector(name).value));
  const key = `${gallery.chosen} ${layer} ${head}`;
  if (!gallery.maps.has(key)) gallery.maps.set(key, unpack(picture.maps[layer][head]));
  return gallery.maps.get(key);
}

function drawLarge(gallery) {
  const { figure, run, patch } = gallery, picture = run.pictures[gallery.chosen];
  const canvas = figure.querySelector(".large"), pen = canvas.getContext("2d"), side = canvas.width / run.grid;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(painted(run, picture), 0, 0, canvas.width, canvas.height);
  const weights = weightsOf(gallery), say = figure.querySelector(".readout");
  if (!weights || patch === null) {
    say.textContent = weights ? "Point at a patch." : "This picture has no maps: choose one of the first.";
    return;
  }
  const row = weights[patch], most = Math.max(...row.map(Math.abs));
  const place = (i) => `(${Math.floor(i / run.grid)}, ${i % run.grid})`;
  pen.fillStyle = "rgba(0, 0, 0, 0.55)";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  row.forEach((weight, i) => { // yellow: positive weights, violet: negative ones
    pen.fillStyle = `rgba(${weight < 0 ? "153, 112, 255" : "254, 232, 56"}, ${most && 0.85 * Math.abs(weight) / most})`;
    pen.fillRect((i % run.grid) * side, Math.floor(i / run.grid) * side, side, side);
  });
  pen.strokeStyle = "#ff4d4d";
  pen.lineWidth = 2;
  pen.strokeRect((patch % run.grid) * side + 1, Math.floor(patch / run.grid) * side + 1, side - 2, side - 2);
  const top = row.findIndex((weight) => Math.abs(weight) === most), value = document.createElement("b");
  value.textContent = row[top].toPrecision(3);
  say.replaceChildren(`patch ${place(patch)} reads ${place(top)} most: `, value, `; itself ${row[patch].toPrecision(3)}`);
}

function choose(gallery, i) {
  gallery.chosen = i;
  const { figure, run } = gallery, picture = run.pictures[i], guess = best(picture.shares);
  const verdict = figure.querySelector(".verdict"), right = guess === picture.label;
  verdict.textContent = right ? `${run.classes[guess]}, right` : `${run.classes[guess]}, but it is ${run.classes[picture.label]}`;
  verdict.classList.toggle("wrong", !right);
  const order = picture.shares.map((share, k) => [share, k]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  figure.querySelector(".chances").replaceChildren(...order.map(([share, k]) => {
    const line = document.createElement("tr"), name = document.createElement("th"), cell = document.createElement("td");
    name.textContent = run.classes[k];
    cell.textContent = `${(100 * share).toFixed(1)} %`;
    line.append(name, cell);
    return line;
  }));
  figure.querySelectorAll(".small button").forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
  drawLarge(gallery);
}

function pointAt(patch) {
  galleries.forEach((gallery) => {
    gallery.patch = patch !== null && patch < gallery.run.grid ** 2 ? patch : null;
    drawLarge(gallery);
  });
}

galleries.forEach((gallery) => {
  const { figure, run } = gallery, layer = figure.querySelector(".look-layer"), head = figure.querySelector(".look-head");
  const first = run.pictures.find((picture) => picture.maps);
  const heads = () => fill(head, first ? first.maps[Number(layer.value)].map((_, i) => String(i)) : []);
  fill(layer, run.layers.map((name) => name.replace("layer ", "")));
  heads();
  layer.addEventListener("change", () => { heads(); drawLarge(gallery); });
  head.addEventListener("change", () => drawLarge(gallery));
  figure.querySelector(".small").replaceChildren(...run.pictures.map((picture, i) => {
    const button = Object.assign(document.createElement("button"), { type: "button" }), guess = best(picture.shares);
    button.append(painted(run, picture), run.classes[guess]);
    button.classList.toggle("wrong", guess !== picture.label);
    button.title = `true class: ${run.classes[picture.label]}`;
    button.addEventListener("click", () => galleries.forEach((other) => i < other.run.pictures.length && choose(other, i)));
    return button;
  }));
  const large = figure.querySelector(".large");
  large.addEventListener("pointermove", (event) => {
    const box = large.getBoundingClientRect();
    const at = (offset, extent) => Math.min(run.grid - 1, Math.max(0, Math.floor(offset / extent * run.grid)));
    pointAt(at(event.clientY - box.top, box.height) * run.grid + at(event.clientX - box.left, box.width));
  });
  large.addEventListener("pointerleave", () => pointAt(null));
  if (run.pictures.length) choose(gallery, 0);
});
