// Bundle list and bundle view: stored versions, the nodes that they are assigned to, files, and differences from
// another version, by default from the assigned one.

import { bundleLink, bundleName, card, count, diffBlock, h, nodeLink, pairs, table, when } from "./dom.js";
import { can, read } from "./store.js";

/** Maximum number of nodes that are named. */
const MAX_NODES = 50;

/** Returns a size for people. */
function size(bytes) {
  return bytes < 1024 ? `${bytes} bytes` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

function rolloutButton(version) {
  return can("roll-out") && h("a.button", { href: `#/rollouts/new?bundle=${bundleName(version)}`, "data-act": "rollout" }, "Roll out…");
}

function assignedText(version) {
  return `assigned to ${count(version.nodes, "node")}`;
}

/** Returns the version that most nodes have; of several the newest. */
function assignedOf(versions) {
  const most = Math.max(...versions.map((one) => one.nodes));
  return most > 0 ? versions.find((one) => one.nodes === most) : null;
}

/** Returns the version to compare with: the assigned one, or the newest other one. */
function comparedWith(version, versions) {
  const assigned = assignedOf(versions);
  const others = versions.filter((one) => one.digest !== version.digest);
  return assigned && assigned.digest !== version.digest ? assigned : others[0];
}

async function loadVersions() {
  const { bundles: all } = await read("/api/bundles");
  const byName = new Map();
  for (const one of all) byName.set(one.name, [...(byName.get(one.name) ?? []), one]);
  return byName;
}

export function bundles(main) {
  const found = h("span.soft", { role: "status" });
  const list = h("div.waves");
  main.append(h("div.head", {}, h("h1", {}, "Bundles"), found), list);
  let isClosed = false;

  (async () => {
    const byName = await loadVersions().catch((error) => error);
    if (isClosed) return;
    if (byName instanceof Error) {
      list.append(h("p.bad", {}, byName.message));
      return;
    }
    found.textContent = count(byName.size, "bundle");
    list.replaceChildren(...[...byName].map(([name, versions]) => bundleCard(name, versions)));
    if (!byName.size) list.append(h("p.empty", {}, "No bundles yet. Store one with ", h("code", {}, "ccm fleet bundle push"), "."));
  })();
  return () => { isClosed = true; };
}

function bundleCard(name, versions) {
  const rows = versions.map((one, index) => [
    h("a.mono", { href: bundleLink(one) }, bundleName(one)),
    [index === 0 && "newest", one.nodes > 0 && "assigned"].filter(Boolean).join(", "),
    one.nodes ? h("a", { href: `#/nodes?q=${bundleName(one)}` }, count(one.nodes, "node")) : h("span.soft", {}, "no nodes"),
    size(one.size), when(one.stored), rolloutButton(one) || "",
  ]);
  return card(name, count(versions.length, "version"), table(`Versions of ${name}`, ["Version", "Status", "Nodes", "Size", "Stored", ""], rows));
}

export function bundle(main, name, digest) {
  const head = h("div.head", {}, h("h1", {}, `${name}@${digest.slice(0, 12)}`));
  const body = h("div.side");
  main.append(h("p.small", {}, h("a", { href: "#/bundles" }, "← All bundles")), head, body);
  let isClosed = false;

  (async () => {
    try {
      const [byName, found] = await Promise.all([loadVersions(), read(`/api/bundles/${encodeURIComponent(name)}/${digest}`)]);
      if (isClosed) return;
      const versions = byName.get(name) ?? [];
      if (found.bundle.nodes) head.append(h("span.badge", { "data-state": "stable" }, assignedText(found.bundle)));
      head.append(h("div.row.right", {}, rolloutButton(found.bundle) || ""));
      body.append(differences(found.bundle, versions), h("div.columns", {}, contents(found), users(found)));
    } catch (error) {
      if (!isClosed) body.append(h("p.bad", {}, error.message));
    }
  })();
  return () => { isClosed = true; };
}

function contents({ bundle: version, files }) {
  return card("Content", "", pairs([["Digest", h("span.mono", {}, version.digest)], ["Size", size(version.size)], ["Stored", when(version.stored)]]),
    table("Files", ["File", "Size"], files.map((file) => [h("span.mono", {}, file.name), size(file.size)])));
}

function users({ bundle: version, nodes }) {
  const shown = nodes.slice(0, MAX_NODES);
  return card("Nodes", count(version.nodes, "node"), nodes.length
    ? h("p", {}, shown.map((node, index) => [index ? ", " : "", h("a", { href: nodeLink(node) }, node)]),
      version.nodes > shown.length && [", ", h("a", { href: `#/nodes?q=${bundleName(version)}` }, "all")])
    : h("p.soft", {}, "Assigned to no node."));
}

/** Shows the differences from another version, which can be chosen. */
function differences(version, versions) {
  const others = versions.filter((one) => one.digest !== version.digest);
  const result = h("div.waves", { role: "status" });
  if (!others.length) return card("Differences", "", h("p.soft", {}, "There is no other version."));
  const choice = h("select", { id: "against" }, others.map((one) => h("option", { value: one.digest }, `${bundleName(one)}${one.nodes ? ` (${assignedText(one)})` : ""}`)));
  choice.value = comparedWith(version, versions).digest;

  async function compare() {
    const against = choice.value;
    result.replaceChildren(h("p.soft", {}, "Comparing…"));
    const found = await read(`/api/bundles/${encodeURIComponent(version.name)}/${version.digest}/diff?against=${against}`).catch((error) => error);
    if (choice.value !== against) return;
    result.replaceChildren(...(found instanceof Error ? [h("p.bad", {}, found.message)] : changes(found)));
  }

  choice.addEventListener("input", compare);
  compare();
  return card("Differences", "", h("div.tablebar", {}, h("label", { for: "against" }, "from"), choice), result);
}

function changes({ files, omitted }) {
  if (!files.length) return [h("p.soft", {}, "No differences.")];
  const colours = { added: "stable", removed: "failed", modified: "running" };
  return [
    ...files.map((file) => h("details", { open: true, "data-file": file.name },
      h("summary", {}, h("span.mono", {}, file.name), " ", h("span.badge", { "data-state": colours[file.change] }, file.change)),
      diffBlock(file.diff, `Differences of ${file.name}`))),
    omitted > 0 && h("p.soft", {}, `${count(omitted, "more file")} not shown: the difference is too long.`),
  ].filter(Boolean);
}
