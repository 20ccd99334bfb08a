// The bar of filters: verdicts as buttons, other fields as a form with suggestions, and what is set as chips.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { toggle } from "./parts.js";
import { queryOf, toggleFilter } from "./state.js";

const VERDICTS = [
  ["allowed", "allowed"],
  ["would-deny", "would deny"],
  ["denied", "denied"],
];

const FIELDS = ["namespace", "workload", "peer", "port", "policy", "protocol"];

const MOST_SUGGESTIONS = 20;

// The field that is chosen survives a new picture of the page.
let chosen = FIELDS[0];

/** The bar for the state of `context`. */
export function filterBar(context) {
  const { state, go } = context;
  const set = (field, value) => go(toggleFilter(state, field, value));
  const verdicts = VERDICTS.map(([word, label]) =>
    toggle(label, state.filters.verdict?.includes(word) ?? false, () => set("verdict", word), {
      "data-key": `verdict ${word}`,
    }),
  );
  const chips = FIELDS.flatMap((field) =>
    (state.filters[field] ?? []).map((value) =>
      h(
        "button.chip",
        { type: "button", title: "Remove this filter", onclick: () => set(field, value) },
        h("span.field", {}, field),
        value,
        h("span.remove", { "aria-label": "remove" }, "×"),
      ),
    ),
  );
  return h(
    "div.filters",
    { role: "group", "aria-label": "Filters" },
    h("span.segments", { role: "group", "aria-label": "Verdict" }, ...verdicts),
    form(state, set),
    ...chips,
  );
}

function form(state, set) {
  const options = FIELDS.map((field) => h("option", { value: field, selected: field === chosen }, field));
  const suggestions = h("datalist", { id: "suggestions" });
  const input = h("input", {
    "data-key": "filter value",
    id: "filter",
    name: "value",
    list: "suggestions",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "add a filter",
    "aria-label": "Value of the filter",
    onfocus: () => suggest(state, input, suggestions),
    oninput: () => suggest(state, input, suggestions),
  });
  const choose = h(
    "select",
    {
      "aria-label": "Field of the filter",
      "data-key": "filter field",
      name: "field",
      onchange: () => {
        chosen = choose.value;
        suggest(state, input, suggestions);
      },
    },
    ...options,
  );
  const submit = (event) => {
    event.preventDefault();
    const value = input.value.trim();
    input.value = "";
    if (value !== "" && !state.filters[chosen]?.includes(value)) set(chosen, value);
  };
  return h("form.add", { onsubmit: submit }, choose, input, suggestions);
}

let latest = 0;

async function suggest(state, input, suggestions) {
  latest += 1;
  const mine = latest;
  const query = queryOf(state, { field: chosen, prefix: input.value.trim(), limit: MOST_SUGGESTIONS });
  // Without suggestions the value can still be typed.
  const hints = await getJson(`/v1/flows/hints?${query}`).catch(() => ({ values: [] }));
  if (mine !== latest) return;
  suggestions.replaceChildren(...hints.values.map(({ value }) => h("option", { value })));
}
