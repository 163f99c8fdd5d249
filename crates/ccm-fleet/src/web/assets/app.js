// Entry point: maps addresses to views, shows the connection state, and prompts for the token.

import { address, invalidate, isChanged } from "./address.js";
import { h, setText, showPrompt } from "./dom.js";
import { hasToken, needsToken, refusalOf, run, setToken, store, subscribe } from "./store.js";
import { overview } from "./overview.js";
import { nodes } from "./nodes.js";
import { node } from "./node.js";
import { bundle, bundles } from "./bundles.js";
import { rollout, rollouts } from "./rollouts.js";
import { rolloutForm } from "./rollout_form.js";
import { events } from "./events.js";
import { statistics } from "./statistics.js";

const main = document.getElementById("main");
let leave = null;

/** Returns the view of the address: menu entry, title and draw function. */
function route() {
  const { parts: [first, second, third], params } = address();
  if (first === "nodes" && second) return ["nodes", second, () => node(main, second)];
  if (first === "nodes") return ["nodes", "Nodes", () => nodes(main, params)];
  if (first === "bundles" && third) return ["bundles", second, () => bundle(main, second, third)];
  if (first === "bundles") return ["bundles", "Bundles", () => bundles(main)];
  if (first === "rollouts" && second === "new") return ["rollouts", "Start a rollout", () => rolloutForm(main, params)];
  if (first === "rollouts" && second) return ["rollouts", second, () => rollout(main, second)];
  if (first === "rollouts") return ["rollouts", "Rollouts", () => rollouts(main)];
  if (first === "events") return ["events", "Events", () => events(main, params)];
  if (first === "statistics") return ["statistics", "Statistics", () => statistics(main)];
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
const who = document.getElementById("who");
const warning = document.getElementById("warning");
const natsWait = document.getElementById("nats-wait");

function drawHeader() {
  link.dataset.link = store.link;
  link.textContent = CONNECTION_TEXTS[store.link];
  button.hidden = !needsToken();
  button.textContent = hasToken() ? "Lock" : "Unlock";
  const { token, role } = store.summary ?? {};
  who.textContent = token && hasToken() ? `${token} (${role})` : "";
  if (!store.summary) return;
  document.getElementById("collective").textContent = store.summary.collective;
  warning.hidden = store.summary.complete;
  const { nats_wait: reason } = store.summary;
  natsWait.hidden = !reason;
  setText(natsWait, reason ? `Waiting for NATS: ${reason}. Rollouts go on when it is available.` : "");
}

/** Prompts for the token until the server accepts one. The view is empty meanwhile. */
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
      problem = await refusalOf(given);
      if (problem) continue;
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
