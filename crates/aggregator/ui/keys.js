// Keyboard shortcuts, and the dialog that lists them.

import { h } from "./dom.js";

const SHORTCUTS = [
  ["1 to 7", "open a screen"],
  ["/", "find a workload, or add a filter"],
  ["t", "map or table"],
  ["p", "pause, or follow again"],
  ["arrow keys", "move on the map"],
  ["Enter", "open what has the focus"],
  ["Delete", "hide the group that has the focus"],
  ["Esc", "close the panel"],
  ["?", "this list"],
];

/** Calls the action of a key, unless the key is typed into a field or a dialog is open. */
export function listen({ screens, open, pause, toggleView, close, help }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else close();
      return;
    }
    if (isTyping) return;
    const screen = screens[Number(event.key) - 1];
    const actions = { p: pause, t: toggleView, "?": help, "/": find };
    const action = screen ? () => open(screen) : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function find() {
  (document.getElementById("search") ?? document.getElementById("filter"))?.focus();
}

export function helpDialog() {
  const dialog = h(
    "dialog",
    { "aria-label": "Keyboard" },
    h("h2", {}, "Keyboard"),
    h("dl.keys", {}, ...SHORTCUTS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
  );
  return dialog;
}
