// Event list: events as they happen, the newest first, with filters in the address. Only visible rows exist, and they
// are updated rather than recreated, so that a busy fleet costs as much as a screen of text.
//
// Filters query the server, which keeps more events than the page.
//
// While the list is scrolled, or a link in it is hovered or focused, new events wait and are counted.

import { className, clock, count, duration, framed, h, nodeLink, setText, shorten, throttled } from "./dom.js";
import { read, store, subscribe } from "./store.js";
import { setAddress } from "./address.js";

/** Maximum number of matching events, and number of rows added when scrolling. */
const MAX_EVENTS = 1000;
const MORE_ROWS = 100;

/** Minimum height of a row, which limits the number of visible rows. */
const MIN_ROW_HEIGHT = 36;

/** Maximum number of new events that are highlighted. */
const MAX_HIGHLIGHTED = 12;

const OUTCOMES = ["failed", "changed", "skipped", "noop", "stable"];
const TYPES = ["run", "file", "group", "line", "link", "package", "service", "exec", "archive", "scaffold", "user", "apply"];

/** Creates an empty row. Its text nodes are reused when the row is updated. */
function createRow() {
  const [at, outcome, name, text, time] = Array.from({ length: 5 }, () => document.createTextNode(""));
  const result = h("span.outcome", {}, outcome);
  const link = h("a", {}, name);
  const output = h("pre.output", { hidden: true });
  const element = h("li", {}, h("span.soft.small", {}, at), result, h("span.clip", {}, link), h("span", {}, text, output), h("span.soft.small.right", {}, time));
  return { element, result, link, output, texts: { at, outcome, name, text, time }, event: null };
}

function updateRow(one, event, isFresh) {
  if (one.event === event) return;
  const { texts } = one;
  if (one.event?.outcome !== event.outcome) {
    texts.outcome.data = event.outcome;
    one.result.className = `outcome ${className(event.outcome)}`;
  }
  if (one.event?.node !== event.node) {
    texts.name.data = one.link.title = event.node;
    one.link.href = nodeLink(event.node);
  }
  one.event = event;
  one.element.className = isFresh ? "fresh" : "";
  one.element.dataset.event = event.number;
  texts.at.data = clock(event.at);
  texts.text.data = shorten(event.text);
  texts.time.data = duration(event.millis);
  setText(one.output, event.output ?? "");
  one.output.hidden = !event.output;
}

