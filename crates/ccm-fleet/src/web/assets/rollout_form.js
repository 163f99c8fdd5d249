// Start of a rollout: a form, the plan that it results in, and the start of exactly this plan.

import { bundleName, button, card, count, h, nodeLink, pairs, toast } from "./dom.js";
import { can, post, read } from "./store.js";
import { limits } from "./rollouts.js";

/** Maximum number of nodes that a wave names. */
const MAX_NODES = 100;

/** Fields of the form: name, label, and hint. Lists are separated by commas. */
const SELECTION = [
  ["nodes", "Nodes", "web1, /^db/", "names or /regular expressions/"],
  ["groups", "Groups", "web", "all of them"],
  ["facts", "Facts", "host.info.platform=debian", "all of them; label.NAME for labels"],
  ["select", "Expression", "Labels.role == \"web\"", "over Facts, Labels, Groups and Identity"],
];
const WAVES = [
  ["canary", "Canary nodes", "0", "none of them may fail"],
  ["waves", "Waves", "10%, 50%, 100%", "numbers of nodes, or cumulative percentages"],
  ["order_by", "Order by", "", "label or fact"],
  ["bake", "Bake time", "0s", "after each wave"],
  ["parallel", "Parallel nodes", "", "at the same time; no limit if empty"],
];
const LIMITS = [
  ["max_failures", "Maximum failures", "0", "halts above this number"],
  ["max_failures_percent", "Maximum failures in percent", "", "of finished nodes"],
  ["max_unreachable", "Maximum unreachable nodes", "", "number or percentage"],
  ["node_timeout", "Node timeout", "10m", "without a report"],
  ["deadline", "Deadline", "2h", "a time or a duration from now; no node starts after it"],
  ["governor", "Governor", "", "Choria governor that limits concurrent runs"],
  ["governor_timeout", "Governor timeout", "5m", "wait of a run for its slot"],
];

/** Fields that are numbers. */
const NUMBERS = ["canary", "max_failures", "parallel"];
const LISTS = ["nodes", "groups", "facts", "waves"];

export function rolloutForm(main, params) {
  main.append(h("p.small", {}, h("a", { href: "#/rollouts" }, "← All rollouts")), h("div.head", {}, h("h1", {}, "Start a rollout")));
  if (!can("roll-out")) {
    main.append(h("p.empty", {}, "This needs a token with the role roll-out."));
    return () => {};
  }
  const inputs = new Map();
  const bundle = h("select", { id: "form-bundle", required: true });
  const all = h("input", { type: "checkbox", id: "form-all" });
  const health = h("input", { type: "checkbox", id: "form-health_gate" });
  const noop = h("input", { type: "checkbox", id: "form-noop" });
  const data = h("textarea", { id: "form-data", rows: 4, placeholder: "port: 8080", spellcheck: "false" });
  const result = h("div", { role: "status" });
  const field = (label, input, hint) => h("div.field", {}, h("label", { for: input.id }, label), input, hint && h("span.soft.small", {}, hint));
  const tick = (input, label) => h("div.row", {}, input, h("label", { for: input.id }, label));
  const fields = (list) => h("div.fields.even", {}, list.map(([name, label, example, hint]) => {
    const input = h("input", { id: `form-${name}`, placeholder: example, autocomplete: "off", spellcheck: "false", value: params.get(name)?.replaceAll(",", ", ") ?? "" });
    inputs.set(name, input);
    return field(label, input, hint);
  }));
  const planButton = h("button.main", { "data-act": "plan" }, "Show the plan");
  const startButton = button("Start", "start", start, { disabled: true });
  const form = h("form", { method: "dialog" },
    card("What", "", h("div.fields.even", {}, field("Bundle", bundle), field("Data", data, "JSON or YAML; overrides the manifest's")), tick(noop, "Only report what would change (noop)")),
    card("Nodes", "", tick(all, "All nodes"), fields(SELECTION)),
    card("Waves and limits", "", fields([...WAVES, ...LIMITS]), tick(health, "No node may be unhealthy before the next wave")),
    h("div.row", {}, planButton, startButton), result);
  main.append(form);
  let planned = null;
  let isSent = false;

  /** Returns the request of the form. */
  function request() {
    const given = (list) => Object.fromEntries(list.map(([name]) => [name, inputs.get(name).value.trim()]).filter(([, text]) => text)
      .map(([name, text]) => {
        if (LISTS.includes(name)) return [name, text.split(",").map((one) => one.trim()).filter(Boolean)];
        if (!NUMBERS.includes(name)) return [name, text];
        if (!/^\d+$/.test(text)) throw new Error(`${name.replace("_", " ")}: expected a number, found ${text}`);
        return [name, Number(text)];
      }));
    const settings = { ...given([...WAVES, ...LIMITS]), health_gate: health.checked };
    // A percentage may be written without its sign.
    if (/^[\d.]+$/.test(settings.max_failures_percent)) settings.max_failures_percent += "%";
    return { bundle: bundle.value, selection: { ...given(SELECTION), all: all.checked }, settings, data: data.value, noop: noop.checked };
  }

  /** Keeps or drops the plan that may be started, and highlights the next step. */
  function setPlan(plan) {
    planned = plan;
    startButton.disabled = !plan;
    startButton.classList.toggle("main", Boolean(plan));
    planButton.classList.toggle("main", !plan);
  }

  /** Sends one request at a time. */
  async function send(path, body, text) {
    isSent = planButton.disabled = startButton.disabled = true;
    result.replaceChildren(h("p.soft", {}, text));
    try {
      return await post(path, body);
    } catch (error) {
      result.replaceChildren(h("p.bad", {}, error.message));
      return null;
    } finally {
      isSent = planButton.disabled = false;
    }
  }

  async function showPlan() {
    if (isSent) return;
    setPlan(null);
    let body;
    try {
      body = request();
    } catch (error) {
      result.replaceChildren(h("p.bad", {}, error.message));
      return;
    }
    const found = await send("/api/rollouts/plan", body, "Planning…");
    if (!found) return;
    result.replaceChildren(...planCards(found));
    // What is started has the deadline that was shown, not one counted from the start.
    const settings = { ...body.settings, ...(found.settings.deadline && { deadline: found.settings.deadline }) };
    setPlan(found.refusal ? null : { ...body, settings, bundle: `${found.bundle.name}@${found.bundle.digest}`, plan: found.digest });
    if (planned) startButton.focus();
  }

  async function start() {
    if (isSent || !planned) return;
    const started = await send("/api/rollouts", planned, "Starting…");
    setPlan(null);
    if (!started) return;
    toast(`Rollout ${started.id} has started.`);
    location.hash = `#/rollouts/${started.id}`;
  }

  async function loadBundles() {
    const found = await read("/api/bundles").catch((error) => error);
    if (found instanceof Error) {
      result.replaceChildren(h("p.bad", {}, found.message));
      return;
    }
    bundle.replaceChildren(...found.bundles.map((one) => h("option", { value: bundleName(one) }, `${bundleName(one)}${one.nodes ? ` (${count(one.nodes, "node")})` : ""}`)));
    const wanted = params.get("bundle");
    if (found.bundles.some((one) => bundleName(one) === wanted)) bundle.value = wanted;
    if (!found.bundles.length) result.replaceChildren(h("p.soft", {}, "There are no bundles. Store one with ", h("code", {}, "ccm fleet bundle push"), "."));
  }

  // The plan that is shown is no longer that of the form.
  form.addEventListener("input", () => setPlan(null));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    showPlan();
  });
  loadBundles();
  return () => setPlan(null);
}

