// Node list: a virtual table with a selection to act on. Only visible rows exist, and a row that stays visible keeps
// its element, so that thousands of nodes cost as much as thirty and nothing moves under the pointer.

import { ago, badge, button, count, framed, h, nodeLink, outcome, setText, shorten, toast } from "./dom.js";
import { can, store, STATES, subscribe } from "./store.js";
import { setAddress } from "./address.js";
import { actionButtons } from "./actions.js";

const ROW_HEIGHT = 42;
const HEAD_HEIGHT = 38;
const SPARE_ROWS = 6;

/** Maximum number of selected nodes in the address of a new rollout. */
const MAX_LINKED = 200;

/** Cells of a row after its name. */
const CELLS = [["state", "span"], ["version", "span.clip"], ["groups", "span.clip"], ["bundle", "span.mono.clip"], ["run", "span.ran"], ["note", "span.soft.clip"]];

/** Selected nodes; kept while other views are open. */
const selected = new Set();

export function nodes(main, params) {
  const states = new Set((params.get("state") ?? "").split(",").filter((word) => STATES.includes(word)));
  const search = h("input", { type: "search", placeholder: "Search by name, version, group, bundle, label or note", "aria-label": "Search nodes", value: params.get("q") ?? "" });
  const chips = h("div.chips", { role: "group", "aria-label": "Filter by state" });
  const found = h("span.soft", { role: "status" });
  const allBox = h("input", { type: "checkbox", "aria-label": "Select all shown nodes", tabindex: "-1" });
  const inner = h("div.inner", { role: "rowgroup" });
  const head = h("div.th", { role: "row", "aria-rowindex": 1 }, h("span", { role: "columnheader" }, allBox),
    ["Node", "State", "Version", "Groups", "Bundle", "Last run", "Note"].map((word) => h("span", { role: "columnheader" }, word)));
  const box = h("div.virtual", {
    tabindex: "0", role: "grid", "aria-label": "Nodes", "aria-multiselectable": "true", "aria-describedby": "keys",
  }, head, inner);
  const emptyText = h("p.empty", { hidden: true });
  const bar = h("div.selection", { role: "region", "aria-label": "Selection", hidden: true });
  main.append(
    h("div.head", {}, h("h1", {}, "Nodes"), found),
    h("div.tablebar", {}, search, chips),
    bar,
    box,
    h("p.soft.small.keys", { id: "keys" }, "Arrow keys move, Enter opens, Space selects, Ctrl+A selects all shown nodes."),
  );
  inner.append(emptyText);

  let names = [];
  let here = -1;
  let anchor = -1;
  // Scroll position and height of the box. Both come from events: reading them after rows were written would force a
  // layout.
  let top = 0;
  let height = 0;
  const rows = new Map();

  const counted = new Map(STATES.map((state) => {
    const number = h("span.soft");
    const chip = h("button.chip", {
      type: "button", "data-state": state,
      onclick: () => {
        if (!states.delete(state)) states.add(state);
        applyFilter();
      },
    }, badge(state), number);
    chips.append(chip);
    return [state, { chip, number }];
  }));

  function filter() {
    const text = search.value.trim().toLowerCase();
    const matches = (name) => {
      const row = store.nodes.get(name);
      return (!states.size || states.has(row.state)) &&
        (!text || name.includes(text) || row.note.toLowerCase().includes(text) ||
          row.version.includes(text) || [...row.groups, ...row.bundles].some((word) => word.toLowerCase().includes(text)) ||
          Object.entries(row.labels).some(([label, value]) => `${label}=${value}`.toLowerCase().includes(text)));
    };
    names = states.size || text ? store.names.filter(matches) : store.names;
    here = Math.min(here, names.length - 1);
    setText(found, names.length === store.nodes.size
      ? count(names.length, "node") : `${count(names.length, "node")} of ${store.nodes.size.toLocaleString("en")}`);
    for (const [state, { chip, number }] of counted) {
      chip.setAttribute("aria-pressed", String(states.has(state)));
      setText(number, (store.states[state] ?? 0).toLocaleString("en"));
    }
    inner.style.height = `${Math.max(names.length, 3) * ROW_HEIGHT}px`;
    box.setAttribute("aria-rowcount", names.length + 1);
    emptyText.hidden = names.length > 0;
    if (names.length) return;
    emptyText.textContent = store.nodes.size ? "No matching nodes." : "No nodes yet. Start `ccm agent` on a machine to add it.";
  }

  /** Creates the row of a node, without the parts that change. */
  function createRow(name) {
    const tick = h("input", { type: "checkbox", tabindex: "-1", "aria-label": `Select ${name}` });
    tick.addEventListener("click", (event) => toggle(names.indexOf(name), event.shiftKey));
    const cells = Object.fromEntries(CELLS.map(([cell, tag]) => [cell, h(tag, { role: "gridcell" })]));
    const element = h("div.tr", { role: "row", id: `row-${name}`, "data-node": name },
      h("span", { role: "gridcell" }, tick),
      h("span.name.clip", { role: "gridcell", title: name }, h("a", { href: nodeLink(name), tabindex: "-1" }, name)), Object.values(cells));
    return { element, tick, cells };
  }

  function refresh(one, row, index) {
    const when = row.ran ? ago(row.ran) : "never";
    if (one.row !== row) {
      const { state, version, groups, bundle, note } = one.cells;
      if (one.row?.state !== row.state) state.replaceChildren(badge(row.state));
      setText(version, row.version);
      setText(groups, row.groups.join(", "));
      setText(bundle, row.bundles.join(", "));
      if (bundle.title !== bundle.textContent) bundle.title = bundle.textContent;
      setText(note, [row.lagging && "new assignment pending", shorten(row.note)].filter(Boolean).join(" · "));
      if (one.row?.note !== row.note) note.title = row.note;
      one.row = row;
    }
    const ran = `${row.outcome} ${when}`;
    if (one.ran !== ran) one.cells.run.replaceChildren(row.ran ? outcome(row.outcome) : "", h("span.soft.small", {}, when));
    one.ran = ran;
    if (one.index !== index) {
      one.element.style.top = `${index * ROW_HEIGHT}px`;
      one.element.setAttribute("aria-rowindex", index + 2);
      one.index = index;
    }
    const isSelected = selected.has(row.name);
    if (one.isSelected !== isSelected) {
      one.tick.checked = one.isSelected = isSelected;
      one.element.setAttribute("aria-selected", String(isSelected));
    }
    one.element.classList.toggle("here", index === here);
  }

  function draw() {
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - SPARE_ROWS);
    const last = Math.min(names.length, Math.ceil((top + height) / ROW_HEIGHT) + SPARE_ROWS);
    const shown = new Set(names.slice(first, last));
    for (const [name, one] of rows) {
      if (shown.has(name)) continue;
      one.element.remove();
      rows.delete(name);
    }
    let at = inner.firstElementChild;
    let index = first;
    for (const name of shown) {
      let one = rows.get(name);
      if (!one) rows.set(name, one = createRow(name));
      refresh(one, store.nodes.get(name), index);
      if (one.element === at) at = at.nextElementSibling;
      else inner.insertBefore(one.element, at);
      index += 1;
    }
    const active = rows.get(names[here]);
    if (active) box.setAttribute("aria-activedescendant", active.element.id);
    else box.removeAttribute("aria-activedescendant");
  }

  function drawBar() {
    const all = names.length > 0 && names.every((name) => selected.has(name));
    allBox.checked = all;
    allBox.indeterminate = selected.size > 0 && !all;
    bar.hidden = selected.size === 0;
    if (bar.hidden) return;
    const list = [...selected].sort();
    bar.replaceChildren(
      h("b", { role: "status" }, `${count(list.length, "node")} selected`),
      h("div.row", {}, can("ask") ? actionButtons(list) : "",
        can("roll-out") && list.length <= MAX_LINKED && h("a.button", { "data-act": "rollout", href: `#/rollouts/new?nodes=${list.join(",")}` }, "Roll out…")),
      h("div.row.right", {},
        navigator.clipboard && button("Copy names", "copy", async () => {
          await navigator.clipboard.writeText(list.join("\n"));
          toast(`${count(list.length, "name")} copied.`);
        }),
        button("Clear", "clear", () => {
          selected.clear();
          box.focus();
          changed();
        })),
    );
  }

  function changed() {
    draw();
    drawBar();
  }

  /** Toggles the selection of a node; with `isRange` of all nodes from the last one to it. */
  function toggle(index, isRange) {
    const name = names[index];
    const isAdded = !selected.has(name);
    const from = isRange && anchor >= 0 ? Math.min(anchor, index) : index;
    const to = isRange && anchor >= 0 ? Math.max(anchor, index) : index;
    for (const one of names.slice(from, to + 1)) {
      if (isAdded) selected.add(one);
      else selected.delete(one);
    }
    anchor = here = index;
    changed();
  }

  function selectAll(isAdded) {
    for (const name of names) {
      if (isAdded) selected.add(name);
      else selected.delete(name);
    }
    changed();
  }

  function applyFilter() {
    setAddress("nodes", [["q", search.value.trim()], ["state", [...states].join(",")]]);
    box.scrollTop = top = 0;
    anchor = -1;
    filter();
    changed();
  }

  const redraw = framed(draw);
  const refilter = framed(() => {
    filter();
    draw();
  });
  search.addEventListener("input", applyFilter);
  allBox.addEventListener("click", () => selectAll(allBox.checked));
  box.addEventListener("scroll", () => {
    top = box.scrollTop;
    redraw();
  }, { passive: true });
  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(height / ROW_HEIGHT) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -names.length, End: names.length };
    if (event.key in moves) {
      here = Math.min(names.length - 1, Math.max(0, here + moves[event.key]));
      const at = here * ROW_HEIGHT;
      if (at < top) box.scrollTop = top = at;
      if (at + ROW_HEIGHT + HEAD_HEIGHT > top + height) box.scrollTop = top = at + ROW_HEIGHT + HEAD_HEIGHT - height;
      redraw();
    } else if (event.key === "Enter" && names[here]) {
      location.hash = nodeLink(names[here]);
    } else if (event.key === " " && names[here]) {
      toggle(here, event.shiftKey);
    } else if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
      selectAll(true);
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
  const stop = subscribe((change) => change.nodes?.length && refilter());
  const timer = setInterval(redraw, 15_000);
  for (const name of selected) if (!store.nodes.has(name)) selected.delete(name);
  height = box.clientHeight;
  filter();
  changed();
  return () => {
    stop();
    clearInterval(timer);
    resize.disconnect();
    // A frame that is already scheduled draws nothing.
    names = [];
  };
}
