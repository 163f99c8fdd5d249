// Labels of a node, edited in place by tokens with the role roll-out.

import { button, card, h, toast } from "./dom.js";
import { can, post } from "./store.js";

/** Returns the card of labels. `done` is called after a change. */
export function labelsCard(name, labels, done) {
  const entries = Object.entries(labels);
  if (!can("roll-out")) {
    return card("Labels", "", entries.length
      ? h("dl", {}, entries.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)])) : h("p.soft", {}, "No labels."));
  }

  async function send(body, text) {
    try {
      await post(`/api/nodes/${encodeURIComponent(name)}/labels`, body);
      toast(text);
      done();
    } catch (error) {
      toast(error.message);
    }
  }

  const set = (label, value) => send({ set: { [label]: value } }, `${name}: ${label}=${value}`);

  /** One label: its value can be changed, and the label removed. */
  function row([label, value]) {
    const input = h("input", { "aria-label": `Value of ${label}`, autocomplete: "off", spellcheck: "false", value });
    const save = h("button", { "data-act": "save-label", disabled: true }, "Save");
    input.addEventListener("input", () => { save.disabled = input.value === value; });
    return h("form.label", {
      "data-label": label,
      onsubmit: (event) => {
        event.preventDefault();
        set(label, input.value);
      },
    }, h("span.mono", {}, label), input, save,
    button("Remove", "remove-label", () => send({ remove: [label] }, `${name}: ${label} removed`), { "aria-label": `Remove ${label}` }));
  }

  const label = h("input", { "aria-label": "Name of the new label", placeholder: "name", required: true, autocomplete: "off", spellcheck: "false" });
  const value = h("input", { "aria-label": "Value of the new label", placeholder: "value", autocomplete: "off", spellcheck: "false" });
  const add = h("form.label.new", {
    onsubmit: (event) => {
      event.preventDefault();
      set(label.value.trim(), value.value);
    },
  }, label, value, h("button", { "data-act": "add-label" }, "Add"));
  return card("Labels", "", h("div.labels", {}, entries.map(row), add));
}
