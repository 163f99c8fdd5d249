// One node: what it is, what it should be, what its last run did, and each resource's last event.
// A part is drawn anew only when it changed, so what was unfolded stays so.

import { badge, brief, card, filler, h, outcome, pairs, plain, table, throttled, took, when } from "./dom.js";
import { canAct, read, subscribe } from "./store.js";
import { deeds } from "./deeds.js";

/** How often a busy node is read again. */
const EVERY = 500;

export function node(main, name) {
  const parts = Object.fromEntries(["state", "buttons", "now", "assignment", "run", "drift", "resources", "facts"].map((part) => {
    const place = h(part === "buttons" ? "div.row.right" : part === "state" ? "span" : "div.empty-is-gone");
    return [part, { place, fill: filler(place) }];
  }));
  const place = (part) => parts[part].place;
  const trouble = h("p.empty", { hidden: true });
  const body = h("div.sides", {}, h("div.side", {}, place("now"), place("assignment"), place("run")),
    h("div.side", {}, place("drift"), place("resources"), place("facts")));
  main.append(
    h("p.small.row", {}, h("a", { href: "#/nodes" }, "← All nodes"), h("a.right", { href: `#/events?q=${encodeURIComponent(name)}` }, "Its events")),
    h("div.head", {}, h("h1", {}, name), place("state"), place("buttons")),
    trouble,
    body,
  );
  let isGone = false;

  async function load() {
    try {
      const found = await read(`/api/nodes/${encodeURIComponent(name)}`);
      if (!isGone) draw(found);
    } catch (error) {
      if (isGone) return;
      trouble.textContent = error.message;
      trouble.hidden = false;
      body.hidden = true;
    }
  }

  function draw(found) {
    const { node: row, status, report, assignment, last_run: run, labels, facts, resources } = found;
    trouble.hidden = true;
    body.hidden = false;
    parts.state.fill(row.state, () => badge(row.state));
    parts.buttons.fill(canAct(), () => canAct() && deeds([name], load));
    parts.now.fill([row, status, labels], () => now(row, status, labels));
    parts.assignment.fill([assignment, row.lagging, report?.error, report?.refusal], () => assigned(assignment, row, report));
    parts.run.fill(run, () => lastRun(run));
    parts.drift.fill(report?.drift, () => drifted(report?.drift ?? []));
    parts.resources.fill(resources, () => lastEvents(resources));
    parts.facts.fill(facts, () => card("Facts", "", Object.keys(facts ?? {}).length
      ? h("div.tree", { tabindex: "0", role: "group", "aria-label": "Facts" }, tree(facts)) : nothing("It is away, or has no facts.")));
  }

  const reload = throttled(load, EVERY);
  const stop = subscribe((change) => {
    if (change.nodes?.includes(name) || change.events?.some((event) => event.node === name)) reload();
  });
  load();
  return () => {
    isGone = true;
    stop();
  };
}

function now(row, status, labels) {
  return card("Now", "", pairs([
    ["State", badge(row.state)],
    ["Note", brief(row.note)],
    ["Paused", status?.pause && `${status.pause.reason}${status.pause.by ? ` (${status.pause.by})` : ""}`],
    ["Trust", status?.trust && trusted(status.trust)],
    ["Refused", refusal(status?.trust?.last_refusal)],
    ["Running", status?.current_run && brief(status.current_run.source)],
    ["Heard", status && when(status.timestamp)],
    ["Up since", status && when(status.started)],
    ["Version", status?.version],
    ["Groups", status?.groups.join(", ")],
    ["Labels", Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(", ")],
    ["Spool", status && `${status.spool.pending} waiting, ${status.spool.dropped} given up`],
  ]));
}

function trusted(trust) {
  if (trust.open) return "open: obeys unsigned requests (trust: {required: false})";
  return trust.required ? "refuses what no trusted signer signed" : "obeys NATS servers on its own machine";
}

