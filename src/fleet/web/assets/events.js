// Events as they happen, the newest first, with filters that live in the address. What is shown
// stays: new events are put before it, and the oldest are taken away.

import { brief, clock, count, framed, h, nodeLink, outcome, took } from "./dom.js";
import { store, subscribe } from "./store.js";
import { remember } from "./address.js";

const SHOWN = 200;

/** How many events at once are still worth a flash. */
const FLASHED = 12;

const OUTCOMES = ["failed", "changed", "skipped", "noop", "stable"];
const TYPES = ["run", "file", "package", "service", "exec", "archive", "scaffold", "apply"];

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
  const list = h("ol.events", { "aria-label": "Events" });
  const nothing = h("p.empty", {}, "Nothing like that happened lately.");
  main.append(
    h("div.head", {}, h("h1", {}, "Events"), found),
    h("div.tablebar", {}, search, type, result, hold),
    h("section.card.tight", { "aria-label": "Events" }, list, nothing),
  );
  let newest = -1;
  let isHeld = false;

  function line(event, isFresh) {
    return h(isFresh ? "li.fresh" : "li", { "data-event": event.number },
      h("span.soft.small", {}, clock(event.at)), outcome(event.outcome),
      h("span.clip", {}, h("a", { href: nodeLink(event.node), title: event.node }, event.node)),
      h("span", {}, brief(event.text)), h("span.soft.small", {}, took(event.millis)));
  }

  /** Adds what is new; with `isAnew` everything is put there again. */
  function draw(isAnew) {
    if (isHeld) return;
    const text = search.value.trim().toLowerCase();
    const matches = (event) => (!type.value || event.type === type.value) &&
      (!result.value || event.outcome === result.value) &&
      (!text || event.node.includes(text) || event.text.toLowerCase().includes(text));
    const all = store.events.filter(matches);
    const seen = isAnew ? -1 : newest;
    const fresh = all.filter((event) => event.number > seen).slice(0, SHOWN);
    const flashes = !isAnew && fresh.length <= FLASHED;
    if (isAnew) list.replaceChildren();
    list.prepend(...fresh.map((event) => line(event, flashes)));
    while (list.childElementCount > SHOWN) list.lastElementChild.remove();
    newest = store.events[0]?.number ?? -1;
    nothing.hidden = all.length > 0;
    const skipped = store.skipped ? `, ${store.skipped.toLocaleString("en")} more went by too fast` : "";
    found.textContent = `${all.length === store.events.length ? "the last " : ""}${count(all.length, "event")}${skipped}`;
  }

  function keep() {
    remember("events", [["q", search.value.trim()], ["type", type.value], ["outcome", result.value]]);
    draw(true);
  }

  for (const input of [search, type, result]) input.addEventListener("input", keep);
  hold.addEventListener("click", () => {
    isHeld = !isHeld;
    hold.setAttribute("aria-pressed", String(isHeld));
    hold.textContent = isHeld ? "Go on" : "Hold";
    draw(true);
  });
  const redraw = framed(() => draw(false));
  draw(true);
  return subscribe((change) => change.events?.length && redraw());
}
