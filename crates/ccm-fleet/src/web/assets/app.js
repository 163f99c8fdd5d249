// The way in: addresses to views, the link's state, and the token. Nobody imports it.

import { address, forget, isNew } from "./address.js";
import { ask, h } from "./dom.js";
import { hasToken, needsToken, run, setToken, store, subscribe } from "./store.js";
import { overview } from "./overview.js";
import { nodes } from "./nodes.js";
import { node } from "./node.js";
import { rollout, rollouts } from "./rollouts.js";
import { events } from "./events.js";

const main = document.getElementById("main");
let leave = null;

/** Returns the view of the address: its place in the menu, its title, and what draws it. */
function route() {
  const { parts: [first, second], params } = address();
  if (first === "nodes" && second) return ["nodes", second, () => node(main, second)];
  if (first === "nodes") return ["nodes", "Nodes", () => nodes(main, params)];
  if (first === "rollouts" && second) return ["rollouts", second, () => rollout(main, second)];
  if (first === "rollouts") return ["rollouts", "Rollouts", () => rollouts(main)];
  if (first === "events") return ["events", "Events", () => events(main, params)];
  return ["overview", "Overview", () => overview(main)];
}

function show() {
  if (!store.summary || (needsToken() && !hasToken()) || location.hash === "#main" || !isNew()) return;
  const [place, title, draw] = route();
  leave?.();
  main.replaceChildren();
  document.title = `${title} · fleet ${store.summary.collective}`;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = draw();
}

const WORDS = { wait: "connecting", live: "live", lost: "no connection" };
const link = document.getElementById("link");
const button = document.getElementById("token");
const warning = document.getElementById("warning");

function frame() {
  link.dataset.link = store.link;
  link.textContent = WORDS[store.link];
  button.hidden = !needsToken();
  button.textContent = hasToken() ? "Lock" : "Unlock";
  if (!store.summary) return;
  document.getElementById("collective").textContent = store.summary.collective;
  warning.hidden = store.summary.complete;
}

/** Asks for the token until one is given. Nothing of the fleet is shown meanwhile. */
async function unlock(problem) {
  leave?.();
  leave = null;
  forget();
  main.replaceChildren(h("p.empty", {}, "This page is read with the token of its server."));
  frame();
  for (;;) {
    const text = "Reading this fleet takes the token of its server.";
    // Nobody can press it before the dialog is closed, but right then.
    const pressed = new Promise((done) => button.addEventListener("click", done, { once: true }));
    const given = await ask({ title: "Token", problem, text, label: "Token", secret: true, yes: "Unlock" });
    if (given?.trim()) {
      setToken(given);
      return frame();
    }
    await pressed;
  }
}

button.addEventListener("click", () => {
  if (!hasToken()) return;
  setToken("");
  // What was read goes, too.
  location.reload();
});

subscribe((change) => {
  if (change.all || change.link || change.summary) frame();
  if (change.all) {
    forget();
    show();
  }
});
addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
main.append(h("p.empty", {}, "Reading the fleet…"));
frame();
run(unlock);
