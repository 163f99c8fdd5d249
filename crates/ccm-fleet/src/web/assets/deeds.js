// What can be done to nodes, one or many: pause, resume, ensure a resource. Every deed goes to all
// of them with one request, and equal answers are shown once.

import { ask, count, h, nodeLink, plain, toast } from "./dom.js";
import { act } from "./store.js";

/** Returns the buttons for a list of nodes. `done` is called after each deed. */
export function deeds(names, done = () => {}) {
  const whom = names.length === 1 ? names[0] : count(names.length, "node");
  const button = (verb, text, onclick) => h("button", { type: "button", "data-act": verb, onclick }, text);

  async function deed(path, body) {
    try {
      const said = await act(path, { nodes: names, ...body });
      const [first, ...more] = said.answers;
      if (!more.length && first.outcome === "changed") toast(`${whom}: ${first.text}`);
      else tell(`What ${whom} said`, said);
      done();
    } catch (error) {
      toast(error.message);
    }
  }

  return [
    button("pause", "Pause", async () => {
      const text = `${names.length === 1 ? "It changes" : "They change"} nothing until resumed.`;
      const reason = await ask({ title: `Pause ${whom}`, text, label: "Reason", yes: "Pause" });
      if (reason !== null) deed("/api/pause", { reason });
    }),
    button("resume", "Resume", () => deed("/api/resume", {})),
    button("ensure", "Ensure…", () => ensure(names, whom, done)),
  ];
}

/** Shows what nodes said: equal answers once, the worst first. */
function answers(said, isNoop = false) {
  const words = { no_answer: "no answer", ...(isNoop && { changed: "would change" }) };
  return h("ul.answers", {}, said.answers.map((one) => h("li", {},
    h("div.row", {}, h(`span.outcome.${plain(one.outcome)}`, {}, words[one.outcome] ?? one.outcome), h("span.soft", {}, who(one.nodes))),
    h("p", {}, one.text),
    one.diff && h("pre.diff", { tabindex: "0", "aria-label": `Diff of ${one.diff.node}` }, diffLines(one.diff.text)))));
}

function who(nodes) {
  if (nodes.length > 3) return `${count(nodes.length, "node")}: ${nodes.slice(0, 3).join(", ")}, …`;
  return nodes.flatMap((name, index) => [index ? ", " : "", h("a", { href: nodeLink(name) }, name)]);
}

function diffLines(text) {
  return text.replace(/\n$/, "").split("\n").map((line) => {
    if (/^(---|\+\+\+) /.test(line)) return h("span.soft", {}, `${line}\n`);
    const sort = { "+": "ins", "-": "del" }[line[0]];
    return sort ? h(sort, {}, `${line}\n`) : `${line}\n`;
  });
}

/** Opens a dialog of its own; it is gone when closed. */
function open(title, ...content) {
  const made = h("dialog.wide", { "aria-labelledby": "deed-title" }, h("h2", { id: "deed-title" }, title), content);
  made.addEventListener("close", () => made.remove());
  addEventListener("hashchange", () => made.close(), { once: true });
  document.body.append(made);
  made.showModal();
  return made;
}

function tell(title, said) {
  const made = open(title, answers(said), h("div.row", {}, h("button.main", { type: "button", onclick: () => made.close() }, "Close")));
}

/** What people usually want of each type. */
const TYPES = {
  file: { ensure: ["present", "absent", "directory"], name: "/etc/motd", properties: "content: \"hello\\n\"\nowner: root\ngroup: root\nmode: 0644" },
  package: { ensure: ["present", "latest", "absent"], name: "nginx", properties: "" },
  service: { ensure: ["running", "stopped"], name: "nginx", properties: "enable: true" },
  exec: { ensure: [], name: "/usr/bin/true", properties: "" },
  archive: { ensure: ["present", "absent"], name: "/srv/app.tgz", properties: "url: \nowner: root\ngroup: root" },
};

