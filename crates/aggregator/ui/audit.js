// Policies in audit: the flows they would deny, by namespace.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { endKey, endName } from "./ends.js";
import { ago, count, plural, ports } from "./format.js";
import { empty, note, table, truncation, verdict } from "./parts.js";
import { policyLink } from "./edge.js";
import { eventsSection, loadReadiness, readinessSection } from "./readiness.js";
import { queryOf } from "./state.js";
import { loadSuggestion, suggestionPart } from "./suggestion.js";
import { decisionColumns } from "./workload.js";

const TITLES = { "5m": "5 minutes", "15m": "15 minutes", "1h": "hour" };

/** Up to this many namespaces are open unless the URL says otherwise. */
const OPEN_UP_TO = 3;

export const key = (state) => `${state.since} ${state.suggest}`;

export async function load(state, signal) {
  const all = { ...state, filters: {} };
  const [statistics, graph, readiness, suggestion] = await Promise.all([
    getJson(`/v1/statistics?${queryOf(all)}`, signal),
    getJson(`/v1/graph?${queryOf(all, { verdict: "would-deny" })}`, signal),
    loadReadiness(signal),
    loadSuggestion(state, signal),
  ]);
  return { statistics, graph, readiness, suggestion };
}

/** Stands for the namespace of policies of the whole cluster. */
const CLUSTER = "*";

/** Policies in audit and edges that they would deny, by namespace: those that would deny most first. */
function byNamespace(policies, graph) {
  const namespaces = new Map();
  for (const policy of policies.filter(({ stage }) => stage === "pending")) {
    const name = policy.namespace || CLUSTER;
    const entry = namespaces.get(name) ?? { name, policies: [], edges: [], wouldDeny: 0 };
    entry.policies.push(policy);
    namespaces.set(name, entry);
  }
  for (const edge of graph.edges) {
    const ends = [graph.nodes[edge.source], graph.nodes[edge.destination]];
    for (const name of new Set([...ends.map(({ namespace }) => namespace), CLUSTER])) {
      const entry = namespaces.get(name);
      // A namespace has the edge if one of its policies would deny in this direction.
      const has = (direction) =>
        entry.policies.some(
          (policy) =>
            policy.direction === direction && policy.wouldDeny.connections + policy.wouldDeny.deniedPackets > 0,
        );
      const isOf = (end) => name === CLUSTER || end.namespace === name;
      if (!entry || !((isOf(ends[0]) && has("egress")) || (isOf(ends[1]) && has("ingress")))) continue;
      entry.edges.push(edge);
      entry.wouldDeny += edge.verdicts.wouldDeny.connections;
    }
  }
  return [...namespaces.values()].sort((a, b) => b.wouldDeny - a.wouldDeny || (a.name < b.name ? -1 : 1));
}

export function view(context, { statistics, graph, readiness, suggestion }) {
  const now = ofRange(context, { statistics, graph, hasDays: readiness !== null });
  const suggested = suggestionPart(context, suggestion);
  if (readiness === null) return [now, suggested];
  return [readinessSection(readiness), h("h2", {}, "In this range"), now, suggested, eventsSection(context, readiness)];
}

function ofRange(context, { statistics, graph, hasDays }) {
  const { state } = context;
  const namespaces = byNamespace(statistics.policies, graph);
  const range = TITLES[state.since];
  if (namespaces.length === 0) {
    return empty(
      "No policy in audit judged a flow in this range.",
      "A policy is in audit by its annotation or that of its namespace: docs/audit.md.",
    );
  }
  const breaking = namespaces.filter(({ edges }) => edges.length > 0);
  const isOpen = ({ name }) => (state.open === null ? namespaces.length <= OPEN_UP_TO : state.open.includes(name));
  const opened = namespaces.filter(isOpen).map(({ name }) => name);
  return [
    h(
      "p.lead",
      {},
      breaking.length === 0
        ? `In the last ${range} no flow would have been denied by policies in audit.`
        : `In the last ${range}, policies in audit of ${plural(breaking.length, "namespace")} would have denied flows.`,
    ),
    !hasDays && note("The memory is an hour at most; before you enforce a policy, look at the trail of several days."),
    truncation(graph),
    h("div.namespaces", {}, ...namespaces.map((namespace) => section(context, graph, namespace, opened))),
  ];
}

function section(context, graph, { name, policies, edges, wouldDeny }, opened) {
  const { state, go } = context;
  const columns = [
    { title: "Policy in audit", cell: (policy) => policyLink(context, policy) ?? policy.name },
    { title: "Direction", cell: (policy) => policy.direction },
    ...decisionColumns(policies).filter(({ title }) => title !== "Denied packets"),
  ];
  const open = (edge) =>
    go({ ...state, from: endKey(graph.nodes[edge.source]), to: endKey(graph.nodes[edge.destination]) });
  const title = (edge) => `${endName(graph.nodes[edge.source])} → ${endName(graph.nodes[edge.destination])}`;
  const breaks = [
    {
      title: "Would break",
      cell: (edge) =>
        h(
          "button.link",
          { type: "button", "data-key": `breaks ${name} ${title(edge)}`, onclick: () => open(edge) },
          title(edge),
        ),
    },
    { title: "Ports", cell: (edge) => ports(edge) },
    { title: "Connections", number: true, cell: (edge) => count(edge.verdicts.wouldDeny.connections) },
    { title: "Last", nowrap: true, cell: (edge) => ago(edge.last) },
  ];
  const isOpen = opened.includes(name);
  const toggle = () =>
    go({ ...state, open: isOpen ? opened.filter((each) => each !== name) : [...opened, name] }, { replace: true });
  return h(
    "section",
    {},
    h(
      "button.disclose",
      { type: "button", "aria-expanded": String(isOpen), "data-key": `namespace ${name}`, onclick: toggle },
      h("span.name", {}, name === CLUSTER ? "cluster policies" : name),
      edges.length > 0
        ? [verdict("would-deny"), `${plural(wouldDeny, "connection")} of ${plural(edges.length, "edge")}`]
        : "would deny nothing",
      h("span.rest", {}, `${plural(policies.length, "policy", "policies")} in audit`),
    ),
    isOpen &&
      h(
        "div.disclosed",
        {},
        table({ columns, rows: policies, caption: `Policies in audit of ${name}`, key: `policies ${name}` }),
        edges.length > 0 &&
          table({
            columns: breaks,
            rows: edges,
            caption: `Flows that would be denied in ${name}`,
            key: `breaks ${name}`,
          }),
      ),
  );
}
