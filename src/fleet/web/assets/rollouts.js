// Rollouts: waves as they fill, what may go wrong, who failed and why.

import { ask, count, framed, h, nodeLink, plain, toast, when } from "./dom.js";
import { act, hasToken, read, store, subscribe } from "./store.js";

const PARTS = ["ok", "changed", "restored", "failed", "unhealthy", "unreachable", "skipped", "assigned"];

/** Colours of a rollout's state, in the words of nodes. */
const LIKE = {
  planned: "offline", running: "running", baking: "running", paused: "paused", halted: "failed",
  aborted: "offline", done: "stable", "rolling back": "drifted", "rolled back": "drifted",
};

export function stateOf(one) {
  return h("span.badge", { "data-state": LIKE[one.word] ?? "offline" }, one.word);
}

function sum(tally) {
  return Object.values(tally).reduce((all, part) => all + part, 0);
}

function meter(tally, label) {
  const told = Object.entries(tally).filter(([, part]) => part).map(([word, part]) => `${part} ${word}`).join(", ");
  const bar = h("div.meter", { role: "img", title: told, "aria-label": `${label}: ${told || "nothing yet"}` });
  for (const word of [...PARTS, "pending"]) {
    const part = h(`i.${word}`);
    part.style.flexGrow = tally[word];
    part.style.flexBasis = "0";
    if (tally[word]) bar.append(part);
  }
  return bar;
}

function waves(one) {
  return h("div.waves", {}, one.waves.map((wave, index) => {
    const done = wave.size - wave.tally.pending - wave.tally.assigned;
    return h("div.wave", {},
      h("span.clip", { title: wave.name }, h(index === one.wave && one.active ? "b" : "span", {}, wave.name), wave.canary && wave.name !== "canary" ? h("span.soft", {}, " canary") : ""),
      meter(wave.tally, wave.name), h("span.soft.small", {}, `${done} / ${wave.size}`));
  }));
}

function line(one) {
  const reason = one.state.reason ? h("p", {}, one.state.reason) : null;
  return h("a.card.rollout", { href: `#/rollouts/${one.id}`, "data-rollout": one.id },
    h("div.head", {}, h("h2", {}, one.bundle.name), stateOf(one), one.noop ? h("span.soft", {}, "noop") : "",
      h("span.soft.small.right", {}, h("span.mono", {}, one.id), " · ", when(one.created))),
    reason, waves(one));
}

