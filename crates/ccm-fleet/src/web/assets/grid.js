// Every node as a shape of its state on one canvas. All are drawn when nodes come or go, or the room changes;
// after that only those whose state changed, so a busy fleet costs as much as changes in it.

import { badge, brief, count, framed, h, nodeLink } from "./dom.js";
import { store, STATES } from "./store.js";

const GAP = 3;
const EDGE = 2;
const LARGEST = 30;
const SMALLEST = 7;
const TALLEST = 420;

/** Shapes tell states apart where colours don't: the same as in the key, as far as squares are large enough. */
function outline(pen, state, x, y, side) {
  const half = side / 2;
  const corner = Math.min(4, side / 4);
  const through = (...points) => {
    for (const [right, down] of points) pen.lineTo(x + right, y + down);
    pen.closePath();
  };
  if (state === "running") pen.arc(x + half, y + half, half, 0, 7);
  else if (state === "failed") through([half, 0], [side, side], [0, side]);
  else if (state === "drifted") through([half, 0], [side, half], [half, side], [0, half]);
  else if (state === "paused") {
    pen.rect(x, y, side * .42, side);
    pen.rect(x + side * .58, y, side * .42, side);
  } else if (state === "offline") pen.roundRect(x + 1, y + 1, side - 2, side - 2, corner);
  else pen.roundRect(x, y, side, side, corner);
}

/** Returns the canvas, the line that tells of one node, and how to follow the store. */
export function grid() {
  const canvas = h("canvas.grid", { tabindex: "0", role: "img" });
  const tip = h("p.tip", { "aria-live": "polite" });
  const pen = canvas.getContext("2d");
  const places = new Map();
  const dirty = new Set();
  let names = [];
  let colours = {};
  let cell = LARGEST;
  let columns = 1;
  let here = -1;

  /** Finds the largest squares that show all nodes in a pleasant height, and draws them. */
  function drawAll() {
    dirty.clear();
    names = store.names;
    places.clear();
    names.forEach((name, index) => places.set(name, index));
    // Asked for once, before anything is written.
    const { clientWidth } = canvas;
    const width = clientWidth - 2 * EDGE;
    if (width <= 0) return;
    const rows = () => Math.ceil(Math.max(names.length, 1) / columns);
    for (cell = LARGEST; ; cell -= 1) {
      columns = Math.max(1, Math.floor(width / cell));
      if (cell <= SMALLEST || rows() * cell <= TALLEST) break;
    }
    const height = rows() * cell + EDGE;
    const ratio = devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    Object.assign(canvas.dataset, { cell, columns });
    canvas.width = Math.round(clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries([...STATES, "ink"].map((word) => [word, style.getPropertyValue(`--${word}`)]));
    for (let index = 0; index < names.length; index += 1) paint(index);
    describe();
  }

  function paint(index) {
    const row = store.nodes.get(names[index]);
    if (!row) return;
    const x = EDGE + (index % columns) * cell;
    const y = EDGE + Math.floor(index / columns) * cell;
    const side = cell - GAP;
    pen.clearRect(x - GAP / 2, y - GAP / 2, cell, cell);
    pen.beginPath();
    outline(pen, row.state, x, y, side);
    if (row.state === "offline") {
      pen.strokeStyle = colours.offline;
      pen.lineWidth = Math.min(2, side / 5);
      pen.stroke();
    } else {
      pen.fillStyle = colours[row.state];
      pen.fill();
    }
    if (index === here) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x - .5, y - .5, side + 1, side + 1);
    }
  }

  function drawDirty() {
    if (names !== store.names) {
      drawAll();
      return;
    }
    for (const index of dirty) paint(index);
    dirty.clear();
    describe();
  }

  function describe() {
    const told = STATES.map((state) => `${store.states[state] ?? 0} ${state}`).join(", ");
    canvas.setAttribute("aria-label", `${count(names.length, "node")}: ${told}. Arrow keys choose one, Enter opens it.`);
  }

  function point(index) {
    for (const one of [here, index]) if (one >= 0) dirty.add(one);
    here = index;
    const row = store.nodes.get(names[index]);
    tip.replaceChildren(...(row ? [badge(row.state), h("b", {}, row.name), h("span.clip", {}, brief(row.note))] : []));
    redraw();
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - EDGE) / cell);
    const index = Math.floor((event.clientY - box.top - EDGE) / cell) * columns + column;
    return column >= 0 && column < columns && index >= 0 && index < names.length ? index : -1;
  }

  canvas.addEventListener("mousemove", (event) => {
    const index = at(event);
    if (index !== here) point(index);
  });
  canvas.addEventListener("mouseleave", () => point(-1));
  canvas.addEventListener("blur", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const index = at(event);
    if (index >= 0) location.hash = nodeLink(names[index]);
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -names.length, End: names.length };
    if (event.key in moves) {
      event.preventDefault();
      if (names.length) point(Math.min(names.length - 1, Math.max(0, here + moves[event.key])));
    } else if (event.key === "Enter" && here >= 0) {
      location.hash = nodeLink(names[here]);
    }
  });

  const redraw = framed(drawDirty);

  /** Takes note of nodes that changed. */
  function follow(changed) {
    for (const name of changed) {
      const index = places.get(name);
      if (index !== undefined) dirty.add(index);
    }
    redraw();
  }

  return { canvas, tip, drawAll, follow };
}