/** Shows a plan: waves with their nodes, what is left out, and why it can't be started. */
function planCards(found) {
  const { plan, settings } = found;
  const offline = new Set(found.offline);
  const total = plan.waves.reduce((sum, wave) => sum + wave.nodes.length, 0);
  const name = (node) => [h("a", { href: nodeLink(node) }, node), offline.has(node) && h("span.soft", {}, " (offline)")];
  const names = (nodes) => [nodes.slice(0, MAX_NODES).map((node, index) => [index ? ", " : "", name(node)]), nodes.length > MAX_NODES && ` and ${nodes.length - MAX_NODES} more`];
  return [
    card("Plan", `${bundleName(found.bundle)} to ${count(total, "node")} in ${count(plan.waves.length, "wave")}`,
      found.refusal && h("p.bad.refusal", { role: "alert" }, `This server does not start it: ${found.refusal}`),
      h("ol.plan", {}, plan.waves.map((wave) => h("li", { "data-wave": wave.name }, h("b", {}, wave.name), h("span.soft", {}, ` ${count(wave.nodes.length, "node")}`), h("p", {}, names(wave.nodes))))),
      pairs([
        ["Selection", h("span.mono", {}, found.selection.join(" "))],
        ["Budget", `at most ${limits(settings.budget)}`],
        ["Deadline", settings.deadline && `no node starts after ${settings.deadline}`],
        ["Governor", settings.governor?.name],
        ["Data", Object.keys(found.data ?? {}).length > 0 && h("pre.small", {}, JSON.stringify(found.data, null, 2))],
        ["Mode", found.noop ? "noop: nodes only report what would change" : "apply"],
        ["Signature", found.signed ? "signed with the key of this server" : "not signed"],
        ["Offline", offline.size && `${count(offline.size, "node")}: they converge when they return`],
        ["Left out", plan.left_out?.map((left) => h("div", {}, `${left.node}: ${left.reason}`))],
        ["Not decided", found.undecided.map((one) => h("div", {}, `${one.node}: ${one.reason}`))],
        ["Unreadable", found.unreadable && count(found.unreadable, "record")],
      ])),
  ];
}
