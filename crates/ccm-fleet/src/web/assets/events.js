// Events as they happen, the newest first, with filters that live in the address. Only rows in sight exist,
// and they are told anew rather than made anew: a busy fleet costs as much as a screen of text.
//
// Filters reach as far back as the server remembers, which is further than the page does.
//
// What somebody reads stays: while the list is scrolled, or a link in it is pointed at or has the focus,
// new events wait and are counted.

import { brief, clock, count, framed, h, nodeLink, plain, put, throttled, took } from "./dom.js";
import { read, store, subscribe } from "./store.js";
import { remember } from "./address.js";

/** How many events that match are kept, and how many rows come at once when somebody scrolls. */
const KEPT = 1000;
const MORE = 100;

/** The height of the lowest row: no more than a screen of them are in sight. */
const LOWEST = 36;

/** How many events at once are still worth a flash. */
const FLASHED = 12;

const OUTCOMES = ["failed", "changed", "skipped", "noop", "stable"];
const TYPES = ["run", "file", "package", "service", "exec", "archive", "scaffold", "apply"];

/** Makes a row that tells nothing yet. Its texts are nodes of their own, so that telling makes no new ones. */
function row() {
  const [at, outcome, name, text, time] = Array.from({ length: 5 }, () => document.createTextNode(""));
  const result = h("span.outcome", {}, outcome);
  const link = h("a", {}, name);
  const made = h("li", {}, h("span.soft.small", {}, at), result, h("span.clip", {}, link), h("span", {}, text), h("span.soft.small.right", {}, time));
  return { made, result, link, texts: { at, outcome, name, text, time }, event: null };
}

function tell(one, event, isFresh) {
  if (one.event === event) return;
  const { texts } = one;
  if (one.event?.outcome !== event.outcome) {
    texts.outcome.data = event.outcome;
    one.result.className = `outcome ${plain(event.outcome)}`;
  }
  if (one.event?.node !== event.node) {
    texts.name.data = one.link.title = event.node;
    one.link.href = nodeLink(event.node);
  }
  one.event = event;
  one.made.className = isFresh ? "fresh" : "";
  one.made.dataset.event = event.number;
  texts.at.data = clock(event.at);
  texts.text.data = brief(event.text);
  texts.time.data = took(event.millis);
}

