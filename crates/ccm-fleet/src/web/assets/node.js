// Node view: status, labels, assignment, last run, drift, runs, and the last event of each resource. A part is drawn
// again only when it changed, so that expanded facts stay expanded.

import {
  badge, bundleLink, card, className, duration, filler, h, outcome, pairs, path, shorten, table, throttled, when, withOutput,
} from "./dom.js";
import { can, read, subscribe } from "./store.js";
import { actionButtons } from "./actions.js";
import { dayChart } from "./chart.js";
import { labelsCard } from "./labels.js";
import { detail, runsCard } from "./runs.js";

/** Minimum interval between two loads, in milliseconds. */
const INTERVAL = 500;

export function node(main, name) {
  const parts = Object.fromEntries(["state", "buttons", "status", "labels", "assignment", "run", "days", "drift", "resources", "facts"].map((part) => {
    const element = h(part === "buttons" ? "div.row.right" : part === "state" ? "span" : "div.empty-is-gone");
    return [part, { element, fill: filler(element) }];
  }));
  const element = (part) => parts[part].element;
  const problem = h("p.empty", { hidden: true });
  const runs = runsCard(name, (days) => parts.days.fill(days, () => card("Changes per day", "UTC", dayChart(days))));
  const body = h("div.sides", {}, h("div.side", {}, element("status"), element("labels"), element("assignment"), element("run"), element("days")),
    h("div.side", {}, element("drift"), runs.element, element("resources"), element("facts")));
  main.append(
    h("p.small.row", {}, h("a", { href: "#/nodes" }, "← All nodes"), h("a.right", { href: `#/events?q=${encodeURIComponent(name)}` }, "Events of this node")),
    h("div.head", {}, h("h1", {}, name), element("state"), element("buttons")),
    problem,
    body,
  );
  let isClosed = false;

  async function load() {
    try {
      const found = await read(`/api/nodes/${encodeURIComponent(name)}`);
      if (!isClosed) draw(found);
    } catch (error) {
      if (isClosed) return;
      problem.textContent = error.message;
      problem.hidden = false;
      body.hidden = true;
    }
  }

  function draw(found) {
    const { node: row, status, report, assignment, last_run: run, labels, facts, resources } = found;
    problem.hidden = true;
    body.hidden = false;
    parts.state.fill(row.state, () => badge(row.state));
    parts.buttons.fill(can("ask"), () => can("ask") && actionButtons([name], load));
    parts.status.fill([row, status, found.unreadable, found.last_seen], () => statusCard(row, status, found.unreadable, found.last_seen));
    parts.labels.fill([labels, can("roll-out")], () => labelsCard(name, labels, load));
    parts.assignment.fill([assignment, row.lagging, report?.error, report?.refusal], () => assignmentCard(assignment, row, report));
    parts.run.fill(run, () => runCard(run));
    parts.drift.fill(report?.drift, () => driftCard(report?.drift ?? []));
    parts.resources.fill(resources, () => resourcesCard(resources));
    parts.facts.fill(facts, () => card("Facts", "", Object.keys(facts ?? {}).length
      ? h("div.tree", { tabindex: "0", role: "group", "aria-label": "Facts" }, tree(facts)) : emptyText("No facts: the node is offline or has none.")));
  }

  const reload = throttled(load, INTERVAL);
  const reloadRuns = throttled(runs.load, INTERVAL);
  const stop = subscribe((change) => {
    const events = change.events?.filter((event) => event.node === name) ?? [];
    if (change.nodes?.includes(name) || events.length) reload();
    if (events.some((event) => event.type === "run")) reloadRuns();
  });
  load();
  runs.load();
  return () => {
    isClosed = true;
    stop();
  };
}

function statusCard(row, status, unreadable, lastSeen) {
  return card("Status", "", pairs([
    ["State", badge(row.state)],
    ["Note", shorten(row.note)],
    ["Unreadable", unreadable.map((one) => h("div.bad", {}, `${one.record}: ${one.reason}`))],
    ["Paused", status?.pause && `${status.pause.reason}${status.pause.by ? ` (${status.pause.by})` : ""}`],
    ["Trust", status?.trust && trustText(status.trust)],
    ["Refused", refusal(status?.trust?.last_refusal)],
    ["Running", status?.current_run && shorten(status.current_run.source)],
    ["Last heartbeat", status ? when(status.timestamp) : lastSeen && when(lastSeen)],
    ["Started", status && when(status.started)],
    ["Version", row.version],
    ["Groups", row.groups.join(", ")],
    ["Choria", status?.choria && `serves Choria's clients in ${status.choria.join(", ")}`],
    ["Spool", status && `${status.spool.pending} pending, ${status.spool.dropped} dropped`],
  ]));
}

