// All nodes as a table. Only the rows in sight exist, so thousands cost no more than thirty.

import { ago, badge, count, framed, h, nodeLink, outcome } from "./dom.js";
import { store, subscribe } from "./store.js";
import { remember } from "./app.js";

export const STATES = ["failed", "drifted", "offline", "paused", "running", "stable"];

const TALL = 42;
const HEAD = 38;

export function nodes(main, params) {
  const wanted = new Set((params.get("state") ?? "").split(",").filter((word) => STATES.includes(word)));
  const search = h("input", { type: "search", placeholder: "Search by name, group or note", "aria-label": "Search nodes", value: params.get("q") ?? "" });
  const chips = h("div.chips", { role: "group", "aria-label": "Filter by state" });
  const found = h("span.soft", { role: "status" });
  const inner = h("div.inner", { role: "rowgroup" });
  const head = h("div.th", { role: "row" }, ["Node", "State", "Last run", "When", "Note"].map((word) => h("span", { role: "columnheader" }, word)));
  const box = h("div.virtual", { tabindex: "0", role: "table", "aria-label": "Nodes" }, head, inner);
  main.append(
    h("div.head", {}, h("h1", {}, "Nodes"), found),
    h("div.tablebar", {}, search, chips),
    box,
  );

  let rows = [];
  let here = -1;

  function select() {
    const text = search.value.trim().toLowerCase();
    const matches = (row) => (!wanted.size || wanted.has(row.state)) &&
      (!text || row.name.includes(text) || row.note.toLowerCase().includes(text) ||
        row.groups.some((group) => group.toLowerCase().includes(text)));
    rows = [...store.nodes.values()].filter(matches).sort((a, b) => (a.name < b.name ? -1 : 1));
    here = Math.min(here, rows.length - 1);
    found.textContent = rows.length === store.nodes.size
      ? count(rows.length, "node") : `${count(rows.length, "node")} of ${store.nodes.size.toLocaleString("en")}`;
    chips.replaceChildren(...STATES.map((state) => h("button.chip", {
      type: "button", "data-state": state, "aria-pressed": String(wanted.has(state)),
      onclick: () => {
        if (!wanted.delete(state)) wanted.add(state);
        keep();
      },
    }, badge(state), h("span.soft", {}, (store.states[state] ?? 0).toLocaleString("en")))));
  }

  function draw() {
    select();
    inner.style.height = `${Math.max(rows.length, 1) * TALL}px`;
    box.setAttribute("aria-rowcount", rows.length + 1);
    const first = Math.max(0, Math.floor(box.scrollTop / TALL) - 6);
    const last = Math.min(rows.length, Math.ceil((box.scrollTop + box.clientHeight) / TALL) + 6);
    if (!rows.length) {
      inner.replaceChildren(h("p.empty", {}, store.nodes.size ? "No node is like that." : "This fleet has no nodes yet."));
      return;
    }
    inner.replaceChildren(...rows.slice(first, last).map((row, offset) => {
      const index = first + offset;
      const made = h(index === here ? "a.tr.here" : "a.tr", {
        href: nodeLink(row.name), role: "row", "aria-rowindex": index + 2, "data-node": row.name, tabindex: "-1",
      },
      h("span.name.clip", { role: "cell", title: row.name }, row.name),
      h("span", { role: "cell" }, badge(row.state)),
      h("span", { role: "cell" }, outcome(row.outcome)),
      h("span.soft.small", { role: "cell" }, row.ran ? ago(row.ran) : "never"),
      h("span.soft.clip", { role: "cell", title: row.note }, [row.lagging && "has a new assignment", row.note].filter(Boolean).join(" · ")));
      made.style.top = `${index * TALL}px`;
      return made;
    }));
  }

  function keep() {
    remember("nodes", [["q", search.value.trim()], ["state", [...wanted].join(",")]]);
    box.scrollTop = 0;
    draw();
  }

  const redraw = framed(draw);
  search.addEventListener("input", keep);
  box.addEventListener("scroll", redraw, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / TALL) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (event.key in moves) {
      event.preventDefault();
      here = Math.min(rows.length - 1, Math.max(0, here + moves[event.key]));
      const top = here * TALL;
      if (top < box.scrollTop) box.scrollTop = top;
      if (top + TALL + HEAD > box.scrollTop + box.clientHeight) box.scrollTop = top + TALL + HEAD - box.clientHeight;
      redraw();
    } else if (event.key === "Enter" && rows[here]) {
      location.hash = nodeLink(rows[here].name);
    }
  });
  const resize = new ResizeObserver(redraw);
  resize.observe(box);
  const stop = subscribe((change) => change.nodes?.length && redraw());
  const timer = setInterval(redraw, 15_000);
  draw();
  return () => {
    stop();
    clearInterval(timer);
    resize.disconnect();
  };
}
