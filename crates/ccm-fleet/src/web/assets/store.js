// What the page knows, kept current by one stream. Views subscribe and draw; nobody polls.
//
// The stream is read with fetch, because an EventSource can't carry a token. Each message says
// everything that is new since the last one; "resync" says to read everything again.

/** The states of nodes, the worst first. */
export const STATES = ["failed", "drifted", "offline", "paused", "running", "stable"];

const KEPT_EVENTS = 1000;
const listeners = new Set();

export const store = {
  nodes: new Map(),
  /** Names of all nodes in order; another array when somebody came or went. */
  names: [],
  states: {},
  rollouts: new Map(),
  events: [],
  skipped: 0,
  summary: null,
  link: "wait",
};

let token = sessionStorage.getItem("token") ?? "";
let mark = null;

export function setToken(text) {
  token = text.trim();
  if (token) sessionStorage.setItem("token", token);
  else sessionStorage.removeItem("token");
}

export function hasToken() {
  return token !== "";
}

/** Reports whether the server has a token: then nothing is read without it. */
export function needsToken() {
  return document.documentElement.dataset.token === "required";
}

/** Reports whether whoever looks may also act. */
export function canAct() {
  return Boolean(store.summary?.actions) && hasToken();
}

/** Calls back with what changed: names of nodes, events with the newest first, ids of rollouts; or all, summary, link. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(change) {
  for (const listener of [...listeners]) listener(change);
}

function setLink(link) {
  if (store.link === link) return;
  store.link = link;
  tell({ link: true });
}

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Refused(response.status, body.error ?? `${path}: ${response.status}`);
  }
  return response;
}

export async function read(path) {
  return (await request(path)).json();
}

export async function act(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" } };
  return (await request(path, { ...options, body: JSON.stringify(body ?? {}) })).json();
}

/** Reads everything. */
async function load() {
  const summary = await read("/api/summary");
  const nodes = new Map();
  let after = "";
  do {
    const page = await read(`/api/nodes?limit=5000${after && `&after=${encodeURIComponent(after)}`}`);
    for (const row of page.nodes) nodes.set(row.name, row);
    after = page.next ?? "";
  } while (after);
  const [{ rollouts }, { events }] = await Promise.all([
    read("/api/rollouts"),
    read(`/api/events?limit=${KEPT_EVENTS}`),
  ]);
  store.summary = summary;
  store.states = summary.totals.states;
  store.nodes = nodes;
  store.names = [...nodes.keys()].sort();
  store.rollouts = new Map(rollouts.map((one) => [one.id, one]));
  store.events = events;
  store.skipped = 0;
  mark = summary.mark;
  tell({ all: true });
}

/** Reads the time line again; it is made of all events, also those the stream skipped. */
export async function refreshSummary() {
  store.summary = await read("/api/summary");
  tell({ summary: true });
}

function hear(news) {
  const before = store.nodes.size;
  for (const row of news.nodes) store.nodes.set(row.name, row);
  if (store.nodes.size !== before) store.names = [...store.nodes.keys()].sort();
  for (const one of news.rollouts) store.rollouts.set(one.id, one);
  const seen = store.events[0]?.number ?? -1;
  const fresh = news.events.filter((event) => event.number > seen).reverse();
  if (fresh.length) store.events = [...fresh, ...store.events].slice(0, KEPT_EVENTS);
  store.skipped += news.skipped;
  store.states = news.states;
  tell({
    nodes: news.nodes.map((row) => row.name),
    events: fresh,
    rollouts: news.rollouts.map((one) => one.id),
  });
}

/** Reads the stream until it breaks or everything must be read again. */
async function follow() {
  const response = await request(`/api/stream?after=${encodeURIComponent(mark)}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const fields = parse(part);
      if (fields.id) mark = fields.id;
      if (fields.event === "hello") setLink("live");
      else if (fields.event === "news") hear(JSON.parse(fields.data));
      else if (fields.event === "resync") {
        await reader.cancel();
        return;
      }
    }
  }
}

function parse(part) {
  const fields = {};
  for (const line of part.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return fields;
}

/** Keeps the store current for ever. `askToken` asks for the token, and says what was wrong with the last. */
export async function run(askToken) {
  let wait = 500;
  for (;;) {
    if (needsToken() && !hasToken()) await askToken("");
    try {
      await load();
      wait = 500;
      await follow();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        setLink("lost");
        setToken("");
        await askToken("This is not the token of this server.");
        continue;
      }
    }
    setLink("lost");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}