function trustText(trust) {
  if (trust.open) return "open: accepts unsigned requests (trust: {required: false})";
  return trust.required ? "requires signatures of trusted signers" : "accepts unsigned requests: its NATS servers are local";
}

/** Returns the text of a refusal: what, who, why and when. */
function refusal(one) {
  return one && h("span", {}, `${one.what}${one.who ? ` by ${one.who}` : ""}: ${one.reason} · `, when(one.time));
}

function assignmentCard(assignment, row, report) {
  return card("Assignment", "", assignment ? pairs([
    ["Manifests", assignment.manifests.map((one) => h("div", {}, h("a", { href: bundleLink(one) }, one.name), " ", h("span.mono.soft", {}, one.digest.slice(0, 12))))],
    ["Generation", `${assignment.generation}${row.lagging ? ", not reported yet" : ""}`],
    ["Mode", assignment.noop ? "noop: only reports changes" : "apply"],
    ["Rollout", assignment.rollout && h("a", { href: `#/rollouts/${assignment.rollout}` }, assignment.rollout)],
    ["Assigned", when(assignment.assigned)],
    ["Error", report?.error],
    ["Refused", report?.refusal?.generation === assignment.generation && refusal(report.refusal)],
  ]) : emptyText("No assignment."));
}

function runCard(run) {
  if (!run) return card("Last run", "", emptyText("No run yet."));
  const { summary } = run;
  const counts = [[run.noop ? "would change" : "changed", summary.changed_resources], ["failed", summary.failed_resources],
    ["skipped", summary.skipped_resources], ["stable", summary.stable_resources]];
  const checks = [["ok", summary.health_check_ok_count], ["warning", summary.health_check_warning_count], ["critical", summary.health_check_critical_count]];
  const text = (pairsOf) => pairsOf.filter(([, number]) => number).map(([word, number]) => `${number} ${word}`).join(", ");
  return card("Last run", "", pairs([
    ["Outcome", outcome(run.outcome)],
    ["Source", h("span.mono", {}, shorten(run.source))],
    ["When", when(run.timestamp)],
    ["Resources", text(counts) || "none"],
    ["Health checks", text(checks)],
    ["Trigger", run.trigger.replace("_", " ")],
    ["Caller", run.caller],
    ["Error", run.error],
  ]));
}

function driftCard(drift) {
  return card("Drift", "from its assignment", drift.length ? table("Drift", ["Resource", "Difference", "Since"], drift.map((one) => [
    h("span.mono.path", {}, path(`${one.type}#${one.name}`)), withOutput(one.message, one.diff), when(one.since),
  ])) : emptyText("No drift."));
}

function resourcesCard(resources) {
  if (!resources.length) return card("Resources", "", emptyText("No recent events."));
  const checks = resources.some((event) => event.health);
  const titles = ["Outcome", "Resource", "Message", ...(checks ? ["Health"] : []), "Duration", "When"];
  return card("Resources", "last event of each", table("Resources", titles, resources.map((event) => {
    const label = `${event.type}#${event.name}`;
    const health = className(event.health?.toLowerCase());
    return [outcome(event.outcome), h("span.mono.path", {}, path(label)), withOutput(detail(event, label), event.output),
      ...(checks ? [event.health ? h(`span.outcome.${health}`, {}, health) : ""] : []), h("span.nowrap", {}, duration(event.millis)), when(event.at)];
  })));
}

function emptyText(text) {
  return h("p.soft", {}, text);
}

/** Shows a value; maps and lists can be collapsed. */
function tree(value, depth = 0) {
  return Object.entries(value).map(([key, inner]) => {
    if (inner === null || typeof inner !== "object") {
      return h("div", {}, h("b", {}, key), ` ${JSON.stringify(inner)}`);
    }
    return h("details", { open: depth < 1 }, h("summary", {}, h("b", {}, key)), tree(inner, depth + 1));
  });
}
