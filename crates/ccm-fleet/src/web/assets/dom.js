// DOM helpers: elements, times and texts. Texts of nodes are always inserted as text, never as markup.

/** Creates an element: h("a.name", {href: "#/"}, "text", child). */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(set(element, props), children);
}

/** Creates an SVG element. */
export function svg(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(set(element, props), children);
}

function set(element, props) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  return element;
}

function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Sets a text if it differs, to avoid needless layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function badge(state) {
  return h("span.badge", { "data-state": state }, state);
}

export function outcome(word) {
  return h(`span.outcome.${className(word)}`, {}, word || "–");
}

/** Returns a word that is valid as a class name. */
export function className(word) {
  return String(word ?? "").replace(/[^a-z]/g, "") || "none";
}

/** Returns a text with bundle sources shortened to NAME@DIGEST. */
export function shorten(text) {
  return String(text ?? "").replace(/obj:\/\/[^/\s]+\/([^/\s]+)\/([0-9a-f]{12})[0-9a-f]{52}/g, "$1@$2");
}

const SPANS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Returns the age of a time as text. */
export function ago(time) {
  if (!time) return "never";
  const seconds = Math.max(0, Math.round((Date.now() - new Date(time)) / 1000));
  if (seconds < 5) return "just now";
  const [unit, length] = SPANS.find(([, span]) => seconds >= span);
  return `${Math.floor(seconds / length)}${unit} ago`;
}

export function when(time) {
  if (!time) return h("span.soft", {}, "never");
  return h("time", { datetime: time, title: new Date(time).toLocaleString() }, ago(time));
}

/** Updates the ages that are shown. */
setInterval(() => {
  for (const shown of document.querySelectorAll("time[datetime]")) {
    setText(shown, ago(shown.dateTime));
  }
}, 5000);

// Created once, because it is expensive.
const CLOCK = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function clock(time) {
  return CLOCK.format(new Date(time));
}

export function duration(millis) {
  return millis < 1000 ? `${millis} ms` : `${(millis / 1000).toFixed(1)} s`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function nodeLink(name) {
  return `#/nodes/${encodeURIComponent(name)}`;
}

/** Creates a list of names and values; empty values are left out. */
export function pairs(entries) {
  return h("dl", {}, entries.filter(([, value]) => value && value.length !== 0)
    .map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

export function card(title, hint, ...content) {
  return h("section.card", { "aria-label": title }, h("h2", {}, title, hint && h("span.soft", {}, hint)), content);
}

/** Creates a button. `verb` identifies its action. */
export function button(text, verb, onclick, props) {
  return h("button", { type: "button", "data-act": verb, onclick, ...props }, text);
}

/** Shows a unified diff. */
export function diffBlock(text, label) {
  return h("pre.diff", { tabindex: "0", role: "group", "aria-label": label }, text.replace(/\n$/, "").split("\n").map((line) => {
    if (/^(---|\+\+\+) /.test(line)) return h("span.soft", {}, `${line}\n`);
    const tag = { "+": "ins", "-": "del" }[line[0]];
    return tag ? h(tag, {}, `${line}\n`) : `${line}\n`;
  }));
}

/** Shows what a command printed, or a difference of files, below a text. */
export function withOutput(text, output) {
  return output ? h("div", {}, text, h("pre.output", {}, output)) : text;
}

/** Allows line breaks after the slashes of a name. */
export function path(text) {
  return text.split(/(?<=\/)/).flatMap((part) => [part, h("wbr")]);
}

/** Returns the name of a bundle with its abbreviated digest. */
export function bundleName({ name, digest }) {
  return `${name}@${digest.slice(0, 12)}`;
}

export function bundleLink({ name, digest }) {
  return `#/bundles/${encodeURIComponent(name)}/${digest}`;
}

/** Creates a table that scrolls horizontally if it is too wide. */
export function table(label, titles, rows) {
  return h("div.scroll", { tabindex: "0", role: "group", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

/** Returns a function that replaces the content of an element only if its data changed, which keeps the focus. */
export function filler(target) {
  let last;
  return (data, create) => {
    const key = JSON.stringify(data);
    if (key === last) return;
    last = key;
    target.replaceChildren(...[create()].flat(Infinity).filter(Boolean));
  };
}

/** Limits calls of a function to one per interval; the last call is never lost. */
export function throttled(run, millis) {
  let last = -Infinity;
  let timer = null;
  return () => {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      run();
    }, Math.max(0, last + millis - performance.now()));
  };
}

/** Limits calls of a function to one per animation frame. */
export function framed(draw) {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
    });
  };
}

let hide;

export function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => { box.hidden = true; }, 5000);
}

/** Prompts for a text or a confirmation, and shows the problem of the last one; resolves to the text, or null. */
export function showPrompt({ title, problem, text, label, secret, yes = "OK" }) {
  const dialog = document.getElementById("ask");
  const input = document.getElementById("ask-input");
  document.getElementById("ask-title").textContent = title;
  const alertBox = document.getElementById("ask-problem");
  alertBox.textContent = problem ?? "";
  alertBox.hidden = !problem;
  document.getElementById("ask-text").textContent = text ?? "";
  document.getElementById("ask-label").textContent = label ?? "";
  document.getElementById("ask-yes").textContent = yes;
  input.hidden = !label;
  input.type = secret ? "password" : "text";
  input.value = "";
  dialog.returnValue = "no";
  document.getElementById("ask-no").onclick = () => dialog.close("no");
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      done(dialog.returnValue === "yes" ? input.value : null);
      input.value = "";
    }, { once: true });
  });
}
