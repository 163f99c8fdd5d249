// The way in: hash routes to views, the link's state, and the token.

import { ask, h, toast } from "./dom.js";
import { hasToken, run, setToken, store, subscribe } from "./store.js";
import { overview } from "./overview.js";
import { nodes } from "./nodes.js";
import { node } from "./node.js";
import { rollout, rollouts } from "./rollouts.js";
import { events } from "./events.js";

const main = document.getElementById("main");
let leave = null;
let shown = null;

/** Returns the view of a route: its place in the menu, its title, and what draws it. */
function route(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [first, second] = path.split("/").map(decodeURIComponent);
  const params = new URLSearchParams(query);
  if (first === "nodes" && second) return ["nodes", second, () => node(main, second)];
  if (first === "nodes") return ["nodes", "Nodes", () => nodes(main, params)];
  if (first === "rollouts" && second) return ["rollouts", second, () => rollout(main, second)];
  if (first === "rollouts") return ["rollouts", "Rollouts", () => rollouts(main)];
  if (first === "events") return ["events", "Events", () => events(main, params)];
  return ["overview", "Overview", () => overview(main)];
}

function show() {
  if (!store.summary || location.hash === "#main") return;
  // A view that changes its own parameters stays as it is.
  if (shown === location.hash) return;
  shown = location.hash;
  const [place, title, draw] = route(location.hash);
  leave?.();
  main.replaceChildren();
  document.title = `${title} · fleet ${store.summary.collective}`;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = draw();
}

/** Puts a view's parameters into the address without drawing it anew. */
export function remember(path, params) {
  const kept = [...params].filter(([, value]) => value);
  const query = new URLSearchParams(kept).toString();
  shown = `#/${path}${query && `?${query}`}`;
  history.replaceState(null, "", shown);
}

const WORDS = { wait: "connecting", live: "live", lost: "no connection" };
const link = document.getElementById("link");
const button = document.getElementById("token");

function frame() {
  link.dataset.link = store.link;
  link.textContent = WORDS[store.link];
  if (!store.summary) return;
  document.getElementById("collective").textContent = store.summary.collective;
  button.hidden = !store.summary.actions;
  button.textContent = hasToken() ? "Lock" : "Unlock";
}

async function unlock(text) {
  const given = await ask({ title: "Token", text, label: "Token", secret: true, yes: "Unlock" });
  if (given) setToken(given);
  return given;
}

button.addEventListener("click", async () => {
  if (hasToken()) {
    setToken("");
    toast("The token is forgotten.");
  } else if (await unlock("Acting on the fleet takes the token of this server.")) {
    toast("Unlocked for this tab.");
  }
  frame();
  shown = null;
  show();
});

subscribe((change) => {
  frame();
  if (change.all) {
    shown = null;
    show();
  }
});
addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
main.append(h("p.empty", {}, "Reading the fleet…"));
run(() => unlock("Reading this fleet takes the token of its server."));
