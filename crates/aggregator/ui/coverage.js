// Coverage: which nodes send records, and which records are missing.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, count, plural, time } from "./format.js";
import { empty, table } from "./parts.js";
import { queryOf } from "./state.js";

export const key = (state) => state.since;

export async function load(state, signal) {
  const query = queryOf({ ...state, filters: {} }, { limit: 1 });
  const [coverage, graph, edges] = await Promise.all([
    getJson("/v1/flows/coverage", signal),
    getJson(`/v1/graph?${query}`, signal),
    getJson("/v1/edges?limit=1", signal),
  ]);
  return { coverage, graph, edges };
}

export function view(context, { coverage, graph, edges }) {
  const totals = [graph.other, ...graph.edges];
  const sum = (field) => totals.reduce((all, each) => all + each[field], 0);
  const silent = coverage.nodes.filter((node) => node.silent).length;
  const areRecordsMissing = coverage.missed + coverage.evicted + coverage.refused + graph.missedWindows > 0;
  return [
    h(
      "div.tiles",
      {},
      tile("Nodes that send", `${coverage.nodes.length - silent} of ${coverage.nodes.length}`, silent > 0),
      tile("Records kept", count(coverage.records)),
      tile("Kept since", time(coverage.keptSince)),
      tile("Never received", count(coverage.missed), coverage.missed > 0),
      tile("Evicted for memory", count(coverage.evicted), coverage.evicted > 0),
      tile("Refused", count(coverage.refused), coverage.refused > 0),
      tile("Connections of unknown volume", count(sum("unknownVolume"))),
      tile("Windows missed", count(graph.missedWindows), graph.missedWindows > 0),
    ),
    coverage.problems.length > 0
      ? h(
          "section.block",
          {},
          h("h2", {}, "Problems"),
          h("ul.problems", {}, ...coverage.problems.map((problem) => h("li", {}, problem))),
        )
      : h("p.lead", {}, areRecordsMissing ? "No other problems." : "No problems."),
    h("h2", {}, "Nodes"),
    coverage.nodes.length === 0
      ? empty("No agent has sent records yet.")
      : table({ columns: NODES, rows: coverage.nodes, caption: "Nodes", context, standard: "Node" }),
    edges.kept && ledger(edges),
    h("h2", {}, "Exports"),
    coverage.exports.length === 0
      ? h("p.note", {}, "Records are not exported: they are in memory for an hour at most.")
      : exportsOf(coverage.exports),
    h("p.note", {}, `The aggregator started at ${time(coverage.since)} UTC, ${ago(coverage.since)}.`),
  ];
}

/** The ledger of observed edges: its size, and what it left out. */
function ledger({ counts, since }) {
  return [
    h("h2", {}, "Observed edges"),
    h(
      "div.tiles",
      {},
      tile("Edges kept", count(counts.edges)),
      tile("Memory, estimated", bytes(counts.bytes)),
      tile("Records left out for memory", count(counts.leftOutRecords), counts.leftOutRecords > 0),
      tile("Edges removed after the retention", count(counts.expiredEdges)),
    ),
    h("p.note", {}, `Edges are observed since ${since.slice(0, 16).replace("T", " ")} UTC.`),
  ];
}

function tile(name, value, isBad = false) {
  return h(isBad ? "div.tile.bad" : "div.tile", {}, h("div.value", {}, value), h("div.what", {}, name));
}

const NODES = [
  { title: "Node", cell: (node) => node.node, value: (node) => node.node },
  {
    title: "State",
    cell: (node) => (node.silent ? h("span.verdict.denied", {}, "silent") : h("span.verdict.fine", {}, "sends")),
    value: (node) => String(node.silent),
  },
  { title: "Last batch", nowrap: true, cell: (node) => ago(node.lastReported), value: (node) => node.lastReported },
  { title: "Not sent yet", number: true, cell: (node) => plural(node.behind, "record"), value: (node) => node.behind },
];

// The fields of exports differ by kind: each has those that the API gives.
function exportsOf(list) {
  const text = (name, value) => (name.toLowerCase().endsWith("bytes") ? bytes(value) : String(value));
  return h(
    "div",
    {},
    ...list.map((each) =>
      h(
        "dl.facts",
        {},
        ...Object.entries(each)
          .filter(([, value]) => value !== null && typeof value !== "object")
          .flatMap(([name, value]) => [h("dt", {}, words(name)), h("dd", {}, text(name, value))]),
      ),
    ),
  );
}

function words(name) {
  return name.replace(/([A-Z])/g, " $1").toLowerCase();
}
