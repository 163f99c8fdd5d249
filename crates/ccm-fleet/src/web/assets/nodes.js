// All nodes as a table, and a selection of them to act on. Only the rows in sight exist, and a row
// that stays in sight stays the same element: thousands cost no more than thirty, and nothing moves
// away under a pointer.

import { ago, badge, brief, count, framed, h, nodeLink, outcome, put, toast } from "./dom.js";
import { canAct, store, STATES, subscribe } from "./store.js";
import { remember } from "./address.js";
import { deeds } from "./deeds.js";

const TALL = 42;
const HEAD = 38;
const SPARE = 6;

/** Who is chosen; stays while other views are looked at. */
const chosen = new Set();

export function nodes(main, params) {
  const wanted = new Set((params.get("state") ?? "").split(",").filter((word) => STATES.includes(word)));
  const search = h("input", { type: "search", placeholder: "Search by name, group or note", "aria-label": "Search nodes", value: params.get("q") ?? "" });
  const chips = h("div.chips", { role: "group", "aria-label": "Filter by state" });
  const found = h("span.soft", { role: "status" });
  const everyone = h("input", { type: "checkbox", "aria-label": "Select all that are shown", tabindex: "-1" });
  const inner = h("div.inner", { role: "rowgroup" });
  const head = h("div.th", { role: "row", "aria-rowindex": 1 }, h("span", { role: "columnheader" }, everyone),
    ["Node", "State", "Last run", "When", "Note"].map((word) => h("span", { role: "columnheader" }, word)));
  const box = h("div.virtual", {
    tabindex: "0", role: "grid", "aria-label": "Nodes", "aria-multiselectable": "true", "aria-describedby": "keys",
  }, head, inner);
  const nobody = h("p.empty", { hidden: true });
  const bar = h("div.selection", { role: "region", "aria-label": "Selection", hidden: true });
  main.append(
    h("div.head", {}, h("h1", {}, "Nodes"), found),
    h("div.tablebar", {}, search, chips),
    bar,
    box,
    h("p.soft.small.keys", { id: "keys" }, "Arrow keys move, Enter opens, Space selects, Ctrl+A selects all that are shown."),
  );
  inner.append(nobody);

  let names = [];
  let here = -1;
  let anchor = -1;
  // Where the box is scrolled to and how high it is. Both are told by events: to ask for them after rows
  // were written would lay out the page in the midst of drawing.
  let top = 0;
  let height = 0;
  const lines = new Map();

  const counted = new Map(STATES.map((state) => {
    const number = h("span.soft");
    const chip = h("button.chip", {
      type: "button", "data-state": state,
      onclick: () => {
        if (!wanted.delete(state)) wanted.add(state);
        keep();
      },
    }, badge(state), number);
    chips.append(chip);
    return [state, { chip, number }];
  }));

  function select() {
    const text = search.value.trim().toLowerCase();
    const matches = (name) => {
      const row = store.nodes.get(name);
      return (!wanted.size || wanted.has(row.state)) &&
        (!text || name.includes(text) || row.note.toLowerCase().includes(text) ||
          row.groups.some((group) => group.toLowerCase().includes(text)));
    };
    names = wanted.size || text ? store.names.filter(matches) : store.names;
    here = Math.min(here, names.length - 1);
    put(found, names.length === store.nodes.size
      ? count(names.length, "node") : `${count(names.length, "node")} of ${store.nodes.size.toLocaleString("en")}`);
    for (const [state, { chip, number }] of counted) {
      chip.setAttribute("aria-pressed", String(wanted.has(state)));
      put(number, (store.states[state] ?? 0).toLocaleString("en"));
    }
    inner.style.height = `${Math.max(names.length, 3) * TALL}px`;
    box.setAttribute("aria-rowcount", names.length + 1);
    nobody.hidden = names.length > 0;
    if (names.length) return;
    nobody.textContent = store.nodes.size ? "No node is like that." : "This fleet has no nodes yet. `ccm agent` on a machine makes it one.";
  }

  /** Makes the row of a node, still without what changes. */
  function line(name) {
    const tick = h("input", { type: "checkbox", tabindex: "-1", "aria-label": `Select ${name}` });
    tick.addEventListener("click", (event) => choose(names.indexOf(name), event.shiftKey));
    const cells = ["span", "span", "span.soft.small", "span.soft.clip"].map((tag) => h(tag, { role: "gridcell" }));
    const made = h("div.tr", { role: "row", id: `row-${name}`, "data-node": name },
      h("span", { role: "gridcell" }, tick),
      h("span.name.clip", { role: "gridcell", title: name }, h("a", { href: nodeLink(name), tabindex: "-1" }, name)), cells);
    return { made, tick, cells };
  }

  function refresh(one, row, index) {
    const when = row.ran ? ago(row.ran) : "never";
    if (one.row !== row) {
      const [state, result, , note] = one.cells;
      if (one.row?.state !== row.state) state.replaceChildren(badge(row.state));
      if (one.row?.outcome !== row.outcome) result.replaceChildren(outcome(row.outcome));
      put(note, [row.lagging && "has a new assignment", brief(row.note)].filter(Boolean).join(" · "));
      if (one.row?.note !== row.note) note.title = row.note;
      one.row = row;
    }
    if (one.when !== when) one.cells[2].textContent = one.when = when;
    if (one.index !== index) {
      one.made.style.top = `${index * TALL}px`;
      one.made.setAttribute("aria-rowindex", index + 2);
      one.index = index;
    }
    const isChosen = chosen.has(row.name);
    if (one.isChosen !== isChosen) {
      one.tick.checked = one.isChosen = isChosen;
      one.made.setAttribute("aria-selected", String(isChosen));
    }
    one.made.classList.toggle("here", index === here);
  }

  function draw() {
    const first = Math.max(0, Math.floor(top / TALL) - SPARE);
    const last = Math.min(names.length, Math.ceil((top + height) / TALL) + SPARE);
    const shown = new Set(names.slice(first, last));
    for (const [name, one] of lines) {
      if (shown.has(name)) continue;
      one.made.remove();
      lines.delete(name);
    }
    let at = inner.firstElementChild;
    let index = first;
    for (const name of shown) {
      let one = lines.get(name);
      if (!one) lines.set(name, one = line(name));
      refresh(one, store.nodes.get(name), index);
      if (one.made === at) at = at.nextElementSibling;
      else inner.insertBefore(one.made, at);
      index += 1;
    }
    const active = lines.get(names[here]);
    if (active) box.setAttribute("aria-activedescendant", active.made.id);
    else box.removeAttribute("aria-activedescendant");
  }

  function drawBar() {
    const all = names.length > 0 && names.every((name) => chosen.has(name));
    everyone.checked = all;
    everyone.indeterminate = chosen.size > 0 && !all;
    bar.hidden = chosen.size === 0;
    if (bar.hidden) return;
    const list = [...chosen].sort();
    const button = (text, onclick) => h("button", { type: "button", onclick }, text);
    bar.replaceChildren(
      h("b", { role: "status" }, `${count(list.length, "node")} selected`),
      h("div.row", {}, canAct() ? deeds(list) : ""),
      h("div.row.right", {},
        navigator.clipboard && button("Copy names", async () => {
          await navigator.clipboard.writeText(list.join("\n"));
          toast(`${count(list.length, "name")} copied.`);
        }),
        button("Clear", () => {
          chosen.clear();
          box.focus();
          changed();
        })),
    );
  }

  function changed() {
    draw();
    drawBar();
  }

  /** Chooses a node or lets it go; with `isRange` everyone from the last one to it. */
  function choose(index, isRange) {
    const name = names[index];
    const wish = !chosen.has(name);
    const from = isRange && anchor >= 0 ? Math.min(anchor, index) : index;
    const to = isRange && anchor >= 0 ? Math.max(anchor, index) : index;
    for (const one of names.slice(from, to + 1)) {
      if (wish) chosen.add(one);
      else chosen.delete(one);
    }
    anchor = here = index;
    changed();
  }

  function chooseAll(wish) {
    for (const name of names) {
      if (wish) chosen.add(name);
      else chosen.delete(name);
    }
    changed();
  }

  function keep() {
    remember("nodes", [["q", search.value.trim()], ["state", [...wanted].join(",")]]);
    box.scrollTop = top = 0;
    anchor = -1;
    select();
    changed();
  }

  const redraw = framed(draw);
  const renew = framed(() => {
    select();
    draw();
  });
  search.addEventListener("input", keep);
  everyone.addEventListener("click", () => chooseAll(everyone.checked));
  box.addEventListener("scroll", () => {
    top = box.scrollTop;
    redraw();
  }, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(height / TALL) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -names.length, End: names.length };
    if (event.key in moves) {
      here = Math.min(names.length - 1, Math.max(0, here + moves[event.key]));
      const at = here * TALL;
      if (at < top) box.scrollTop = top = at;
      if (at + TALL + HEAD > top + height) box.scrollTop = top = at + TALL + HEAD - height;
      redraw();
    } else if (event.key === "Enter" && names[here]) {
      location.hash = nodeLink(names[here]);
    } else if (event.key === " " && names[here]) {
      choose(here, event.shiftKey);
    } else if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
      chooseAll(true);
    } else {
      return;
    }
    event.preventDefault();
  });
  const resize = new ResizeObserver(([entry]) => {
    height = entry.contentRect.height;
    redraw();
  });
  resize.observe(box);
  const stop = subscribe((change) => change.nodes?.length && renew());
  const timer = setInterval(redraw, 15_000);
  for (const name of chosen) if (!store.nodes.has(name)) chosen.delete(name);
  height = box.clientHeight;
  select();
  changed();
  return () => {
    stop();
    clearInterval(timer);
    resize.disconnect();
    // A frame that was asked for before has nothing left to draw.
    names = [];
  };
}
