// The screen of the map: filters, search, and the edges as a picture or a table.

import { getJson } from "./api.js";
import { edgeColumns } from "./columns.js";
import { loadDeclared, pairMark } from "./declared.js";
import { h } from "./dom.js";
import { endKey, endName } from "./ends.js";
import { filterBar } from "./filters.js";
import { ago, count, edgeVolume, plural } from "./format.js";
import { summarize } from "./graph.js";
import { comparisonNote, empty, link, note, searchField, table, toggle, truncation } from "./parts.js";
import { picture } from "./picture.js";
import { queryOf } from "./state.js";

/** Up to this many ends, one button opens all groups. */
const OPEN_ALL_UP_TO = 120;

export const key = (state) => queryOf(state);

export async function load(state, signal) {
  const [graph, declared] = await Promise.all([
    getJson(`/v1/graph?${queryOf(state)}`, signal),
    loadDeclared(state, signal),
  ]);
  return { ...graph, declared };
}

export function view(context, graph) {
  const { state, go } = context;
  const summary = summarize(graph, state);
  const isTable = state.view === "table";
  const set = (change, options) => go({ ...state, ...change }, options);
  const opened = summary.groups.filter((group) => group.isOpen).map((group) => group.id);
  const search = searchField(state, set);
  const bar = h(
    "div.bar",
    {},
    h(
      "span.segments",
      { role: "group", "aria-label": "View" },
      toggle("Map", !isTable, () => set({ view: "" }), { "data-key": "as map" }),
      toggle("Table", isTable, () => set({ view: "table" }), { "data-key": "as table" }),
    ),
    search,
    !isTable &&
      opened.length < summary.groups.length &&
      graph.nodes.length <= OPEN_ALL_UP_TO &&
      h(
        "button",
        { type: "button", onclick: () => set({ open: summary.groups.map((group) => group.id) }) },
        "Open all",
      ),
    !isTable && opened.length > 0 && h("button", { type: "button", onclick: () => set({ open: [] }) }, "Close all"),
    ...summary.hidden.map((id) =>
      h(
        "button.chip",
        {
          type: "button",
          title: "Show this group again",
          onclick: () => set({ hide: state.hide.filter((each) => each !== id) }),
        },
        h("span.field", {}, "hidden"),
        id.replace(/^(ns|cluster|outside)\//, ""),
        h("span.remove", {}, "×"),
      ),
    ),
    h("span.sum", { role: "status" }, `${plural(graph.nodes.length, "end")}, ${plural(graph.edges.length, "edge")}`),
  );
  const parts = [filterBar(context), bar];
  if (graph.edges.length === 0) {
    return [
      ...parts,
      empty(
        "No flows in this range.",
        "Choose a longer range, or remove filters. The screen Coverage says which nodes send records.",
      ),
    ];
  }
  parts.push(truncation(graph), comparisonNote(graph.declared));
  if (!isTable && state.q.trim() !== "") parts.push(findings(context, summary));
  parts.push(isTable ? edgeTable(context, graph) : picture(context, summary, opened));
  return parts;
}

/** Most workloads that the search lists. */
const MOST_FINDINGS = 12;

function findings(context, summary) {
  const found = summary.groups.flatMap((group) => group.ends).filter((end) => end.isMatch && end.end.kind === "pod");
  if (found.length === 0) return note("No workload of this range has this name.");
  const links = found
    .slice(0, MOST_FINDINGS)
    .map(({ end, key, fullName }) =>
      link(
        context,
        { ...context.state, screen: "workload", name: endKey(end), q: "", open: null },
        { "data-key": `found ${key}` },
        fullName,
      ),
    );
  const more = found.length - links.length;
  return h("p.found", {}, ...links, more > 0 && h("span.soft", {}, `and ${count(more)} more`));
}

/** The edges of the API as a table, for keyboards and screen readers. */
function edgeTable(context, graph) {
  const wanted = context.state.q.trim().toLowerCase();
  const name = (index) => endName(graph.nodes[index]);
  const rows = graph.edges.filter(
    (edge) =>
      wanted === "" ||
      name(edge.source).toLowerCase().includes(wanted) ||
      name(edge.destination).toLowerCase().includes(wanted),
  );
  const columns = [
    { title: "Source", cell: (edge) => name(edge.source), value: (edge) => name(edge.source) },
    { title: "Destination", cell: (edge) => edgeButton(context, graph, edge), value: (edge) => name(edge.destination) },
    ...edgeColumns(),
    ...(graph.declared === null
      ? []
      : [
          {
            title: "Declared",
            cell: (edge) => pairMark(graph.declared, graph.nodes[edge.source], graph.nodes[edge.destination]),
          },
        ]),
    // The panel of an edge also shows the following columns.
    {
      title: "Sent",
      number: true,
      minor: true,
      cell: (edge) => edgeVolume(edge, "sent"),
      value: (edge) => edge.sent?.bytes ?? -1,
    },
    {
      title: "Received",
      number: true,
      minor: true,
      cell: (edge) => edgeVolume(edge, "received"),
      value: (edge) => edge.received?.bytes ?? -1,
    },
    { title: "Last", nowrap: true, minor: true, cell: (edge) => ago(edge.last), value: (edge) => edge.last },
  ];
  return table({ columns, rows, caption: "Edges between workloads", context, standard: "-Connections" });
}

function edgeButton(context, graph, edge) {
  const [source, destination] = [graph.nodes[edge.source], graph.nodes[edge.destination]];
  const onclick = () => context.go({ ...context.state, from: endKey(source), to: endKey(destination) });
  return h(
    "button.link",
    { type: "button", onclick, "data-key": `${endKey(source)} ${endKey(destination)}` },
    endName(destination),
  );
}
