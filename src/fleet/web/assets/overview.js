// The fleet at a glance: how many are what, every node as a square, the last hour.

import { badge, clock, count, framed, h, nodeLink, svg } from "./dom.js";
import { refreshSummary, store, subscribe } from "./store.js";
import { STATES } from "./nodes.js";

const GAP = 3;

export function overview(main) {
  const counts = h("section.counts", { "aria-label": "Nodes by state" });
  const canvas = h("canvas.grid", { tabindex: "0", role: "img" });
  const tip = h("p.tip", { "aria-live": "polite" });
  const line = h("div");
  const title = h("h1", {}, "Overview");
  const size = h("span.soft");
  const legend = h("div.legend", { "aria-label": "Legend" }, STATES.map(badge));
  main.append(
    h("div.head", {}, title, size),
    counts,
    h("section.card", { "aria-label": "All nodes" }, h("h2", {}, "Nodes"), canvas, legend, tip),
    h("section.card", { "aria-label": "Last hour" },
      h("h2", {}, "Last hour", h("span.soft", {}, "changes and failures per minute")), line),
  );

  let names = [];
  let cell = 0;
  let columns = 1;
  let here = -1;

  function drawCounts() {
    size.textContent = `${count(store.nodes.size, "node")} in ${store.summary.collective}`;
    counts.replaceChildren(...STATES.map((state) =>
      h("a.count", { href: `#/nodes?state=${state}`, "data-state": state },
        h("b", {}, (store.states[state] ?? 0).toLocaleString("en")), badge(state))));
  }

  /** Finds the largest squares that show all nodes in a pleasant height. */
  function measure() {
    const width = canvas.clientWidth || main.clientWidth - 42;
    const most = Math.max(names.length, 1);
    cell = 30;
    while (cell > 7 && Math.ceil(most / Math.floor(width / cell)) * cell > 420) cell -= 1;
    columns = Math.max(1, Math.floor(width / cell));
    const height = Math.ceil(most / columns) * cell;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    return ratio;
  }

  function drawGrid() {
    names = [...store.nodes.keys()].sort();
    const ratio = measure();
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(STATES.map((state) => [state, style.getPropertyValue(`--${state}`)]));
    names.forEach((name, index) => {
      const x = (index % columns) * cell;
      const y = Math.floor(index / columns) * cell;
      const side = cell - GAP;
      const { state } = store.nodes.get(name);
      pen.beginPath();
      if (state === "running") pen.arc(x + side / 2, y + side / 2, side / 2, 0, 7);
      else pen.roundRect(x, y, side, side, Math.min(4, side / 4));
      if (state === "offline") {
        pen.strokeStyle = colours[state];
        pen.lineWidth = Math.min(2, side / 5);
        pen.stroke();
      } else {
        pen.fillStyle = colours[state];
        pen.fill();
      }
      if (index === here) {
        pen.strokeStyle = style.getPropertyValue("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(x - 1, y - 1, side + 2, side + 2);
      }
    });
    const told = STATES.map((state) => `${store.states[state] ?? 0} ${state}`).join(", ");
    canvas.setAttribute("aria-label", `${count(names.length, "node")}: ${told}. Arrow keys choose one, Enter opens it.`);
  }

  function drawLine() {
    const minutes = store.summary.timeline;
    const most = Math.max(4, ...minutes.map((one) => one.changed + one.failed));
    const [width, height, base] = [Math.max(280, line.clientWidth), 150, 126];
    const step = (width - 34) / minutes.length;
    const bars = minutes.map((one, index) => {
      const x = 34 + index * step;
      const [changed, failed] = [one.changed, one.failed].map((value) => (value / most) * (base - 12));
      const bar = (name, y, tall) => tall > 0 && svg("rect", { class: name, x, y, width: Math.max(1, step - 2), height: Math.max(tall, 1.5), rx: 1.5 });
      return svg("g", {},
        svg("title", {}, `${clock(one.start * 1000).slice(0, 5)} · ${one.changed} changed, ${one.failed} failed`),
        bar("changed", base - changed, changed), bar("failed", base - changed - failed - 1, failed));
    });
    const ticks = minutes.filter((one) => one.start % 900 === 0).map((one) => {
      const x = 34 + minutes.indexOf(one) * step;
      return svg("text", { x, y: base + 18, "text-anchor": "middle" }, clock(one.start * 1000).slice(0, 5));
    });
    const sums = minutes.reduce((sum, one) => [sum[0] + one.changed, sum[1] + one.failed], [0, 0]);
    line.replaceChildren(svg("svg", {
      class: "line", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `In the last hour ${sums[0]} changes and ${sums[1]} failures`,
    },
    svg("text", { x: 0, y: 16 }, most), svg("text", { x: 0, y: base }, 0),
    svg("line", { class: "axis", x1: 34, x2: width, y1: base + .5, y2: base + .5 }), bars, ticks),
    h("div.legend", {}, h("span.badge", { "data-state": "running" }, `${sums[0].toLocaleString("en")} changed`),
      h("span.badge", { "data-state": "failed" }, `${sums[1].toLocaleString("en")} failed`)));
  }

  function point(index) {
    here = index;
    const row = store.nodes.get(names[index]);
    tip.replaceChildren(...(row ? [badge(row.state), " ", row.name, row.note ? ` · ${row.note}` : ""] : []));
    redraw();
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const index = Math.floor((event.clientY - box.top) / cell) * columns + column;
    return column < columns && index < names.length ? index : -1;
  }

  canvas.addEventListener("mousemove", (event) => {
    const index = at(event);
    if (index !== here) point(index);
  });
  canvas.addEventListener("mouseleave", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const index = at(event);
    if (index >= 0) location.hash = nodeLink(names[index]);
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in moves) {
      event.preventDefault();
      point(Math.min(names.length - 1, Math.max(0, here + moves[event.key])));
    } else if (event.key === "Enter" && here >= 0) {
      location.hash = nodeLink(names[here]);
    }
  });

  const redraw = framed(drawGrid);
  const recount = framed(drawCounts);
  const resize = new ResizeObserver(framed(() => {
    drawGrid();
    drawLine();
  }));
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const timer = setInterval(() => refreshSummary().catch(() => {}), 5000);
  const stop = subscribe((change) => {
    if (change.nodes?.length) {
      redraw();
      recount();
    }
    if (change.summary) drawLine();
  });
  scheme.addEventListener("change", redraw);
  drawCounts();
  drawGrid();
  drawLine();
  resize.observe(main);
  return () => {
    stop();
    clearInterval(timer);
    resize.disconnect();
    scheme.removeEventListener("change", redraw);
  };
}