/** What was refused, to whom, when and why. */
function refusal(one) {
  return one && h("span", {}, `${one.what}${one.who ? ` by ${one.who}` : ""}: ${one.reason} · `, when(one.time));
}

function assigned(assignment, row, report) {
  return card("Assignment", "", assignment ? pairs([
    ["Manifests", assignment.manifests.map((one) => h("div", {}, one.name, " ", h("span.mono.soft", {}, one.digest.slice(0, 12))))],
    ["Generation", `${assignment.generation}${row.lagging ? ", not reported yet" : ""}`],
    ["Mode", assignment.noop ? "noop: it only says what it would do" : "applies"],
    ["Rollout", assignment.rollout && h("a", { href: `#/rollouts/${assignment.rollout}` }, assignment.rollout)],
    ["Assigned", when(assignment.assigned)],
    ["Error", report?.error],
    ["Refused", report?.refusal?.generation === assignment.generation && refusal(report.refusal)],
  ]) : nothing("Nothing is assigned to it."));
}

function lastRun(run) {
  if (!run) return card("Last run", "", nothing("It has not run yet."));
  const { summary } = run;
  const counts = [["changed", summary.changed_resources], ["failed", summary.failed_resources],
    ["skipped", summary.skipped_resources], ["stable", summary.stable_resources]];
  const checks = [["ok", summary.health_check_ok_count], ["warning", summary.health_check_warning_count], ["critical", summary.health_check_critical_count]];
  const told = (pairsOf) => pairsOf.filter(([, number]) => number).map(([word, number]) => `${number} ${word}`).join(", ");
  return card("Last run", "", pairs([
    ["Outcome", outcome(run.outcome)],
    ["Source", h("span.mono", {}, brief(run.source))],
    ["When", when(run.timestamp)],
    ["Resources", told(counts) || "none"],
    ["Health checks", told(checks)],
    ["Because of", run.trigger.replace("_", " ")],
    ["Asked by", run.caller],
    ["Error", run.error],
  ]));
}

function drifted(drift) {
  return card("Drift", "from its assignment", drift.length ? table("Drift", ["Resource", "What", "Since"], drift.map((one) => [
    h("span.mono.path", {}, path(`${one.type}#${one.name}`)), one.message, when(one.since),
  ])) : nothing("Everything is as assigned."));
}

function lastEvents(resources) {
  if (!resources.length) return card("Resources", "", nothing("Nothing happened to its resources lately."));
  const checks = resources.some((event) => event.health);
  const titles = ["Outcome", "Resource", "What happened", ...(checks ? ["Health"] : []), "Took", "When"];
  return card("Resources", "last event of each", table("Resources", titles, resources.map((event) => {
    const label = `${event.type}#${event.name}`;
    // Lines begin with the resource, which has a column of its own here.
    const text = event.text.startsWith(`${label} `) ? event.text.slice(label.length + 1) : event.text;
    const health = plain(event.health?.toLowerCase());
    return [outcome(event.outcome), h("span.mono.path", {}, path(label)), text,
      ...(checks ? [event.health ? h(`span.outcome.${health}`, {}, health) : ""] : []), h("span.nowrap", {}, took(event.millis)), when(event.at)];
  })));
}

/** Lets a name break after its slashes, rather than anywhere. */
function path(text) {
  return text.split(/(?<=\/)/).flatMap((part) => [part, h("wbr")]);
}

function nothing(text) {
  return h("p.soft", {}, text);
}

/** Shows a value: maps and lists can be folded. */
function tree(value, depth = 0) {
  return Object.entries(value).map(([key, inner]) => {
    if (inner === null || typeof inner !== "object") {
      return h("div", {}, h("b", {}, key), ` ${JSON.stringify(inner)}`);
    }
    return h("details", { open: depth < 1 }, h("summary", {}, h("b", {}, key)), tree(inner, depth + 1));
  });
}
