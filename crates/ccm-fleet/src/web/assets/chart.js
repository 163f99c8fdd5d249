// Chart of changes and failures over time: one column for each minute or day.

import { framed, h, svg } from "./dom.js";

const HEIGHT = 132;
const BASE = 108;
const LEFT = 36;
const MAX_BAR = 48;

/** Draws columns with `changed`, `failed`, `title` and an optional `tick`, in a given width. */
export function chart(width, columns, label) {
  const most = Math.max(4, ...columns.map((one) => one.changed + one.failed));
  const step = (width - LEFT) / columns.length;
  const bars = columns.map((one, index) => {
    const wide = Math.min(MAX_BAR, Math.max(1, step - 2));
    const x = LEFT + index * step + Math.max(0, (step - 2 - wide) / 2);
    const [changed, failed] = [one.changed, one.failed].map((value) => (value / most) * (BASE - 12));
    const bar = (name, y, tall) => tall > 0 && svg("rect", { class: name, x, y, width: wide, height: Math.max(tall, 1.5), rx: 1.5 });
    return svg("g", {}, svg("title", {}, `${one.title} · ${one.changed} changed, ${one.failed} failed`),
      bar("changed", BASE - changed, changed), bar("failed", BASE - changed - failed - 1, failed));
  });
  // The last label must not be cut off.
  const ticks = columns.map((one, index) => one.tick &&
    svg("text", { x: Math.min(LEFT + (index + .5) * step, width - 16), y: BASE + 18, "text-anchor": "middle" }, one.tick));
  const sums = columns.reduce((sum, one) => [sum[0] + one.changed, sum[1] + one.failed], [0, 0]);
  return [svg("svg", {
    class: "line", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${label} ${sums[0]} changes and ${sums[1]} failures`,
  },
  svg("line", { class: "axis faint", x1: LEFT, x2: width, y1: 12.5, y2: 12.5 }),
  svg("text", { x: 0, y: 16 }, most.toLocaleString("en")), svg("text", { x: 0, y: BASE }, 0),
  svg("line", { class: "axis", x1: LEFT, x2: width, y1: BASE + .5, y2: BASE + .5 }), bars, ticks),
  h("div.legend", {}, h("span.badge", { "data-state": "running" }, `${sums[0].toLocaleString("en")} changed`),
    h("span.badge", { "data-state": "failed" }, `${sums[1].toLocaleString("en")} failed`))];
}

/** Creates a chart of days that follows its width. */
export function dayChart(days) {
  const box = h("div.days");
  const columns = days.map(({ day, changed, failed }, index) => ({
    changed, failed, title: day, tick: (days.length - 1 - index) % 3 === 0 && day.slice(5),
  }));
  let width = 0;
  const draw = framed(() => {
    if (width === box.clientWidth || !box.clientWidth) return;
    width = box.clientWidth;
    box.replaceChildren(...chart(width, columns, `In the last ${days.length} days`));
  });
  new ResizeObserver(draw).observe(box);
  return box;
}