export function rollouts(main) {
  const list = h("div.waves");
  const found = h("span.soft", { role: "status" });
  main.append(h("div.head", {}, h("h1", {}, "Rollouts"), found), list);
  function draw() {
    const all = [...store.rollouts.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
    const active = all.filter((one) => one.active).length;
    found.textContent = `${count(all.length, "rollout")}, ${active} not over`;
    list.replaceChildren(...(all.length ? all.map(line) : [h("p.empty", {}, "No bundle was taken to this fleet yet. `ccm fleet rollout start` begins one.")]));
  }
  const redraw = framed(draw);
  draw();
  return subscribe((change) => change.rollouts?.length && redraw());
}

export function rollout(main, id) {
  const head = h("div.head");
  const body = h("div.columns");
  const nodes = h("div.waves");
  main.append(h("p.small", {}, h("a", { href: "#/rollouts" }, "← All rollouts")), head, body, nodes);
  let isGone = false;

  async function load() {
    try {
      const found = await read(`/api/rollouts/${encodeURIComponent(id)}`);
      if (!isGone) draw(found);
    } catch (error) {
      if (!isGone) body.replaceChildren(h("p.empty", {}, error.message));
    }
  }

  async function deed(verb, question, label) {
    const given = await ask({ title: `${question}?`, text: `Rollout ${id}`, label, yes: question });
    if (given === null) return;
    try {
      const said = await act(`/api/rollouts/${encodeURIComponent(id)}/${verb}`, label ? { reason: given } : {});
      toast(`${id} is ${said.word}`);
      load();
    } catch (error) {
      toast(error.message);
    }
  }

  function buttons(one) {
    if (!store.summary.actions || !hasToken()) return null;
    const state = one.state.name;
    const button = (verb, text, label) => h("button", { type: "button", "data-act": verb, class: verb === "abort" ? "danger" : null, onclick: () => deed(verb, text, label) }, text);
    const bad = one.tally.failed + one.tally.unhealthy + one.tally.unreachable;
    return h("div.row.right", {},
      ["running", "baking"].includes(state) && button("pause", "Pause", "Reason"),
      ["paused", "halted"].includes(state) && button("resume", "Resume"),
      ["paused", "halted", "aborted", "done"].includes(state) && bad > 0 && button("retry", "Retry failed"),
      one.active && state !== "rolling_back" && button("abort", "Abort"),
      state === "halted" && button("abort", "Abort"),
      !["planned", "rolling_back", "rolled_back"].includes(state) && sum(one.tally) > one.tally.pending && button("rollback", "Roll back"));
  }

  function draw(found) {
    const one = found.rollout;
    const { settings } = found;
    const all = found.nodes.flat();
    head.replaceChildren(h("h1", {}, one.bundle.name), stateOf(one), h("span.soft.mono", {}, one.id), buttons(one) ?? "");
    const bad = all.filter((node) => node.reason || ["failed", "unhealthy", "unreachable"].includes(node.progress));
    const { budget } = settings;
    const limits = [
      budget.max_failures !== undefined && count(budget.max_failures, "failure"),
      budget.max_failures_percent && `${budget.max_failures_percent} of those that finished`,
      budget.max_unreachable && `${budget.max_unreachable} unreachable`,
    ].filter(Boolean).join(", ") || "no failure";
    body.replaceChildren(
      h("section.card", { "aria-label": "Waves" }, h("h2", {}, "Waves", h("span.soft", {}, count(all.length, "node"))), waves(one),
        one.state.reason ? h("p", {}, h("b", {}, "Reason: "), one.state.reason) : null),
      h("section.card", { "aria-label": "Plan" }, h("h2", {}, "Plan"), h("dl", {},
        [["Bundle", h("span.mono", {}, `${one.bundle.name} ${one.bundle.digest.slice(0, 12)}`)],
          ["Nodes", found.selection.join(" ")], ["Budget", `at most ${limits}`],
          ["Health gate", settings.health_gate && "no node may be unhealthy before the next wave"],
          ["Begun", when(one.created)], ["By", one.caller],
          ["Driven by", found.lease?.holder],
          ["Left out", found.left_out.map((left) => h("div", {}, `${left.node}: ${left.reason}`))]]
          .filter(([, value]) => value && value.length !== 0).map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]))),
    );
    nodes.replaceChildren(
      bad.length ? h("section.card", { "aria-label": "Trouble" }, h("h2", {}, "Trouble"), h("div.scroll", { tabindex: "0", role: "group", "aria-label": "Table" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Node", "What", "Why"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, bad.slice(0, 500).map((node) => h("tr", {}, h("td", {}, h("a", { href: nodeLink(node.node) }, node.node)), h("td", {}, node.progress), h("td", {}, node.reason))))))) : "",
      ...one.waves.map((wave, index) => h("section.card", { "aria-label": wave.name }, h("h2", {}, wave.name, h("span.soft", {}, count(wave.size, "node"))),
        h("div.dots", {}, found.nodes[index].slice(0, 2000).map((node) => h(`a.${plain(node.progress)}`, {
          href: nodeLink(node.node), title: `${node.node}: ${node.progress}`, "aria-label": `${node.node}: ${node.progress}`,
        }))))));
  }

  const reload = framed(load);
  const stop = subscribe((change) => change.rollouts?.includes(id) && reload());
  load();
  return () => {
    isGone = true;
    stop();
  };
}
