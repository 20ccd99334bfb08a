// A workload: its incoming and outgoing connections, and the policies that judged them. Without a name, a list of all workloads.

import { getJson } from "./api.js";
import { loadDeclared, pairMark, unseenPart } from "./declared.js";
import { h } from "./dom.js";
import { endKey, endName, parseEnd, policyFilter, policyName, workloadFilter } from "./ends.js";
import { ago, count, edgeVolume, plural, ports } from "./format.js";
import { verdictOfEdge } from "./graph.js";
import { comparisonNote, empty, link, note, searchField, table, truncation, verdict } from "./parts.js";
import { policyLink } from "./edge.js";
import { queryOf } from "./state.js";
import { ruleFacts } from "./traces.js";

export const key = (state) => `${state.since} ${state.name} ${state.name === "" ? queryOf(state) : ""}`;

export async function load(state, signal) {
  if (state.name === "") return { graph: await getJson(`/v1/graph?${queryOf(state)}`, signal), statistics: null };
  const name = workloadFilter(parseEnd(state.name));
  if (name === null) return { graph: null, statistics: null };
  const query = queryOf({ ...state, filters: { workload: [name] } });
  const [graph, statistics, declared] = await Promise.all([
    getJson(`/v1/graph?${query}`, signal),
    getJson(`/v1/statistics?${query}`, signal),
    loadDeclared({ ...state, filters: { workload: [name] } }, signal),
  ]);
  return { graph: { ...graph, declared }, statistics };
}

export function view(context, data) {
  return context.state.name === "" ? list(context, data.graph) : subject(context, data);
}

function list(context, graph) {
  const { state, go } = context;
  const wanted = state.q.trim().toLowerCase();
  const sums = graph.nodes.map((end) => ({ end, name: endName(end), in: 0, out: 0, denied: 0, wouldDeny: 0 }));
  for (const edge of graph.edges) {
    sums[edge.source].out += edge.connections;
    sums[edge.destination].in += edge.connections;
    for (const index of new Set([edge.source, edge.destination])) {
      sums[index].denied += edge.deniedPackets;
      sums[index].wouldDeny += edge.verdicts.wouldDeny.connections;
    }
  }
  const rows = sums.filter(({ end, name }) => end.kind === "pod" && name.toLowerCase().includes(wanted));
  const columns = [
    { title: "Workload", cell: (row) => workloadLink(context, row.end), value: (row) => row.name },
    { title: "Incoming connections", number: true, cell: (row) => count(row.in), value: (row) => row.in },
    { title: "Outgoing connections", number: true, cell: (row) => count(row.out), value: (row) => row.out },
    { title: "Would deny", number: true, cell: (row) => count(row.wouldDeny), value: (row) => row.wouldDeny },
    { title: "Denied packets", number: true, cell: (row) => count(row.denied), value: (row) => row.denied },
  ];
  const search = searchField(state, (change, options) => go({ ...state, ...change }, options));
  return [
    h("div.bar", {}, search, h("span.sum", { role: "status" }, plural(rows.length, "workload"))),
    truncation(graph),
    rows.length === 0
      ? empty("No workload has this name or sent records in this range.")
      : table({ columns, rows, caption: "Workloads", context, standard: "Workload" }),
  ];
}

/** A link to the screen of an end; its name alone if it is no pod. */
export function workloadLink(context, end, place = "") {
  if (end.kind !== "pod") return endName(end);
  const { state } = context;
  return link(
    context,
    { ...state, screen: "workload", name: endKey(end), from: "", to: "", sort: "", q: "" },
    { "data-key": `workload ${endKey(end)} ${place}` },
    endName(end),
  );
}

function subject(context, { graph, statistics }) {
  const { state } = context;
  const end = parseEnd(state.name);
  const all = link(context, { ...state, name: "", sort: "" }, {}, "All workloads");
  const title = h(
    "div.title",
    {},
    h("h1", {}, endName(end)),
    all,
    link(
      context,
      { ...state, screen: "flows", name: "", sort: "", filters: { workload: [workloadFilter(end) ?? ""] } },
      {},
      "Its records",
    ),
  );
  if (graph === null)
    return [title, empty("No filter finds this name.", "The map and its table show the flows of this workload.")];
  const keys = graph.nodes.map(endKey);
  const incoming = graph.edges.filter((edge) => keys[edge.destination] === state.name);
  const outgoing = graph.edges.filter((edge) => keys[edge.source] === state.name);
  // Declared edges do not depend on the range: a workload that is silent in it has them, too.
  const declared = [comparisonNote(graph.declared), graph.declared?.policies === "known" && unseen(graph.declared, state.name)];
  if (incoming.length + outgoing.length === 0)
    return [title, empty("No flows in this range.", "Choose a longer range."), declared];
  return [
    title,
    truncation(graph),
    h(
      "div.columns",
      {},
      h(
        "section",
        {},
        h("h2", {}, "Incoming"),
        edges(context, graph, incoming, "source", "Nothing opened connections to it."),
      ),
      h(
        "section",
        {},
        h("h2", {}, "Outgoing"),
        edges(context, graph, outgoing, "destination", "It opened no connections."),
      ),
    ),
    h("h2", {}, "Policies that judged these flows"),
    rules(context, statistics),
    declared,
  ];
}