export function events(main, params) {
  const choose = (label, words, value) => {
    const made = h("select", { "aria-label": label }, h("option", { value: "" }, `${label}: any`), words.map((word) => h("option", { value: word }, word)));
    made.value = words.includes(value) ? value : "";
    return made;
  };
  const search = h("input", { type: "search", placeholder: "Search by node or text", "aria-label": "Search events", value: params.get("q") ?? "" });
  const type = choose("Type", TYPES, params.get("type"));
  const result = choose("Outcome", OUTCOMES, params.get("outcome"));
  const hold = h("button", { type: "button", "aria-pressed": "false" }, "Hold");
  const found = h("span.soft", { role: "status" });
  // Not a status: it changes with every event, and nobody wants to hear that.
  const going = h("span.soft.small");
  const list = h("ol.events", { "aria-label": "Events" });
  const nothing = h("p.empty");
  const end = h("div");
  const bar = h("div.tablebar", {}, search, type, result, hold);
  main.append(
    h("div.head", {}, h("h1", {}, "Events"), found, going),
    bar,
    h("section.card.tight", { "aria-label": "Events" }, list, nothing, end),
  );
  let matches;
  /** Events that match, the newest first, those among them that have a row, and those that wait. */
  let all = [];
  let rows = [];
  let waiting = [];
  let sight = Math.ceil(innerHeight / LOWEST);
  let room = sight;
  let isHeld = false;
  let isScrolled = false;
  let pointed = null;

  function filters() {
    return [["q", search.value.trim()], ["type", type.value], ["outcome", result.value]];
  }

  function isRead() {
    return isHeld || isScrolled || pointed !== null || list.contains(document.activeElement);
  }

  /** Begins anew with what is known. */
  function select() {
    const [text, kind, word] = [search.value.trim().toLowerCase(), type.value, result.value];
    matches = (event) => (!kind || event.type === kind) && (!word || event.outcome === word) &&
      (!text || event.node.includes(text) || event.text.toLowerCase().includes(text));
    all = store.events.filter(matches);
    waiting = [];
    if (text || kind || word) recall();
    nothing.textContent = text || kind || word ? "Nothing like that happened lately." : "Nothing happened yet.";
    place(0);
  }

  /** Asks the server for what matches and is no longer known here. */
  const recall = throttled(async () => {
    const asked = matches;
    const query = new URLSearchParams(filters().filter(([, value]) => value));
    const found = await read(`/api/events?limit=${KEPT}&${query}`).catch(() => null);
    if (!found || asked !== matches) return;
    // What is newer than the last news comes with the next.
    const latest = store.events[0]?.number ?? -1;
    const known = [...found.events.filter((event) => event.number <= latest), ...waiting, ...all];
    all = [...new Map(known.map((event) => [event.number, event])).values()]
      .sort((one, other) => other.number - one.number).slice(0, KEPT);
    waiting = [];
    place(0);
  }, 300);

  function draw() {
    if (isRead()) {
      place(0);
      return;
    }
    const fresh = waiting.length;
    all = [...waiting, ...all].slice(0, KEPT);
    waiting = [];
    place(fresh);
  }

  /** Gives events their rows. The `fresh` first are new; if others stay, they come before them, in rows from the end. */
  function place(fresh) {
    const wanted = Math.min(room, all.length);
    if (fresh < wanted) {
      const front = rows.splice(wanted - fresh);
      while (front.length < fresh) front.push(row());
      for (const one of front.splice(fresh)) one.made.remove();
      rows.unshift(...front);
      list.prepend(...front.map((one) => one.made));
    }
    while (rows.length > wanted) rows.pop().made.remove();
    while (rows.length < wanted) {
      rows.push(row());
      list.append(rows.at(-1).made);
    }
    rows.forEach((one, index) => tell(one, all[index], index < fresh && fresh <= FLASHED));
    say();
  }

  function say() {
    nothing.hidden = all.length > 0;
    put(found, all.length === KEPT ? `the last ${count(KEPT, "event")}` : count(all.length, "event"));
    put(going, [
      isRead() && (waiting.length ? `held, ${waiting.length < KEPT ? "" : "more than "}${waiting.length.toLocaleString("en")} new` : "held"),
      store.skipped > 0 && `${store.skipped.toLocaleString("en")} more went by too fast`,
    ].filter(Boolean).join(" · "));
  }

  const redraw = framed(draw);

  function keep() {
    remember("events", filters());
    select();
  }

  function point(link) {
    if (pointed === link) return;
    pointed = link;
    redraw();
  }

  for (const input of [search, type, result]) input.addEventListener("input", keep);
  hold.addEventListener("click", () => {
    isHeld = !isHeld;
    hold.setAttribute("aria-pressed", String(isHeld));
    hold.textContent = isHeld ? "Go on" : "Hold";
    redraw();
  });
  // Only a pointer that moves points: a link that comes to lie under a resting one is not meant.
  list.addEventListener("pointermove", (event) => point(event.target.closest("a")));
  list.addEventListener("pointerleave", () => point(null));
  list.addEventListener("focusin", redraw);
  list.addEventListener("focusout", redraw);
  const resize = () => {
    sight = Math.ceil(innerHeight / LOWEST);
    room = Math.max(room, sight);
    redraw();
  };
  addEventListener("resize", resize);
  // Filters out of sight mean that somebody reads further down.
  const scrolled = new IntersectionObserver(([entry]) => {
    isScrolled = !entry.isIntersecting;
    room = isScrolled ? sight + MORE : sight;
    redraw();
  });
  const ended = new IntersectionObserver((entries) => {
    if (!isScrolled || !entries.at(-1).isIntersecting || room >= all.length) return;
    room += MORE;
    redraw();
  }, { rootMargin: "600px" });
  select();
  scrolled.observe(bar);
  ended.observe(end);
  const stop = subscribe((change) => {
    if (!change.events?.length) return;
    waiting = [...change.events.filter(matches), ...waiting].slice(0, KEPT);
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
