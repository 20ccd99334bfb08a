// The panel of an edge: its volume, and the rules of both sides that decided.

import { getJson, getRecords } from "./api.js";
import { loadDeclared, pairPorts } from "./declared.js";
import { h, place } from "./dom.js";
import { edgeFilters, endKey, endName, groupOf, parseEnd, policyFilter, shortName, workloadFilter } from "./ends.js";
import { ago, count, edgeVolume, plural, port, time, traffic } from "./format.js";
import { verdictOfEdge } from "./graph.js";
import { empty, link, note, table, verdict } from "./parts.js";
import { queryOf } from "./state.js";
import { trace, traceKey } from "./traces.js";

/** Records that are read for the rules: the newest ones, since pages begin with the oldest. */
const MOST_RECORDS = 2000;
const RECENT = "5m";

export const isOpen = (state) => state.from !== "" && state.to !== "";

export const key = (state) => `${state.since} ${state.from} ${state.to}`;

export async function load(state, signal) {
  const filters = filtersOf(state);
  const graph = await getJson(`/v1/graph?${queryOf({ ...state, filters }, { limit: 10000 })}`, signal);
  const keys = graph.nodes.map(endKey);
  const has = (index, wanted) => keys[index] === wanted || groupOf(graph.nodes[index]).id === wanted;
  const edges = graph.edges.filter((edge) => has(edge.source, state.from) && has(edge.destination, state.to));
  if (edges.length !== 1) return { graph, edges, records: [] };
  const [source, destination] = [edges[0].source, edges[0].destination].map((index) => graph.nodes[index]);
  const query = queryOf({ since: RECENT, filters: edgeFilters(source, destination) }, { limit: MOST_RECORDS });
  const [{ records }, declared] = await Promise.all([
    getRecords(query, signal),
    loadDeclared({ ...state, filters: edgeFilters(source, destination) }, signal, { hasSamples: true }),
  ]);
  const isSame = (record) =>
    endKey(record.source) === endKey(source) && endKey(record.destination) === endKey(destination);
  const own = records.filter(isSame);
  const pair = declared?.pairs.get(`${endKey(source)} ${endKey(destination)}`) ?? null;
  const explained = declared?.policies === "not-watched" ? null : await explain(declared && (own.at(-1) ?? newest(pair)), signal);
  return { graph, edges, records: own, pair, explained };
}

const PROTOCOLS = { 6: "tcp", 17: "udp", 132: "sctp" };

/** The port of a pair of ends that was seen last, by the ledger of observed edges. */
function newest(pair) {
  return pair?.lines.reduce((last, line) => (line.last > last.last ? line : last));
}

/** What the policies say now about a flow as in the record; `null` if it does not say which one. */
async function explain(record, signal) {
  if (!record) return null;
  const [source, destination] = [record.sources, record.destinations].map(({ pods, addresses }) => pods[0] ?? addresses[0]);
  const word = PROTOCOLS[record.protocol];
  if (!source || !destination || (word && record.port === null)) return null;
  const asked = word ? `${record.port}/${word}` : "icmp";
  const query = new URLSearchParams({ source, destination, traffic: asked });
  const { known, text } = await getJson(`/v1/explain?${query}`, signal);
  return known ? { command: `ringfence explain ${source} ${destination} ${asked}`, text } : null;
}

// An end is the key of one or of a group; a group without a filter of its own is found among all edges.
function filtersOf({ from, to }) {
  const [source, destination] = [from, to].map((text) =>
    text.startsWith("ns/") ? { kind: "group", namespace: text.slice(3) } : parseEnd(text),
  );
  if (workloadFilter(source) || workloadFilter(destination)) {
    const single = [source, destination].find(workloadFilter);
    return { workload: [workloadFilter(single)] };
  }
  const group = [source, destination].find(({ kind, namespace }) => kind === "group" && /^[-a-z0-9]+$/.test(namespace));
  return group ? { namespace: [group.namespace] } : {};
}

export function view(context, { graph, edges, records, pair = null, explained = null }) {
  const { state, go } = context;
  const close = h(
    "button.close",
    {
      type: "button",
      "data-key": "close panel",
      "aria-label": "Close the panel",
      title: "Close (Esc)",
      onclick: () => go({ ...state, from: "", to: "" }),
    },
    "×",
  );
  const [from, to] =
    edges.length === 1
      ? [graph.nodes[edges[0].source], graph.nodes[edges[0].destination]].map(endName)
      : [state.from, state.to].map(label);
  const head = h("div.panelhead", {}, h("h2", {}, from, h("span.arrowto", {}, " → "), to), close);
  const body = edges.length === 1 ? oneEdge(context, graph, edges[0], { records, pair, explained }) : severalEdges(context, graph, edges);
  return h(
    "aside.panel",
    { "aria-label": `Flows from ${from} to ${to}` },
    head,
    h("div.panelbody", { "data-scroll": "panel" }, body),
  );
}

/** A line of an explanation, whose continuation is indented further than its beginning. */
function hanging(line) {
  const indent = `${line.search(/\S|$/) + 4}ch`;
  return place(h("span.hanging", {}, line), { paddingLeft: indent, textIndent: `-${indent}` });
}

