// Store: the state of the page, kept up to date by one stream of server-sent events. Views subscribe and draw;
// nothing polls.
//
// The stream is read with fetch, because an EventSource can't send a token. Each message has everything that is new
// since the last one; "resync" means that everything must be loaded again.

/** States of nodes, the worst first. */
export const STATES = ["failed", "drifted", "offline", "paused", "running", "stable"];

const MAX_EVENTS = 1000;
const listeners = new Set();

export const store = {
  nodes: new Map(),
  /** Sorted names of all nodes; replaced when nodes are added or removed. */
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

/** Reports whether the server requires a token. */
export function needsToken() {
  return document.documentElement.dataset.token === "required";
}

/** Roles of tokens; each includes the ones before it. */
const ROLES = ["read", "ask", "roll-out"];

/** Reports whether the token permits what a role permits. */
export function can(role) {
  return ROLES.indexOf(store.summary?.role) >= ROLES.indexOf(role);
}

/** Returns why the server refuses a token, or nothing. A server that can't be reached refuses nothing. */
export async function refusalOf(text) {
  // Other characters can't be sent in a header.
  if (!/^[\x21-\x7e]+$/.test(text.trim())) return "Wrong token.";
  const headers = { authorization: `Bearer ${text.trim()}` };
  const response = await fetch("/api/summary", { headers, cache: "no-store" }).catch(() => null);
  return response?.status === 401 ? "Wrong token." : "";
}

/** Calls `listener` with changes: names of nodes, events (the newest first), ids of rollouts; or all, summary, link. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify(change) {
  for (const listener of [...listeners]) listener(change);
}

function setLink(link) {
  if (store.link === link) return;
  store.link = link;
  notify({ link: true });
}

/** Shows why the server waits for NATS, or null. */
function setNatsWait(reason) {
  store.summary.nats_wait = reason;
  notify({ link: true });
}

export class ApiError extends Error {
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
    throw new ApiError(response.status, body.error ?? `${path}: ${response.status}`);
  }
  return response;
}

export async function read(path) {
  return (await request(path)).json();
}

export async function post(path, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" } };
  return (await request(path, { ...options, body: JSON.stringify(body ?? {}) })).json();
}

/** Loads everything. */
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
    read(`/api/events?limit=${MAX_EVENTS}`),
  ]);
  store.summary = summary;
  store.states = summary.totals.states;
  store.nodes = nodes;
  store.names = [...nodes.keys()].sort();
  store.rollouts = new Map(rollouts.map((one) => [one.id, one]));
  store.events = events;
  store.skipped = 0;
  mark = summary.mark;
  notify({ all: true });
}

/** Loads the timeline again; it counts all events, including those the stream skipped. */
export async function refreshSummary() {
  store.summary = await read("/api/summary");
  notify({ summary: true });
}

function apply(changes) {
  const before = store.nodes.size;
  for (const row of changes.nodes) store.nodes.set(row.name, row);
  if (store.nodes.size !== before) store.names = [...store.nodes.keys()].sort();
  for (const one of changes.rollouts) store.rollouts.set(one.id, one);
  const latest = store.events[0]?.number ?? -1;
  const fresh = changes.events.filter((event) => event.number > latest).reverse();
  if (fresh.length) store.events = [...fresh, ...store.events].slice(0, MAX_EVENTS);
  store.skipped += changes.skipped;
  store.states = changes.states;
  notify({
    nodes: changes.nodes.map((row) => row.name),
    events: fresh,
    rollouts: changes.rollouts.map((one) => one.id),
  });
}

/** Reads the stream until it ends or everything must be loaded again. */
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
      else if (fields.event === "news") apply(JSON.parse(fields.data));
      else if (fields.event === "wait") setNatsWait(JSON.parse(fields.data));
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

/** Keeps the store up to date. `promptToken` prompts for the token and shows the problem of the last one. */
export async function run(promptToken) {
  let wait = 500;
  for (;;) {
    if (needsToken() && !hasToken()) await promptToken("");
    try {
      await load();
      wait = 500;
      await follow();
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        setLink("lost");
        setToken("");
        await promptToken("The server does not accept this token any more.");
        continue;
      }
    }
    setLink("lost");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10_000);
  }
}