export function events(main, params) {
  const choose = (label, words, value) => {
    const element = h("select", { "aria-label": label }, h("option", { value: "" }, `${label}: any`), words.map((word) => h("option", { value: word }, word)));
    element.value = words.includes(value) ? value : "";
    return element;
  };
  const search = h("input", { type: "search", placeholder: "Search by node or text", "aria-label": "Search events", value: params.get("q") ?? "" });
  const type = choose("Type", TYPES, params.get("type"));
  const result = choose("Outcome", OUTCOMES, params.get("outcome"));
  const pauseButton = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const found = h("span.soft", { role: "status" });
  // Not a live region: it changes with every event.
  const details = h("span.soft.small");
  const list = h("ol.events", { "aria-label": "Events" });
  const emptyText = h("p.empty");
  const end = h("div");
  const bar = h("div.tablebar", {}, search, type, result, pauseButton);
  main.append(
    h("div.head", {}, h("h1", {}, "Events"), found, details),
    bar,
    h("section.card.tight", { "aria-label": "Events" }, list, emptyText, end),
  );
  let matches;
  /** Matching events (the newest first), the rows, and events that wait. */
  let all = [];
  let rows = [];
  let waiting = [];
  let visibleRows = Math.ceil(innerHeight / MIN_ROW_HEIGHT);
  let maxRows = visibleRows;
  let isPaused = false;
  let isScrolled = false;
  let hovered = null;

  function filters() {
    return [["q", search.value.trim()], ["type", type.value], ["outcome", result.value]];
  }

  function isWaiting() {
    return isPaused || isScrolled || hovered !== null || list.contains(document.activeElement);
  }

  /** Applies the filters to the known events. */
  function filter() {
    const [text, kind, word] = [search.value.trim().toLowerCase(), type.value, result.value];
    matches = (event) => (!kind || event.type === kind) && (!word || event.outcome === word) &&
      (!text || event.node.includes(text) || event.text.toLowerCase().includes(text));
    all = store.events.filter(matches);
    waiting = [];
    if (text || kind || word) loadMatching();
    emptyText.textContent = text || kind || word ? "No matching events." : "No events yet.";
    updateRows(0);
  }

  /** Loads matching events that the page no longer has. */
  const loadMatching = throttled(async () => {
    const requested = matches;
    const query = new URLSearchParams(filters().filter(([, value]) => value));
    const found = await read(`/api/events?limit=${MAX_EVENTS}&${query}`).catch(() => null);
    if (!found || requested !== matches) return;
    // Newer events come with the next message of the stream.
    const latest = store.events[0]?.number ?? -1;
    const known = [...found.events.filter((event) => event.number <= latest), ...waiting, ...all];
    all = [...new Map(known.map((event) => [event.number, event])).values()]
      .sort((one, other) => other.number - one.number).slice(0, MAX_EVENTS);
    waiting = [];
    updateRows(0);
  }, 300);

  function draw() {
    if (isWaiting()) {
      updateRows(0);
      return;
    }
    const fresh = waiting.length;
    all = [...waiting, ...all].slice(0, MAX_EVENTS);
    waiting = [];
    updateRows(fresh);
  }

  /** Updates rows. The first `fresh` events are new: rows from the end are moved to the front for them. */
  function updateRows(fresh) {
    const wanted = Math.min(maxRows, all.length);
    if (fresh < wanted) {
      const front = rows.splice(wanted - fresh);
      while (front.length < fresh) front.push(createRow());
      for (const one of front.splice(fresh)) one.element.remove();
      rows.unshift(...front);
      list.prepend(...front.map((one) => one.element));
    }
    while (rows.length > wanted) rows.pop().element.remove();
    while (rows.length < wanted) {
      rows.push(createRow());
      list.append(rows.at(-1).element);
    }
    rows.forEach((one, index) => updateRow(one, all[index], index < fresh && fresh <= MAX_HIGHLIGHTED));
    updateCounts();
  }

  function updateCounts() {
    emptyText.hidden = all.length > 0;
    setText(found, all.length === MAX_EVENTS ? `the last ${count(MAX_EVENTS, "event")}` : count(all.length, "event"));
    setText(details, [
      isWaiting() && (waiting.length ? `paused, ${waiting.length < MAX_EVENTS ? "" : "more than "}${waiting.length.toLocaleString("en")} new` : "paused"),
      store.skipped > 0 && `${store.skipped.toLocaleString("en")} more skipped`,
    ].filter(Boolean).join(" · "));
  }

  const redraw = framed(draw);

  function applyFilter() {
    setAddress("events", filters());
    filter();
  }

  function hover(link) {
    if (hovered === link) return;
    hovered = link;
    redraw();
  }

  for (const input of [search, type, result]) input.addEventListener("input", applyFilter);
  pauseButton.addEventListener("click", () => {
    isPaused = !isPaused;
    pauseButton.setAttribute("aria-pressed", String(isPaused));
    pauseButton.textContent = isPaused ? "Resume" : "Pause";
    redraw();
  });
  // Only a moving pointer counts: a link may appear under a resting one.
  list.addEventListener("pointermove", (event) => hover(event.target.closest("a")));
  list.addEventListener("pointerleave", () => hover(null));
  list.addEventListener("focusin", redraw);
  list.addEventListener("focusout", redraw);
  const resize = () => {
    visibleRows = Math.ceil(innerHeight / MIN_ROW_HEIGHT);
    maxRows = Math.max(maxRows, visibleRows);
    redraw();
  };
  addEventListener("resize", resize);
  // Invisible filters mean that the list is scrolled.
  const scrolled = new IntersectionObserver(([entry]) => {
    isScrolled = !entry.isIntersecting;
    maxRows = isScrolled ? visibleRows + MORE_ROWS : visibleRows;
    redraw();
  });
  const ended = new IntersectionObserver((entries) => {
    if (!isScrolled || !entries.at(-1).isIntersecting || maxRows >= all.length) return;
    maxRows += MORE_ROWS;
    redraw();
  }, { rootMargin: "600px" });
  filter();
  scrolled.observe(bar);
  ended.observe(end);
  const stop = subscribe((change) => {
    if (!change.events?.length) return;
    waiting = [...change.events.filter(matches), ...waiting].slice(0, MAX_EVENTS);
    redraw();
  });
  return () => {
    stop();
    matches = null;
    removeEventListener("resize", resize);
    scrolled.disconnect();
    ended.disconnect();
  };
}
