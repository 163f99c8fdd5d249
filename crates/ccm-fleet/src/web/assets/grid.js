// Grid: every node as a shape of its state on one canvas. All are drawn when nodes are added or removed or the size
// changes; otherwise only those whose state changed.

import { badge, count, framed, h, nodeLink, shorten } from "./dom.js";
import { store, STATES } from "./store.js";

const GAP = 3;
const EDGE = 2;
const MAX_CELL = 30;
const MIN_CELL = 7;
const MAX_HEIGHT = 420;

/** Draws the shape of a state, the same as in the legend, so that states differ not only in colour. */
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

/** Returns the canvas, the line about the current node, and functions that draw. */
export function grid() {
  const canvas = h("canvas.grid", { tabindex: "0", role: "img" });
  const tip = h("p.tip", { "aria-live": "polite" });
  const pen = canvas.getContext("2d");
  const positions = new Map();
  const dirty = new Set();
  let names = [];
  let colours = {};
  let cell = MAX_CELL;
  let columns = 1;
  let current = -1;

  /** Draws all nodes with the largest cells that fit into the maximum height. */
  function drawAll() {
    dirty.clear();
    names = store.names;
    positions.clear();
    names.forEach((name, index) => positions.set(name, index));
    // Read once, before anything is written.
    const { clientWidth } = canvas;
    const width = clientWidth - 2 * EDGE;
    if (width <= 0) return;
    const rows = () => Math.ceil(Math.max(names.length, 1) / columns);
    for (cell = MAX_CELL; ; cell -= 1) {
      columns = Math.max(1, Math.floor(width / cell));
      if (cell <= MIN_CELL || rows() * cell <= MAX_HEIGHT) break;
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
    if (index === current) {
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
    const counts = STATES.map((state) => `${store.states[state] ?? 0} ${state}`).join(", ");
    canvas.setAttribute("aria-label", `${count(names.length, "node")}: ${counts}. Arrow keys move, Enter opens a node.`);
  }

  function point(index) {
    for (const one of [current, index]) if (one >= 0) dirty.add(one);
    current = index;
    const row = store.nodes.get(names[index]);
    tip.replaceChildren(...(row ? [badge(row.state), h("b", {}, row.name), h("span.clip", {}, shorten(row.note))] : []));
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
    if (index !== current) point(index);
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
      if (names.length) point(Math.min(names.length - 1, Math.max(0, current + moves[event.key])));
    } else if (event.key === "Enter" && current >= 0) {
      location.hash = nodeLink(names[current]);
    }
  });

  const redraw = framed(drawDirty);

  /** Schedules changed nodes to be drawn. */
  function update(changed) {
    for (const name of changed) {
      const index = positions.get(name);
      if (index !== undefined) dirty.add(index);
    }
    redraw();
  }

  return { canvas, tip, drawAll, update };
}
