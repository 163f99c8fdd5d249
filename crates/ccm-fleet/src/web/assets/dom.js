// Elements, times and words. Text always goes in as text: nothing a node says becomes markup.

/** Makes an element: h("a.name", {href: "#/"}, "text", child). */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name || "div");
  if (classes.length) made.className = classes.join(" ");
  return fill(set(made, props), children);
}

/** Makes an element of a drawing. */
export function svg(tag, props, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(set(made, props), children);
}

function set(made, props) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  return made;
}

function fill(made, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : String(child));
  }
  return made;
}

/** Writes a text where it differs: what stays as it is costs no layout. */
export function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

export function badge(state) {
  return h("span.badge", { "data-state": state }, state);
}

export function outcome(word) {
  return h(`span.outcome.${plain(word)}`, {}, word || "–");
}

/** Returns a word that may be the name of a class. */
export function plain(word) {
  return String(word ?? "").replace(/[^a-z]/g, "") || "none";
}

/** Returns a text in which bundles go by the name that people give them, not by their address. */
export function brief(text) {
  return String(text ?? "").replace(/obj:\/\/[^/\s]+\/([^/\s]+)\/([0-9a-f]{12})[0-9a-f]{52}/g, "$1@$2");
}

const SPANS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Tells how long ago a time is. */
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

/** Lets times that are shown grow older. */
setInterval(() => {
  for (const shown of document.querySelectorAll("time[datetime]")) {
    put(shown, ago(shown.dateTime));
  }
}, 5000);

// Made once: to make one takes longer than to draw a row.
const CLOCK = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function clock(time) {
  return CLOCK.format(new Date(time));
}

export function took(millis) {
  return millis < 1000 ? `${millis} ms` : `${(millis / 1000).toFixed(1)} s`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function nodeLink(name) {
  return `#/nodes/${encodeURIComponent(name)}`;
}

/** Makes a list of names and values; what is empty is left out. */
export function pairs(entries) {
  return h("dl", {}, entries.filter(([, value]) => value && value.length !== 0)
    .map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

export function card(title, hint, ...content) {
  return h("section.card", { "aria-label": title }, h("h2", {}, title, hint && h("span.soft", {}, hint)), content);
}

/** Makes a table that is scrolled by itself where it is too wide. */
export function table(label, titles, rows) {
  return h("div.scroll", { tabindex: "0", role: "group", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

/** Fills a place anew only where what it shows has changed, so that nobody loses the focus. */
export function filler(place) {
  let last;
  return (seen, make) => {
    const key = JSON.stringify(seen);
    if (key === last) return;
    last = key;
    place.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  };
}

/** Runs a function now, and at most once in so many milliseconds; the last wish is always met. */
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

/** Runs a function at most once per frame, however often it is asked for. */
export function framed(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
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

/** Asks for a word or a confirmation, and says what was wrong with the last; resolves to the text, or null. */
export function ask({ title, problem, text, label, secret, yes = "OK" }) {
  const dialog = document.getElementById("ask");
  const input = document.getElementById("ask-input");
  document.getElementById("ask-title").textContent = title;
  const wrong = document.getElementById("ask-problem");
  wrong.textContent = problem ?? "";
  wrong.hidden = !problem;
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