function edges(context, graph, rows, peer, nothing) {
  if (rows.length === 0) return note(nothing);
  const end = (edge) => graph.nodes[edge[peer]];
  const open = (edge) =>
    context.go({ ...context.state, from: endKey(graph.nodes[edge.source]), to: endKey(graph.nodes[edge.destination]) });
  const columns = [
    {
      title: peer === "source" ? "From" : "To",
      cell: (edge) => workloadLink(context, end(edge)),
      value: (edge) => endName(end(edge)),
    },
    { title: "Ports", cell: (edge) => ports(edge, 2) },
    {
      title: "Verdict",
      cell: (edge) =>
        h(
          "button.link",
          {
            type: "button",
            title: "Rules that decided",
            "data-key": `rules ${peer} ${endKey(end(edge))}`,
            onclick: () => open(edge),
          },
          verdict(verdictOfEdge(edge)),
        ),
      value: verdictOfEdge,
    },
    ...(graph.declared === null
      ? []
      : [
          {
            title: "Declared",
            cell: (edge) => pairMark(graph.declared, graph.nodes[edge.source], graph.nodes[edge.destination]),
          },
        ]),
    { title: "Connections", number: true, cell: (edge) => count(edge.connections), value: (edge) => edge.connections },
    {
      title: "Denied packets",
      number: true,
      cell: (edge) => count(edge.deniedPackets),
      value: (edge) => edge.deniedPackets,
    },
    // There is no room for both.
    ...(graph.declared !== null
      ? []
      : [
          {
            title: "Received",
            number: true,
            cell: (edge) => edgeVolume(edge, "received"),
            value: (edge) => edge.received?.bytes ?? -1,
          },
        ]),
  ];
  return table({
    columns,
    rows,
    caption: `Flows ${peer === "source" ? "to" : "from"} it`,
    context,
    standard: "-Connections",
  });
}

/** Declared edges of the workload of which no flow was seen. */
function unseen(declared, name) {
  const isOwn = (end) => end !== null && endKey(end) === name;
  const rows = declared.unseen.filter(({ sourceEnd, destinationEnd }) => isOwn(sourceEnd) || isOwn(destinationEnd));
  return unseenPart(rows, "Every declared edge of this workload was seen.");
}

function rules(context, statistics) {
  if (statistics.rules.length === 0) return note("None: no policy isolates it or its peers.");
  const columns = [
    {
      title: "Policy",
      cell: (rule) => policyLink(context, rule) ?? policyName(rule),
      value: (rule) => policyFilter(rule) ?? policyName(rule),
    },
    {
      title: "Rule",
      cell: (rule) => h("span", {}, h("code", {}, rule.rule ?? "isolates, no rule matches"), " ", ...ruleFacts(rule)),
    },
    { title: "Direction", cell: (rule) => rule.direction, value: (rule) => rule.direction },
    { title: "Stage", cell: (rule) => stage(rule), value: (rule) => rule.stage },
    ...decisionColumns(statistics.rules),
  ];
  return table({ columns, rows: statistics.rules, caption: "Policies", key: "rules" });
}

export function stage(rule) {
  return rule.stage === "pending" ? h("span.stage", {}, "in audit") : "enforced";
}

/** Columns with what policies or rules of the statistics did. */
export function decisionColumns(rows) {
  const passed = (rule) => rule.passed?.connections ?? 0;
  const passing = { title: "Passed on", number: true, cell: (rule) => count(passed(rule)), value: passed };
  return [
    {
      title: "Allowed",
      number: true,
      cell: (rule) => count(rule.allowed.connections),
      value: (rule) => rule.allowed.connections,
    },
    {
      title: "Would deny",
      number: true,
      cell: (rule) => count(rule.wouldDeny.connections + rule.wouldDeny.deniedPackets),
      value: (rule) => rule.wouldDeny.connections + rule.wouldDeny.deniedPackets,
    },
    {
      title: "Denied packets",
      number: true,
      cell: (rule) => count(rule.denied.deniedPackets),
      value: (rule) => rule.denied.deniedPackets,
    },
    ...(rows.some((rule) => passed(rule) > 0) ? [passing] : []),
    { title: "Last", nowrap: true, cell: (rule) => ago(rule.lastSeen), value: (rule) => rule.lastSeen ?? "" },
  ];
}
