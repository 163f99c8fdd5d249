// Overview: nodes by state, every node as a shape, problems, the last hour, and the newest rollouts.

import { badge, card, clock, count, filler, framed, h, nodeLink, setText, shorten } from "./dom.js";
import { refreshSummary, store, STATES, subscribe } from "./store.js";
import { chart } from "./chart.js";
import { grid } from "./grid.js";
import { newest, rolloutCard } from "./rollouts.js";

/** Maximum number of problems and rollouts. */
const MAX_PROBLEMS = 6;
const MAX_ROLLOUTS = 2;

export function overview(main) {
  const counts = h("section.counts", { "aria-label": "Nodes by state" });
  const squares = grid();
  const line = h("div");
  const problems = h("div");
  const rollouts = h("div.waves");
  const size = h("span.soft");
  main.append(
    h("div.head", {}, h("h1", {}, "Overview"), size),
    counts,
    card("All nodes", "", squares.canvas, h("div.under", {}, h("div.legend", { "aria-label": "Legend" }, STATES.map(badge)), squares.tip)),
    h("div.columns", {},
      h("div.side", {}, card("Problems", "failed and drifted nodes", problems), card("Last hour", "changes and failures per minute", line)),
      card("Rollouts", "newest", rollouts)),
  );

  const numbers = new Map(STATES.map((state) => {
    const number = h("b");
    counts.append(h("a.count", { href: `#/nodes?state=${state}`, "data-state": state }, number, badge(state)));
    return [state, number];
  }));

  function drawCounts() {
    setText(size, `${count(store.nodes.size, "node")} in ${store.summary.collective}`);
    for (const [state, number] of numbers) {
      const value = store.states[state] ?? 0;
      setText(number, value.toLocaleString("en"));
      number.parentElement.classList.toggle("none", value === 0);
    }
  }

  const fillProblems = filler(problems);

  function drawProblems() {
    const bad = [];
    for (const state of ["failed", "drifted"]) {
      for (const name of store.names) {
        if (bad.length >= MAX_PROBLEMS) break;
        const row = store.nodes.get(name);
        if (row.state === state) bad.push([name, state, row.note]);
      }
    }
    const more = (store.states.failed ?? 0) + (store.states.drifted ?? 0) - bad.length;
    fillProblems([bad, more > 0], () => {
      if (!bad.length) return h("p.soft", {}, "No failed or drifted nodes.");
      return [
        h("ul.problems", {}, bad.map(([name, state, note]) => h("li", {}, badge(state),
          h("a.clip", { href: nodeLink(name), title: name }, name), h("span.soft.clip", { title: note }, shorten(note))))),
        more > 0 && h("p.small", {}, h("a", { href: "#/nodes?state=failed,drifted" }, "Show all")),
      ];
    });
  }

  const fillRollouts = filler(rollouts);

  function drawRollouts() {
    const all = newest().slice(0, MAX_ROLLOUTS);
    fillRollouts(all, () => (all.length ? all.map((one) => rolloutCard(one, "h3"))
      : h("p.soft", {}, "No rollouts yet. Start one with ", h("code", {}, "ccm fleet rollout start"), ".")));
  }

  /** Width of the timeline, read before anything is drawn. */
  let width = 0;

  function measure() {
    width = Math.max(280, line.clientWidth);
  }

  function drawLine() {
    const minutes = store.summary.timeline;
    const columns = minutes.map(({ start, changed, failed }) => {
      const title = clock(start * 1000).slice(0, 5);
      return { changed, failed, title, tick: start % 900 === 0 && title };
    });
    line.replaceChildren(...chart(width, columns, "In the last hour"));
  }

  const redrawNodes = framed(() => {
    drawCounts();
    drawProblems();
  });
  const redrawRollouts = framed(drawRollouts);
  const redrawLine = framed(drawLine);
  const resize = new ResizeObserver(framed(() => {
    measure();
    squares.drawAll();
    drawLine();
  }));
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const timer = setInterval(() => refreshSummary().catch(() => {}), 5000);
  const stop = subscribe((change) => {
    if (change.nodes?.length) {
      squares.update(change.nodes);
      redrawNodes();
    }
    if (change.rollouts?.length) redrawRollouts();
    if (change.summary) redrawLine();
  });
  scheme.addEventListener("change", squares.drawAll);
  measure();
  drawCounts();
  squares.drawAll();
  drawProblems();
  drawRollouts();
  drawLine();
  resize.observe(main);
  return () => {
    stop();
    clearInterval(timer);
    resize.disconnect();
    scheme.removeEventListener("change", squares.drawAll);
  };
}
