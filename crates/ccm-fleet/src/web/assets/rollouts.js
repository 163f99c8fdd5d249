// Rollout list and rollout view: waves, limits, and the progress of nodes.

import { bundleLink, bundleName, button, card, className, count, filler, framed, h, nodeLink, pairs, setText, showPrompt, table, throttled, toast, when } from "./dom.js";
import { can, post, read, store, subscribe } from "./store.js";

const PARTS = ["ok", "changed", "would_change", "restored", "failed", "unhealthy", "unreachable", "skipped", "restoring", "assigned"];

/** Always part of the legend. */
const LEGEND = ["pending", "assigned", "ok", "changed", "failed"];

/** Minimum interval between two loads, in milliseconds. */
const INTERVAL = 1000;

/** Maximum number of nodes shown per wave, and of nodes with problems. */
const MAX_DOTS = 2000;
const MAX_PROBLEMS = 500;

/** Node state whose colour a rollout state has. */
const COLOUR_OF = {
  running: "running", baking: "running", paused: "paused", halted: "failed", aborted: "offline",
  done: "stable", "done with failures": "failed",
  "rolling back": "drifted", "rolled back": "drifted", "rolled back with failures": "failed",
};

/** Returns the name of a count for display. */
function nameOf(part) {
  return part.replace("_", " ");
}

function stateOf(one) {
  return h("span.badge", { "data-state": COLOUR_OF[one.word] ?? "offline" }, one.word);
}

function sum(tally) {
  return Object.values(tally).reduce((all, part) => all + part, 0);
}

function meter(tally, label) {
  const text = Object.entries(tally).filter(([, part]) => part).map(([word, part]) => `${part} ${nameOf(word)}`).join(", ");
  const bar = h("div.meter", { role: "img", title: text, "aria-label": `${label}: ${text || "nothing yet"}` });
  for (const word of [...PARTS, "pending"]) {
    const part = h(`i.${className(word)}`);
    part.style.flexGrow = tally[word];
    part.style.flexBasis = "0";
    if (tally[word]) bar.append(part);
  }
  return bar;
}

function waves(one) {
  return h("div.waves", {}, one.waves.map((wave, index) => {
    const done = wave.size - wave.tally.pending - wave.tally.assigned - wave.tally.restoring;
    return h("div.wave", {},
      h("span.clip", { title: wave.name }, h(index === one.wave && one.active ? "b" : "span", {}, wave.name), wave.canary && wave.name !== "canary" ? h("span.soft", {}, " canary") : ""),
      meter(wave.tally, wave.name), h("span.soft.small.done", {}, `${done} / ${wave.size}`));
  }));
}

/** Returns all rollouts, the newest first. */
export function newest() {
  const since = (one) => Date.parse(one.created);
  return [...store.rollouts.values()].sort((a, b) => since(b) - since(a) || (a.id < b.id ? 1 : -1));
}

/** Returns a rollout as a link to it. */
export function rolloutCard(one, heading = "h2") {
  return h("a.card.rollout", { href: `#/rollouts/${one.id}`, "data-rollout": one.id },
    h("div.head", {}, h(heading, {}, one.bundle.name), stateOf(one), one.noop ? h("span.soft", {}, "noop") : "",
      h("span.soft.small.right", {}, h("span.mono", {}, one.id), " · ", when(one.created))),
    one.state.reason ? h("p", {}, one.state.reason) : null, waves(one));
}

export function rollouts(main) {
  const list = h("div.waves");
  const found = h("span.soft", { role: "status" });
  main.append(h("div.head", {}, h("h1", {}, "Rollouts"), found,
    can("roll-out") && h("a.button.main.right", { href: "#/rollouts/new", "data-act": "new" }, "Start a rollout")), list);
  const fill = filler(list);
  function draw() {
    const all = newest();
    const active = all.filter((one) => one.active).length;
    setText(found, `${count(all.length, "rollout")}, ${active} active`);
    fill(all, () => (all.length ? all.map((one) => rolloutCard(one))
      : h("p.empty", {}, "No rollouts yet. Start one with ", h("code", {}, "ccm fleet rollout start"), ".")));
  }
  const redraw = framed(draw);
  draw();
  return subscribe((change) => change.rollouts?.length && redraw());
}

/** Returns the limits above which a rollout halts. */
export function limits(budget) {
  return [
    budget.max_failures !== undefined && count(budget.max_failures, "failure"),
    budget.max_failures_percent && `${budget.max_failures_percent} of finished nodes`,
    budget.max_unreachable && `${budget.max_unreachable} unreachable`,
  ].filter(Boolean).join(", ") || "0 failures";
}

