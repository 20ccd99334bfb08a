// Parts that several screens show: verdicts, links within the page, tables, notes.

import { h } from "./dom.js";
import { count, traffic } from "./format.js";
import { formatState } from "./state.js";

const WORDS = { allowed: "allowed", "would-deny": "would deny", denied: "denied" };

/** A verdict as a word with a shape, so that it does not depend on colour. */
export function verdict(word) {
  return h(`span.verdict.${word}`, {}, WORDS[word] ?? word);
}

/** A link to a state of the page. */
export function link(context, state, properties, ...children) {
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    context.go(state);
  };
  return h("a", { href: formatState(state), onclick: follow, ...properties }, ...children);
}

/** A button that is pressed or not. */
export function toggle(label, isPressed, onclick, properties = {}) {
  return h("button.toggle", { type: "button", "aria-pressed": String(isPressed), onclick, ...properties }, label);
}

/** A field that finds workloads by their name; `set(change, options)` changes the state. */
export function searchField(state, set) {
  return h("input.search", {
    type: "search",
    id: "search",
    name: "q",
    "data-key": "search",
    value: state.q,
    placeholder: "find a workload  ( / )",
    "aria-label": "Find a workload",
    spellcheck: "false",
    autocomplete: "off",
    oninput: (event) => set({ q: event.target.value }, { replace: true }),
  });
}

export function note(...children) {
  return h("p.note", {}, ...children);
}

/** A note on the edges that an answer of `/v1/graph` leaves out; nothing if it has all of them. */
export function truncation(graph) {
  return (
    graph.truncated &&
    note(`These are the ${count(graph.edges.length)} busiest edges. Others have ${traffic(graph.other)}; filters show them.`)
  );
}

/** A note that not all observed and declared edges are compared; nothing if they are. */
export function comparisonNote(declared) {
  return (
    declared?.isPartial &&
    note("There are more observed or declared edges than are compared here; a filter by namespace compares all of one.")
  );
}

/** A block for a screen without data. */
export function empty(title, ...children) {
  return h("div.empty", {}, h("p.title", {}, title), ...children.map((child) => h("p", {}, child)));
}

/**
 * A table. Columns are `{title, cell, value, number, nowrap, minor}`: `cell(row)` is the content, `value(row)` what the column
 * is sorted by; narrow windows hide a minor column. With `context` the order is in the URL.
 */
export function table({ columns, rows, caption, context, standard, key }) {
  const sort = parseSort(context?.state.sort || standard, columns);
  const sorted =
    sort === null ? rows : [...rows].sort((a, b) => sort.sign * compare(sort.column.value(a), sort.column.value(b)));
  const head = columns.map((column) => heading(column, sort, context));
  const body = sorted.map((row) => h("tr", {}, ...columns.map((column) => dataCell(column, row))));
  return h(
    "div.scroll",
    { "data-scroll": key ?? caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)),
  );
}

function dataCell(column, row) {
  const content = column.cell(row);
  if (!column.number) return h(`td${column.nowrap ? ".nowrap" : ""}${minor(column)}`, {}, content);
  return h(`td.number${content === "0" ? ".zero" : ""}${minor(column)}`, {}, content);
}

function minor(column) {
  return column.minor ? ".minor" : "";
}

function heading(column, sort, context) {
  const isSorted = sort?.column === column;
  const direction = isSorted ? (sort.sign > 0 ? "ascending" : "descending") : undefined;
  const tag = `th${column.number ? ".number" : ""}${minor(column)}`;
  if (!column.value || !context) return h(tag, { scope: "col" }, column.title);
  const next = isSorted && sort.sign < 0 === Boolean(column.number) ? flip(column, sort.sign) : first(column);
  const onclick = () => context.go({ ...context.state, sort: next }, { replace: true });
  return h(
    tag,
    { scope: "col", "aria-sort": direction },
    h("button.sort", { type: "button", onclick, "data-key": `sort ${column.title}` }, column.title),
  );
}

function first(column) {
  return `${column.number ? "-" : ""}${column.title}`;
}

function flip(column, sign) {
  return `${sign > 0 ? "-" : ""}${column.title}`;
}

function parseSort(text, columns) {
  if (!text) return null;
  const [sign, title] = text.startsWith("-") ? [-1, text.slice(1)] : [1, text];
  const column = columns.find((each) => each.title === title && each.value);
  return column ? { column, sign } : null;
}

function compare(a, b) {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}
