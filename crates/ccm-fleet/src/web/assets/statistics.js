// Statistics: changes per day, nodes that have been failing for the longest time, and nodes by version and bundle.

import { card, count, filler, h, nodeLink, shorten, table, throttled, when } from "./dom.js";
import { read, store, subscribe } from "./store.js";
import { dayChart } from "./chart.js";

/** Intervals between two loads of the history, and between two counts of the nodes, in milliseconds. */
const HISTORY_INTERVAL = 60_000;
const COUNT_INTERVAL = 1000;

/** Maximum number of rows of a table. */
const MAX_ROWS = 30;

export function statistics(main) {
  const [days, failing, versions, bundles] = ["days", "failing", "versions", "bundles"].map((id) => h("div", { id: `statistics-${id}` }));
  main.append(
    h("div.head", {}, h("h1", {}, "Statistics")),
    card("Changes per day", "changed and failed resources, days in UTC", days),
    card("Longest failing", "nodes whose runs have failed without a break", failing),
    h("div.columns", {}, card("Versions", "nodes by version of the agent", versions), card("Bundles", "nodes by assigned bundle", bundles)),
  );
  const [fillDays, fillFailing, fillVersions, fillBundles] = [days, failing, versions, bundles].map(filler);
  days.append(h("p.soft", {}, "Loading…"));
  let isClosed = false;

  async function load() {
    const found = await read("/api/history").catch((error) => error);
    if (isClosed) return;
    if (found instanceof Error) {
      fillDays(found.message, () => h("p.bad", {}, found.message));
      return;
    }
    fillDays([found.days, found.unreadable], () => [dayChart(found.days), !found.complete && h("p.soft", {}, "Too many runs: not all are counted."),
      found.unreadable > 0 && h("p.bad", {}, `${count(found.unreadable, "run")} could not be read.`)]);
    fillFailing([found.failing, found.failing_nodes], () => failingTable(found));
  }

  function countNodes() {
    const byVersion = new Map();
    const byBundle = new Map();
    const add = (counts, word) => counts.set(word, (counts.get(word) ?? 0) + 1);
    for (const row of store.nodes.values()) {
      add(byVersion, row.version || "unknown");
      for (const bundle of row.bundles) add(byBundle, bundle);
      if (!row.bundles.length) add(byBundle, "none");
    }
    for (const [fill, label, counts] of [[fillVersions, "Version", byVersion], [fillBundles, "Bundle", byBundle]]) {
      const rows = [...counts].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
      fill(rows, () => countTable(label, rows));
    }
  }

  const recount = throttled(countNodes, COUNT_INTERVAL);
  const stop = subscribe((change) => change.nodes?.length && recount());
  const timer = setInterval(load, HISTORY_INTERVAL);
  countNodes();
  load();
  return () => {
    isClosed = true;
    clearInterval(timer);
    stop();
  };
}

function failingTable(found) {
  if (!found.failing.length) return h("p.soft", {}, "No failing nodes.");
  const rows = found.failing.slice(0, MAX_ROWS);
  const more = found.failing_nodes - rows.length;
  return [
    table("Longest failing", ["Node", "Since", "Failed runs", "Last error"], rows.map((one) => [
      h("a", { href: nodeLink(one.node) }, one.node), when(one.since), one.runs.toLocaleString("en"),
      // A run whose resources failed has no error of its own.
      shorten(one.error || store.nodes.get(one.node)?.note),
    ])),
    more > 0 && h("p.small", {}, h("a", { href: "#/nodes?state=failed" }, `${count(more, "more failing node")}`)),
  ];
}

/** Creates a table of words with their numbers of nodes; each leads to its nodes. */
function countTable(label, rows) {
  if (!rows.length) return h("p.soft", {}, "No nodes yet.");
  const total = store.nodes.size;
  return table(`Nodes by ${label.toLowerCase()}`, [label, "Nodes", "Share"], rows.slice(0, MAX_ROWS).map(([word, number]) => [
    ["unknown", "none"].includes(word) ? h("span.soft", {}, word) : h("a.mono", { href: `#/nodes?q=${encodeURIComponent(word)}` }, word),
    number.toLocaleString("en"), `${Math.round((number / total) * 100)}%`,
  ]));
}