/** Reads lines of names and values. What looks like JSON is; everything else is text. */
export function readProperties(text) {
  const read = {};
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`line ${index + 1}: expected "name: value"`);
    read[line.slice(0, at).trim()] = readValue(line.slice(at + 1).trim(), index + 1);
  }
  return read;
}

function readValue(text, number) {
  if (!/^(["[{]|(true|false|null|-?(0|[1-9]\d*))$)/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`line ${number}: ${text} begins like JSON and is none`);
  }
}

/** Asks for a resource, shows what would change, and only then lets it be done. */
function ensure(names, whom, done) {
  const type = h("select", { id: "deed-type", autofocus: true }, Object.keys(TYPES).map((word) => h("option", { value: word }, word)));
  const name = h("input", { id: "deed-name", required: true, autocomplete: "off", spellcheck: "false" });
  const words = h("datalist", { id: "deed-words" });
  const wish = h("input", { id: "deed-ensure", list: "deed-words", autocomplete: "off", spellcheck: "false" });
  const properties = h("textarea", { id: "deed-properties", rows: "5", spellcheck: "false", "aria-describedby": "deed-hint" });
  const said = h("div", { role: "status" });
  const look = h("button.main", { "data-act": "look" }, "What would change?");
  const go = h("button", { type: "button", "data-act": "go", disabled: true, onclick: () => send(false) }, `Do it on ${whom}`);
  const field = (label, input) => h("div.field", {}, h("label", { for: input.id }, label), input);
  const form = h("form", { method: "dialog" },
    h("div.fields", {}, field("Type", type), field("Name", name), field("Ensure", wish)),
    field("Properties", properties), words,
    h("p.soft.small", { id: "deed-hint" }, "One per line, as in \"mode: 0644\". A value that begins with \", [ or { is JSON."),
    said,
    h("div.row", {}, h("button", { type: "button", onclick: () => made.close() }, "Close"), look, go));
  const made = open(`Ensure a resource on ${whom}`, form);
  let last = "";
  let isSent = false;

  /** Puts what is usual for the type into fields that nobody has filled in. */
  function suggest() {
    const usual = TYPES[type.value];
    name.placeholder = usual.name;
    words.replaceChildren(...usual.ensure.map((word) => h("option", { value: word })));
    wish.value = usual.ensure[0] ?? "";
    if (!properties.value.trim() || properties.value === last) properties.value = usual.properties;
    last = usual.properties;
  }

  /** Lets what was looked at be done, or not: the next step is the one that stands out. */
  function allow(isAllowed) {
    go.disabled = !isAllowed;
    go.classList.toggle("main", isAllowed);
    look.classList.toggle("main", !isAllowed);
  }

  function say(...content) {
    said.replaceChildren(...content);
  }

  async function send(isNoop) {
    if (isSent) return;
    let request;
    try {
      const given = { name: name.value.trim(), ...(wish.value.trim() && { ensure: wish.value.trim() }), ...readProperties(properties.value) };
      request = { protocol: "io.choria.ccm.v1.resource.ensure.request", type: type.value, properties: given };
    } catch (error) {
      say(h("p.bad", {}, error.message));
      return;
    }
    isSent = look.disabled = true;
    allow(false);
    say(h("p.soft", {}, isNoop ? "Asking what would change…" : "Doing it…"));
    try {
      const answer = await act(`/api/ensure?noop=${isNoop}&diff=true`, { nodes: names, request });
      say(h("h3", {}, isNoop ? "What would change" : "Done"), answers(answer, isNoop));
      allow(isNoop);
      if (!isNoop) done();
    } catch (error) {
      say(h("p.bad", {}, error.message));
    }
    isSent = look.disabled = false;
    if (isNoop && !go.disabled) go.focus();
  }

  type.addEventListener("input", suggest);
  // What was looked at is no longer what would be done.
  form.addEventListener("input", () => allow(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(true);
  });
  suggest();
}
