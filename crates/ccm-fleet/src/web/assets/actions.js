// Actions on one or many nodes: check the assignment, pause, resume, ensure a resource. Each is a single request for
// all nodes; equal replies are shown once.

import { button, className, count, diffBlock, h, nodeLink, showPrompt, toast } from "./dom.js";
import { post } from "./store.js";

/** Returns the buttons for a list of nodes. `done` is called after each action. */
export function actionButtons(names, done = () => {}) {
  const target = names.length === 1 ? names[0] : count(names.length, "node");
  async function send(path, body) {
    try {
      const reply = await post(path, { nodes: names, ...body });
      const [first, ...more] = reply.replies;
      if (!more.length && first.outcome === "changed") toast(`${target}: ${first.text}`);
      else showReplies(`Replies of ${target}`, reply);
      done();
    } catch (error) {
      toast(error.message);
    }
  }

  return [
    button("Check", "check", () => send("/api/check", {})),
    button("Pause", "pause", async () => {
      const text = "No changes are applied until resumed.";
      const reason = await showPrompt({ title: `Pause ${target}`, text, label: "Reason", yes: "Pause" });
      if (reason !== null) send("/api/pause", { reason });
    }),
    button("Resume", "resume", () => send("/api/resume", {})),
    button("Ensure…", "ensure", () => ensure(names, target, done)),
  ];
}

/** Returns the list of replies, the worst first. */
function replyList(reply) {
  const words = { no_reply: "no reply", would_change: "would change" };
  const outputs = (reply.outputs ?? []).map((one) => h("li", {},
    h("div.row", {}, h("b", {}, "Output"), h("span.soft", {}, nodeNames(one.nodes))), h("pre.output", {}, one.text)));
  return h("ul.replies", {}, reply.replies.map((one) => h("li", {},
    h("div.row", {}, h(`span.outcome.${className(one.outcome)}`, {}, words[one.outcome] ?? one.outcome), h("span.soft", {}, nodeNames(one.nodes))),
    h("p", {}, one.text),
    one.diff && diffBlock(one.diff.text, `Diff of ${one.diff.node}`))), outputs);
}

function nodeNames(nodes) {
  if (nodes.length > 3) return `${count(nodes.length, "node")}: ${nodes.slice(0, 3).join(", ")}, …`;
  return nodes.flatMap((name, index) => [index ? ", " : "", h("a", { href: nodeLink(name) }, name)]);
}

/** Opens a new dialog, which is removed when closed. */
function openDialog(title, ...content) {
  const dialog = h("dialog.wide", { "aria-labelledby": "action-title" }, h("h2", { id: "action-title" }, title), content);
  dialog.addEventListener("close", () => dialog.remove());
  addEventListener("hashchange", () => dialog.close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function showReplies(title, reply) {
  const dialog = openDialog(title, replyList(reply), h("div.row", {}, h("button.main", { type: "button", onclick: () => dialog.close() }, "Close")));
}

/** Suggested values for each type. */
const TYPES = {
  file: { ensure: ["present", "absent", "directory"], name: "/etc/motd", properties: "content: \"hello\\n\"\nowner: root\ngroup: root\nmode: 0644" },
  package: { ensure: ["present", "latest", "absent"], name: "nginx", properties: "" },
  service: { ensure: ["running", "stopped"], name: "nginx", properties: "enable: true" },
  exec: { ensure: [], name: "/usr/bin/true", properties: "" },
  archive: { ensure: ["present", "absent"], name: "/srv/app.tgz", properties: "url: \nowner: root\ngroup: root" },
};

/** Parses lines of names and values. A value that looks like JSON is parsed as JSON; others are text. */
function parseProperties(text) {
  const properties = {};
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`line ${index + 1}: expected "name: value"`);
    properties[line.slice(0, at).trim()] = parseValue(line.slice(at + 1).trim(), index + 1);
  }
  return properties;
}

function parseValue(text, number) {
  if (!/^(["[{]|(true|false|null|-?(0|[1-9]\d*))$)/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`line ${number}: invalid JSON: ${text}`);
  }
}

/** Opens the form for a resource, which must be previewed before it can be applied. */
function ensure(names, target, done) {
  const type = h("select", { id: "action-type", autofocus: true }, Object.keys(TYPES).map((word) => h("option", { value: word }, word)));
  const name = h("input", { id: "action-name", required: true, autocomplete: "off", spellcheck: "false" });
  const words = h("datalist", { id: "action-words" });
  const state = h("input", { id: "action-ensure", list: "action-words", autocomplete: "off", spellcheck: "false" });
  const properties = h("textarea", { id: "action-properties", rows: "5", spellcheck: "false", "aria-describedby": "action-hint" });
  const result = h("div", { role: "status" });
  const previewButton = h("button.main", { "data-act": "preview" }, "Preview");
  const applyButton = h("button", { type: "button", "data-act": "apply", disabled: true, onclick: () => send(false) }, `Apply to ${target}`);
  const field = (label, input) => h("div.field", {}, h("label", { for: input.id }, label), input);
  const form = h("form", { method: "dialog" },
    h("div.fields", {}, field("Type", type), field("Name", name), field("Ensure", state)),
    field("Properties", properties), words,
    h("p.soft.small", { id: "action-hint" }, "One per line, as in \"mode: 0644\". A value that begins with \", [ or { is JSON."),
    result,
    h("div.row", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Close"), previewButton, applyButton));
  const dialog = openDialog(`Ensure a resource on ${target}`, form);
  let lastSuggestion = "";
  let isSent = false;

  /** Fills empty fields with the suggestions of the type. */
  function suggest() {
    const suggested = TYPES[type.value];
    name.placeholder = suggested.name;
    words.replaceChildren(...suggested.ensure.map((word) => h("option", { value: word })));
    state.value = suggested.ensure[0] ?? "";
    if (!properties.value.trim() || properties.value === lastSuggestion) properties.value = suggested.properties;
    lastSuggestion = suggested.properties;
  }

  /** Enables or disables the apply button, and highlights the next step. */
  function allowApply(isAllowed) {
    applyButton.disabled = !isAllowed;
    applyButton.classList.toggle("main", isAllowed);
    previewButton.classList.toggle("main", !isAllowed);
  }

  function showResult(...content) {
    result.replaceChildren(...content);
  }

  async function send(isNoop) {
    if (isSent) return;
    let request;
    try {
      const given = { name: name.value.trim(), ...(state.value.trim() && { ensure: state.value.trim() }), ...parseProperties(properties.value) };
      request = { protocol: "io.choria.ccm.v1.resource.ensure.request", type: type.value, properties: given };
    } catch (error) {
      showResult(h("p.bad", {}, error.message));
      return;
    }
    isSent = previewButton.disabled = true;
    allowApply(false);
    showResult(h("p.soft", {}, isNoop ? "Requesting a preview…" : "Applying…"));
    try {
      const reply = await post(`/api/ensure?noop=${isNoop}&diff=true`, { nodes: names, request });
      showResult(h("h3", {}, isNoop ? "Preview" : "Done"), replyList(reply));
      allowApply(isNoop);
      if (!isNoop) done();
    } catch (error) {
      showResult(h("p.bad", {}, error.message));
    }
    isSent = previewButton.disabled = false;
    if (isNoop && !applyButton.disabled) applyButton.focus();
  }

  type.addEventListener("input", suggest);
  // The preview is no longer valid.
  form.addEventListener("input", () => allowApply(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(true);
  });
  suggest();
}
