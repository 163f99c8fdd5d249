// One node: what it is, what it should be, what its last run did, and each resource's last event.

import { ask, badge, framed, h, outcome, plain, toast, took, when } from "./dom.js";
import { act, hasToken, read, store, subscribe } from "./store.js";

export function node(main, name) {
  const body = h("div.columns");
  const buttons = h("div.row.right");
  const state = h("span");
  const below = h("div");
  main.append(
    h("p.small", {}, h("a", { href: "#/nodes" }, "← All nodes")),
    h("div.head", {}, h("h1", {}, name), state, buttons),
    body,
    below,
  );
  let isGone = false;

  async function load() {
    try {
      const found = await read(`/api/nodes/${encodeURIComponent(name)}`);
      if (!isGone) draw(found);
    } catch (error) {
      if (!isGone) body.replaceChildren(h("p.empty", {}, error.message));
    }
  }

  async function deed(verb, request, done) {
    try {
      const said = await act(`/api/nodes/${encodeURIComponent(name)}/${verb}`, request);
      toast(`${name}: ${said.text || done}`);
      load();
    } catch (error) {
      toast(error.message);
    }
  }

  function drawButtons(isPaused) {
    buttons.replaceChildren();
    if (!store.summary.actions || !hasToken()) return;
    if (isPaused) {
      buttons.append(h("button", { type: "button", onclick: () => deed("resume", {}, "resumed") }, "Resume"));
    } else {
      buttons.append(h("button", {
        type: "button",
        onclick: async () => {
          const reason = await ask({ title: `Pause ${name}`, text: "It changes nothing until it is resumed.", label: "Reason", yes: "Pause" });
          if (reason !== null) deed("pause", { reason }, "paused");
        },
      }, "Pause"));
    }
  }

  function draw(found) {
    const { status, report, assignment, last_run: run } = found;
    state.replaceChildren(badge(found.node.state));
    drawButtons(Boolean(status?.pause));
    body.replaceChildren(
      card("Now", pairs([
        ["State", badge(found.node.state)],
        ["Note", found.node.note],
        ["Paused", status?.pause && `${status.pause.reason}${status.pause.by ? ` (${status.pause.by})` : ""}`],
        ["Running", status?.current_run && status.current_run.source],
        ["Heard", status && when(status.timestamp)],
        ["Up since", status && when(status.started)],
        ["Version", status?.version],
        ["Groups", status?.groups.join(", ")],
        ["Labels", Object.entries(found.labels).map(([key, value]) => `${key}=${value}`).join(", ")],
        ["Spool", status && `${status.spool.pending} waiting, ${status.spool.dropped} given up`],
      ])),
      card("Assignment", assignment ? pairs([
        ["Manifests", assignment.manifests.map((one) => h("div.mono", {}, `${one.name} ${one.digest.slice(0, 12)}`))],
        ["Generation", `${assignment.generation}${found.node.lagging ? ", not reported yet" : ""}`],
        ["Mode", assignment.noop ? "noop: it only says what it would do" : "applies"],
        ["Rollout", assignment.rollout && h("a", { href: `#/rollouts/${assignment.rollout}` }, assignment.rollout)],
        ["Assigned", when(assignment.assigned)],
        ["Error", report?.error],
      ]) : nothing("Nothing is assigned to it.")),
      card("Last run", run ? pairs([
        ["Outcome", outcome(run.outcome)],
        ["Source", h("span.mono", {}, run.source)],
        ["When", when(run.timestamp)],
        ["Resources", `${run.summary.total_resources}: ${run.summary.changed_resources} changed, ${run.summary.failed_resources} failed, ${run.summary.skipped_resources} skipped, ${run.summary.stable_resources} stable`],
        ["Health", run.summary.health_checked_count > 0 && `${run.summary.health_check_ok_count} ok, ${run.summary.health_check_warning_count} warning, ${run.summary.health_check_critical_count} critical`],
        ["Because of", run.trigger.replace("_", " ")],
        ["Asked by", run.caller],
        ["Error", run.error],
      ]) : nothing("It has not run yet.")),
      card("Drift", report?.drift.length ? table(["Resource", "What", "Since"], report.drift.map((one) => [
        h("span.mono", {}, `${one.type}#${one.name}`), one.message, when(one.since),
      ])) : nothing("Everything is as assigned.")),
      card("Facts", Object.keys(found.facts ?? {}).length ? h("div.tree", { tabindex: "0", role: "group", "aria-label": "Facts" }, tree(found.facts)) : nothing("It is away, or has no facts.")),
    );
    below.replaceChildren(card("Resources", found.resources.length ? table(["Outcome", "Resource", "What happened", "Took", "When"],
      found.resources.map((event) => [
        outcome(event.outcome), h("span.mono", {}, `${event.type}#${event.name}`),
        h("span", {}, event.text, event.health ? h("span.soft", {}, ` · health ${plain(event.health.toLowerCase())}`) : ""),
        took(event.millis), when(event.at),
      ])) : nothing("Nothing happened to its resources lately."), `last event of each`));
  }

  const reload = framed(load);
  const stop = subscribe((change) => {
    if (change.nodes?.includes(name) || (change.events && store.events[0]?.node === name)) reload();
  });
  load();
  return () => {
    isGone = true;
    stop();
  };
}

function card(title, content, hint) {
  return h("section.card", { "aria-label": title }, h("h2", {}, title, hint && h("span.soft", {}, hint)), content);
}

function nothing(text) {
  return h("p.soft", {}, text);
}

function pairs(entries) {
  return h("dl", {}, entries.filter(([, value]) => value && value.length !== 0)
    .map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

function table(titles, rows) {
  return h("div.scroll", { tabindex: "0", role: "group", "aria-label": "Table" }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => h(index === 0 || index > 2 ? "td.nowrap" : "td", {}, cell)))))));
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