export function rollout(main, id) {
  const head = h("div.head");
  const body = h("div.columns");
  const problems = h("div.empty-is-gone");
  const legend = h("div.legend", { "aria-label": "Legend" });
  const dots = h("div.waves");
  main.append(h("p.small", {}, h("a", { href: "#/rollouts" }, "← All rollouts")), head, body, problems, legend, dots);
  const [fillHead, fillBody, fillProblems, fillLegend, fillDots] = [head, body, problems, legend, dots].map(filler);
  const squares = new Map();
  let isClosed = false;

  async function load() {
    try {
      const found = await read(`/api/rollouts/${encodeURIComponent(id)}`);
      if (!isClosed) draw(found);
    } catch (error) {
      if (isClosed) return;
      fillHead(id, () => h("h1", {}, id));
      fillBody(error.message, () => h("p.empty", {}, error.message));
    }
  }

  async function control(verb, title, label) {
    const given = await showPrompt({ title: `${title}?`, text: `Rollout ${id}`, label, yes: title });
    if (given === null) return;
    try {
      const reply = await post(`/api/rollouts/${encodeURIComponent(id)}/${verb}`, label ? { reason: given } : {});
      toast(`${id} is ${reply.word}`);
      load();
    } catch (error) {
      toast(error.message);
    }
  }

  /** Returns the controls that the state allows: verb, title, and label of the prompt. */
  function controls(one) {
    const { name } = one.state;
    const bad = one.tally.failed + one.tally.unhealthy + one.tally.unreachable;
    const isStarted = sum(one.tally) > one.tally.pending;
    return [
      ["running", "baking"].includes(name) && ["pause", "Pause", "Reason"],
      ["paused", "halted"].includes(name) && ["resume", "Resume"],
      ["paused", "halted", "aborted", "done_with_failures", "rolled_back_with_failures"].includes(name) && bad > 0 && ["retry", "Retry failed"],
      (name === "halted" || (one.active && name !== "rolling_back")) && !one.state.rolling_back && ["abort", "Abort"],
      !["rolling_back", "rolled_back", "rolled_back_with_failures"].includes(name) && isStarted && ["rollback", "Roll back"],
    ].filter(Boolean);
  }

  function drawHead(one) {
    const verbs = can("roll-out") ? controls(one) : [];
    fillHead([one.bundle.name, one.word, verbs], () => [
      h("h1", {}, one.bundle.name), stateOf(one), h("span.soft.mono", {}, one.id),
      h("div.row.right", {}, verbs.map(([verb, text, label]) => button(text, verb, () => control(verb, text, label),
        { class: verb === "abort" ? "danger" : null }))),
    ]);
  }

  function drawBody(one, found, total) {
    const { settings } = found;
    fillBody([one, found.lease, found.controls, total], () => [
      card("Waves", count(total, "node"), waves(one), one.state.reason && h("p.reason", {}, h("b", {}, "Reason: "), one.state.reason)),
      card("Plan", "", pairs([
        ["Bundle", h("a.mono", { href: bundleLink(one.bundle) }, bundleName(one.bundle))],
        ["Selection", h("span.mono", {}, found.selection.join(" "))], ["Budget", `at most ${limits(settings.budget)}`],
        ["Health gate", settings.health_gate && "no node may be unhealthy before the next wave"],
        ["Started", h("span", {}, when(one.created), one.caller && ` by ${one.caller}`)],
        ["Controls", found.controls.map((done) => h("div", {}, `${done.verb} by ${done.by || "unknown"} · `, when(done.at)))],
        // Without the random suffix of the holder.
        ["Controller", found.lease?.holder.replace(/ [0-9a-f]{8,}$/, "")],
        ["Left out", found.left_out.map((left) => h("div", {}, `${left.node}: ${left.reason}`))],
      ])),
    ]);
  }

  /** Shows each node as a square; existing squares only change their colour. */
  function drawDots(one, found) {
    const words = [...LEGEND, ...PARTS.filter((word) => !LEGEND.includes(word) && one.tally[word])];
    fillLegend(words, () => words.map((word) => h("span.key", {}, h("span.dots", {}, h(`i.${className(word)}`)), nameOf(word))));
    const sizes = one.waves.map((wave) => [wave.name, wave.size]);
    fillDots(sizes, () => {
      squares.clear();
      return one.waves.map((wave, index) => card(wave.name, count(wave.size, "node"), h("div.dots", {},
        found.nodes[index].slice(0, MAX_DOTS).map((node) => {
          const element = h("a", { href: nodeLink(node.node) });
          squares.set(node.node, { element, progress: null });
          return element;
        }))));
    });
    for (const node of found.nodes.flat()) {
      const square = squares.get(node.node);
      if (!square || square.progress === node.progress) continue;
      square.progress = node.progress;
      square.element.className = className(node.progress);
      square.element.title = `${node.node}: ${node.progress}`;
      square.element.setAttribute("aria-label", square.element.title);
    }
  }

  function draw(found) {
    const one = found.rollout;
    const all = found.nodes.flat();
    const bad = all.filter((node) => node.reason || ["failed", "unhealthy", "unreachable"].includes(node.progress)).slice(0, MAX_PROBLEMS);
    drawHead(one);
    drawBody(one, found, all.length);
    fillProblems(bad, () => bad.length && card("Problems", "", table("Problems", ["Node", "Progress", "Reason"],
      bad.map((node) => [h("a", { href: nodeLink(node.node) }, node.node), h("span.nowrap", {}, node.progress), node.reason || "no report in time"]))));
    drawDots(one, found);
  }

  const reload = throttled(load, INTERVAL);
  const stop = subscribe((change) => change.rollouts?.includes(id) && reload());
  load();
  return () => {
    isClosed = true;
    stop();
  };
}
