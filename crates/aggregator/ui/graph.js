// The answer of `/v1/graph` as nodes and edges of the map: workloads of open groups, all others summed up by group.

import { endKey, endName, groupOf, shortName } from "./ends.js";

/** Up to this many ends, all groups are open unless the URL says otherwise. */
const OPEN_UP_TO = 40;

/**
 * Groups with their ends, and edges between what is shown: `{groups, edges, hidden}`. A group has `id, name, kind, ends,
 * isOpen`; an edge has `source` and `target` (keys of ends or groups), the sums, the edges of the API as
 * `parts`, and the keys of both ends as `ends` (those of the groups if several edges are summed up).
 */
export function summarize(graph, { open = null, hide = [], q = "" } = {}) {
  const groups = new Map();
  const keys = graph.nodes.map(endKey);
  graph.nodes.forEach((end, at) => {
    const group = groupOf(end);
    const entry = groups.get(group.id) ?? { ...group, ends: [] };
    entry.ends.push({ key: keys[at], name: shortName(end), fullName: endName(end), end });
    groups.set(group.id, entry);
  });
  const opened = open ?? (graph.nodes.length <= OPEN_UP_TO ? [...groups.keys()] : []);
  const wanted = q.trim().toLowerCase();
  for (const group of groups.values()) {
    group.ends.sort((a, b) => compare(a.name, b.name));
    group.isOpen = opened.includes(group.id);
    group.isMatch =
      wanted === "" || matches(group.name, wanted) || group.ends.some((end) => matches(end.fullName, wanted));
    for (const end of group.ends) end.isMatch = wanted === "" || matches(end.fullName, wanted);
  }
  const shown = graph.nodes.map((end, at) => {
    const { id } = groupOf(end);
    if (hide.includes(id)) return null;
    return groups.get(id).isOpen ? keys[at] : id;
  });
  const edges = new Map();
  for (const edge of graph.edges) {
    const [source, target] = [shown[edge.source], shown[edge.destination]];
    if (source === null || target === null) continue;
    const key = `${source} ${target}`;
    const sum = edges.get(key) ?? { key, source, target, parts: [], ...EMPTY };
    add(sum, edge);
    sum.parts.push(edge);
    sum.isViolation ||= graph.declared?.pairs.get(`${keys[edge.source]} ${keys[edge.destination]}`)?.isViolation ?? false;
    sum.ends = sum.parts.length === 1 ? [keys[edge.source], keys[edge.destination]] : [source, target];
    edges.set(key, sum);
  }
  const unseen = unseenOf(graph, keys, shown, edges);
  const visible = [...groups.values()].filter((group) => !hide.includes(group.id));
  visible.sort((a, b) => compare(a.id, b.id));
  const isDeclared = graph.declared?.policies === "known";
  return { groups: visible, edges: [...edges.values()], unseen, isDeclared, hidden: hide.filter((id) => groups.has(id)) };
}

/** Declared edges without a flow between ends of the map that exchange none: `{source, target, ports, rules}`. */
function unseenOf(graph, keys, shown, edges) {
  const places = new Map(keys.map((key, at) => [key, shown[at]]));
  const found = new Map();
  for (const { sourceEnd, destinationEnd, ports, rules } of graph.declared?.unseen ?? []) {
    if (sourceEnd === null || destinationEnd === null) continue;
    const [source, target] = [places.get(endKey(sourceEnd)), places.get(endKey(destinationEnd))];
    const key = `${source} ${target}`;
    if (!source || !target || source === target || edges.has(key) || found.has(key)) continue;
    found.set(key, { source, target, ports, rules });
  }
  return [...found.values()];
}

/** Peers of more than this share of the groups are hubs, such as DNS and monitoring. */
const HUB_SHARE = 0.5;

/** Fewest groups of a map that distinguishes hubs. */
const HUB_GROUPS = 8;

/** The groups and ends that exchange flows with most groups; the map draws their edges faintly. */
export function hubsOf({ groups, edges }) {
  if (groups.length < HUB_GROUPS) return new Set();
  const owner = new Map(
    groups.flatMap((group) => [[group.id, group.id], ...group.ends.map((end) => [end.key, group.id])]),
  );
  const peers = new Map();
  const add = (key, peer) => peers.set(key, (peers.get(key) ?? new Set()).add(owner.get(peer)));
  for (const { source, target } of edges) {
    add(source, target);
    add(target, source);
  }
  return new Set([...peers].filter(([, near]) => near.size > HUB_SHARE * groups.length).map(([key]) => key));
}

const EMPTY = { isViolation: false, connections: 0, deniedPackets: 0, allowed: 0, wouldDeny: 0, denied: 0 };

function add(sum, { connections, deniedPackets, verdicts }) {
  sum.connections += connections;
  sum.deniedPackets += deniedPackets;
  sum.allowed += verdicts.allowed.records;
  sum.wouldDeny += verdicts.wouldDeny.records;
  sum.denied += verdicts.denied.records;
}

/** The gravest verdict of an edge. */
export function verdictOf({ denied, wouldDeny }) {
  if (denied > 0) return "denied";
  return wouldDeny > 0 ? "would-deny" : "allowed";
}

/** The gravest verdict of an edge of the API. */
export function verdictOfEdge({ verdicts }) {
  return verdictOf({ denied: verdicts.denied.records, wouldDeny: verdicts.wouldDeny.records });
}

function matches(name, wanted) {
  return name.toLowerCase().includes(wanted);
}

function compare(a, b) {
  if (a === b) return 0;
  return a < b ? -1 : 1;
}
