// Events as they happen, the newest first, with filters that live in the address. What is shown
// stays: new events are put before it, in rows taken from the end, so a busy fleet makes no new ones.

import { brief, clock, count, framed, h, nodeLink, plain, took } from "./dom.js";
import { store, subscribe } from "./store.js";
import { remember } from "./address.js";

const SHOWN = 100;

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
  /** Rows that are shown, the newest first. */
  let rows = [];
  let newest = -1;
  let isHeld = false;

  function row() {
    const [at, result, node, text, time] = [h("span.soft.small"), h("span"), h("a"), h("span"), h("span.soft.small")];
    return { made: h("li", {}, at, result, h("span.clip", {}, node), text, time), at, result, node, text, time };
  }

  function tell(one, event, isFresh) {
    one.made.className = isFresh ? "fresh" : "";
    one.made.dataset.event = event.number;
    one.at.textContent = clock(event.at);
    one.result.className = `outcome ${plain(event.outcome)}`;
    one.result.textContent = event.outcome;
    one.node.href = nodeLink(event.node);
    one.node.title = one.node.textContent = event.node;
    one.text.textContent = brief(event.text);
    one.time.textContent = took(event.millis);
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
    const kept = isAnew ? 0 : Math.min(rows.length, SHOWN - fresh.length);
    const spare = rows.splice(kept);
    const added = fresh.map((event) => {
      const one = spare.pop() ?? row();
      tell(one, event, flashes);
      return one;
    });
    for (const one of spare) one.made.remove();
    rows = [...added, ...rows];
    list.prepend(...added.map((one) => one.made));
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
