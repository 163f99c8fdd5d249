// Entry point: maps addresses to views, shows the connection state, and prompts for the token.

import { address, invalidate, isChanged } from "./address.js";
import { h, showPrompt } from "./dom.js";
import { hasToken, needsToken, run, setToken, store, subscribe } from "./store.js";
import { overview } from "./overview.js";
import { nodes } from "./nodes.js";
import { node } from "./node.js";
import { rollout, rollouts } from "./rollouts.js";
import { events } from "./events.js";

const main = document.getElementById("main");
let leave = null;

/** Returns the view of the address: menu entry, title and draw function. */
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
  if (!store.summary || (needsToken() && !hasToken()) || location.hash === "#main" || !isChanged()) return;
  const [entry, title, draw] = route();
  leave?.();
  main.replaceChildren();
  document.title = `${title} · fleet ${store.summary.collective}`;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === entry) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave = draw();
}

const CONNECTION_TEXTS = { wait: "connecting", live: "live", lost: "disconnected" };
const link = document.getElementById("link");
const button = document.getElementById("token");
const warning = document.getElementById("warning");

function drawHeader() {
  link.dataset.link = store.link;
  link.textContent = CONNECTION_TEXTS[store.link];
  button.hidden = !needsToken();
  button.textContent = hasToken() ? "Lock" : "Unlock";
  if (!store.summary) return;
  document.getElementById("collective").textContent = store.summary.collective;
  warning.hidden = store.summary.complete;
}

/** Prompts for the token until one is given. The view is empty meanwhile. */
async function unlock(problem) {
  leave?.();
  leave = null;
  invalidate();
  main.replaceChildren(h("p.empty", {}, "Enter the token of this server to see the fleet."));
  drawHeader();
  for (;;) {
    const text = "This server requires a token.";
    // The button can only be clicked once the dialog is closed.
    const clicked = new Promise((done) => button.addEventListener("click", done, { once: true }));
    const given = await showPrompt({ title: "Token", problem, text, label: "Token", secret: true, yes: "Unlock" });
    if (given?.trim()) {
      setToken(given);
      return drawHeader();
    }
    await clicked;
  }
}

button.addEventListener("click", () => {
  if (!hasToken()) return;
  setToken("");
  // Also drops the loaded data.
  location.reload();
});

subscribe((change) => {
  if (change.all || change.link || change.summary) drawHeader();
  if (change.all) {
    invalidate();
    show();
  }
});
addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
main.append(h("p.empty", {}, "Loading the fleet…"));
drawHeader();
run(unlock);
