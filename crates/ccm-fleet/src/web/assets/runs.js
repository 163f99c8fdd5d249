// Runs of a node: each can be opened to show its events with what their commands printed.

import { button, card, className, count, duration, h, outcome, path, shorten, when, withOutput } from "./dom.js";
import { read } from "./store.js";

/** Number of runs shown at first, and number that is added. */
const STEP = 20;

/** Returns the card of runs, the function that loads them, and a target for the chart of days. */
export function runsCard(name, showDays) {
  const list = h("div.runs");
  const more = h("div.row");
  const element = card("Runs", "last 14 days, the newest first", list, more);
  const shown = new Map();
  let limit = STEP;

  function createRun(run) {
    const events = h("div");
    const details = h("details", { "data-run": run.run_id }, h("summary", {}, headline(run)), events);
    details.addEventListener("toggle", async () => {
      if (!details.open || events.childElementCount) return;
      events.replaceChildren(h("p.soft", {}, "Loading…"));
      try {
        const found = await read(`/api/nodes/${encodeURIComponent(name)}/runs/${run.run_id}`);
        events.replaceChildren(...runEvents(found));
      } catch (error) {
        events.replaceChildren(h("p.bad", {}, error.message));
      }
    });
    return details;
  }

  /** Loads the runs. Runs that stay keep their elements, so that open ones stay open. */
  async function load() {
    const found = await read(`/api/nodes/${encodeURIComponent(name)}/runs?limit=${limit}`).catch((error) => error);
    if (found instanceof Error) {
      list.replaceChildren(h("p.bad", {}, found.message));
      return;
    }
    const elements = found.runs.map((run) => {
      if (!shown.has(run.run_id)) shown.set(run.run_id, createRun(run));
      return shown.get(run.run_id);
    });
    const unreadable = found.unreadable > 0 && h("p.bad", {}, `${count(found.unreadable, "run")} could not be read.`);
    list.replaceChildren(...(elements.length ? elements : [h("p.soft", {}, "No runs in the last 14 days.")]), ...(unreadable ? [unreadable] : []));
    more.replaceChildren(...(found.omitted ? [button(`Show ${count(Math.min(found.omitted, STEP), "earlier run")}`, "more-runs", () => {
      limit += STEP;
      load();
    })] : []));
    showDays(found.days);
  }

  return { element, load };
}

function headline(run) {
  const { changed_resources: changed, failed_resources: failed, total_resources: total } = run.summary;
  const counts = [changed && `${changed} ${run.noop ? "would change" : "changed"}`, failed && `${failed} failed`, count(total, "resource")];
  return [outcome(run.outcome), h("span.mono", {}, shorten(run.source)),
    h("span.soft", {}, counts.filter(Boolean).join(", ")), h("span.soft.small", {}, run.trigger.replace("_", " ")),
    h("span.soft.small", {}, duration(Math.round(run.summary.total_duration / 1e6))), when(run.timestamp)];
}

/** Returns the error, the caller and the events of a run. */
function runEvents({ run, events, omitted, unreadable }) {
  return [
    run.error && h("p.bad", {}, run.error),
    run.caller && h("p.soft", {}, `Requested by ${run.caller}.`),
    h("ol.runevents", {}, events.map((event) => {
      const label = `${event.type}#${event.name}`;
      return h("li", { "data-resource": label }, h(`span.outcome.${className(event.outcome)}`, {}, event.outcome),
        h("span.mono.path", {}, path(label)), h("div", {}, withOutput(detail(event, label), event.output)), h("span.soft.small", {}, duration(event.millis)));
    })),
    !events.length && h("p.soft", {}, "No events."),
    omitted > 0 && h("p.soft", {}, `${count(omitted, "more event")} not shown.`),
    unreadable > 0 && h("p.bad", {}, `${count(unreadable, "event")} could not be read.`),
  ].filter(Boolean);
}

/** Returns the text of an event without its resource, which has its own column. */
export function detail(event, label) {
  return event.text.startsWith(`${label} `) ? event.text.slice(label.length + 1) : event.text;
}
