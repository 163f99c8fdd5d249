// Events as they happen, the newest first, with filters that live in the address.

import { clock, count, framed, h, nodeLink, outcome, took } from "./dom.js";
import { store, subscribe } from "./store.js";
import { remember } from "./app.js";

const SHOWN = 250;
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
  main.append(
    h("div.head", {}, h("h1", {}, "Events"), found),
    h("div.tablebar", {}, search, type, result, hold),
    h("section.card", { "aria-label": "Events" }, list),
  );
  let newest = store.events[0]?.number ?? 0;
  let isHeld = false;

  function draw() {
    if (isHeld) return;
    const text = search.value.trim().toLowerCase();
    const matches = (event) => (!type.value || event.type === type.value) &&
      (!result.value || event.outcome === result.value) &&
      (!text || event.node.includes(text) || event.text.toLowerCase().includes(text));
    const all = store.events.filter(matches);
    found.textContent = `${count(all.length, "event")}${store.skipped ? `, ${store.skipped.toLocaleString("en")} more went by too fast` : ""}`;
    const rows = all.slice(0, SHOWN).map((event) => h(event.number > newest ? "li.fresh" : "li", { "data-event": event.number },
      h("span.soft.small", {}, clock(event.at)), outcome(event.outcome),
      h("span.clip", {}, h("a", { href: nodeLink(event.node) }, event.node)),
      h("span", {}, event.text), h("span.soft.small", {}, took(event.millis))));
    list.replaceChildren(...(rows.length ? rows : [h("li.soft", {}, h("span"), h("span"), h("span"), h("span", {}, "Nothing like that happened lately."))]));
    newest = store.events[0]?.number ?? 0;
  }

  function keep() {
    remember("events", [["q", search.value.trim()], ["type", type.value], ["outcome", result.value]]);
    draw();
  }

  for (const input of [search, type, result]) input.addEventListener("input", keep);
  hold.addEventListener("click", () => {
    isHeld = !isHeld;
    hold.setAttribute("aria-pressed", String(isHeld));
    hold.textContent = isHeld ? "Go on" : "Hold";
    draw();
  });
  const redraw = framed(draw);
  draw();
  return subscribe((change) => change.events && redraw());
}