function label(text) {
  if (/^(ns|cluster|outside)\//.test(text)) return text.slice(text.indexOf("/") + 1);
  return text.includes("/") ? endName(parseEnd(text)) : text;
}

function oneEdge(context, graph, edge, { records, pair, explained }) {
  const { state } = context;
  const [source, destination] = [graph.nodes[edge.source], graph.nodes[edge.destination]];
  const flows = {
    ...state,
    screen: "flows",
    filters: edgeFilters(source, destination),
    from: "",
    to: "",
    sort: "",
    q: "",
    view: "",
  };
  return [
    h("p", {}, verdict(verdictOfEdge(edge)), " ", traffic(edge)),
    facts([
      ["Ports", edge.ports.map(port).join(", ") + (edge.portsTruncated ? " and more" : "")],
      [
        "Service",
        [
          ...new Set(
            records.flatMap(({ service }) =>
              service ? [`${service.namespace}/${service.name}:${service.portName ?? service.port}`] : [],
            ),
          ),
        ].join(", ") || "none",
      ],
      ["Sent", `${edgeVolume(edge, "sent")}${edge.unknownVolume > 0 ? " or more" : ""}`],
      ["Received", `${edgeVolume(edge, "received")}${edge.unknownVolume > 0 ? " or more" : ""}`],
      ["First", time(edge.first)],
      ["Last", `${time(edge.last)}, ${ago(edge.last)}`],
    ]),
    pair !== null && [h("h3", {}, "Declared by policies"), pairPorts(pair)],
    explained !== null && [
      h("h3", {}, "What the policies say now"),
      h("code.asked", {}, explained.command),
      h("pre.explained", {}, ...explained.text.split(/(?<=\n)/).map(hanging)),
    ],
    h("h3", {}, "Rules that decided in the last 5 minutes"),
    records.length === 0
      ? note("There are no records of the last 5 minutes. All records has older ones.")
      : [side(context, "Egress", source, records, "egress"), side(context, "Ingress", destination, records, "ingress")],
    h(
      "p.actions",
      {},
      link(context, flows, {}, "All records"),
      ...[source, destination]
        .filter(({ kind }) => kind === "pod")
        .map((end) =>
          link(
            context,
            { ...state, screen: "workload", name: endKey(end), from: "", to: "", sort: "" },
            {},
            endName(end),
          ),
        ),
    ),
  ];
}

/** The traces of one side, each with its connections and generations. */
function side(context, title, end, records, direction) {
  const groups = new Map();
  for (const record of records) {
    const key = traceKey(record[direction]);
    const group = groups.get(key) ?? {
      trace: record[direction],
      connections: 0,
      deniedPackets: 0,
      generation: null,
      last: "",
    };
    group.connections += record.connections.started;
    group.deniedPackets += record.deniedPackets;
    group.generation = Math.max(group.generation ?? 0, record.generation ?? 0) || null;
    if (record.last > group.last) group.last = record.last;
    groups.set(key, group);
  }
  const sorted = [...groups.values()].sort((a, b) => (a.last < b.last ? 1 : -1));
  const open = (hit) => policyLink(context, hit);
  return h(
    "section.side",
    {},
    h("h4", {}, `${title} of ${endName(end)}`),
    ...sorted.map((group) =>
      h(
        "div",
        {},
        trace(group.trace, open),
        h(
          "p.soft",
          {},
          `${traffic(group)}, last ${ago(group.last)}${group.generation ? `, generation ${group.generation}` : ""}`,
        ),
      ),
    ),
  );
}

/** A link to the screen of a policy; `null` if its name cannot be asked for. */
export function policyLink(context, hit) {
  const name = policyFilter(hit);
  if (!name) return null;
  const { state } = context;
  return link(context, { ...state, screen: "policies", name, from: "", to: "", sort: "", filters: {} }, {}, name);
}

function severalEdges(context, graph, edges) {
  if (edges.length === 0) return empty("No flows between these in this range.");
  const { state, go } = context;
  const open = (edge) =>
    go({ ...state, from: endKey(graph.nodes[edge.source]), to: endKey(graph.nodes[edge.destination]) });
  const name = (edge) => `${shortName(graph.nodes[edge.source])} → ${shortName(graph.nodes[edge.destination])}`;
  const columns = [
    {
      title: "Edge",
      cell: (edge) =>
        h("button.link", { type: "button", onclick: () => open(edge), "data-key": `panel ${name(edge)}` }, name(edge)),
    },
    { title: "Verdict", cell: (edge) => verdict(verdictOfEdge(edge)) },
    { title: "Connections", number: true, cell: (edge) => count(edge.connections) },
  ];
  return [
    h("p.soft", {}, `${plural(edges.length, "edge")} between workloads; choose one for its rules.`),
    table({ columns, rows: edges, caption: "Edges of this group" }),
  ];
}

/** Pairs of a name and a value. */
export function facts(pairs) {
  return h("dl.facts", {}, ...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
