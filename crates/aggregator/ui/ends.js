// Ends of flows: their names, their keys in URLs, their groups on the map, and the filters that find them.

/** The name of an end, as in the output of `ringfence flows`. */
export function endName({ kind, namespace, name, cluster, network }) {
  const prefix = cluster ? `${cluster}:` : "";
  if (namespace && name) return `${prefix}${namespace}/${name}`;
  if (kind === "world" && network) return `world/${network}`;
  return prefix + (name ? `${kind}/${name}` : kind);
}

/** The name of an end within its group. */
export function shortName(end) {
  if (end.kind === "pod" || end.kind === "remote-cluster") return end.name ?? end.kind;
  if (end.kind === "world") return end.network ? `${end.network} addresses` : "addresses";
  return end.name ?? end.kind;
}

const FIELDS = ["kind", "namespace", "name", "cluster", "network"];

/** An end as text that differs from that of every other end: `pod/shop/web`. */
export function endKey(end) {
  return FIELDS.map((field) => encodeURIComponent(end[field] ?? ""))
    .join("/")
    .replace(/\/+$/, "");
}

/** The end of a key. */
export function parseEnd(key) {
  const parts = key.split("/");
  return Object.fromEntries(FIELDS.map((field, at) => [field, decode(parts[at] ?? "") || null]));
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The group of an end on the map: its namespace, or a group of ends outside of namespaces. No id is the key of an end. */
export function groupOf({ kind, namespace, cluster }) {
  if (kind === "pod" && namespace) return { id: `ns/${namespace}`, name: namespace, kind: "namespace" };
  if (kind === "remote-cluster")
    return { id: `cluster/${cluster ?? ""}`, name: cluster ?? "other clusters", kind: "cluster" };
  if (kind === "node") return { id: "outside/nodes", name: "nodes", kind: "outside" };
  if (kind === "world") return { id: "outside/world", name: "world", kind: "outside" };
  return { id: `outside/${kind}`, name: kind, kind: "outside" };
}

// The grammar of the filters `workload` and `namespace`. A name beyond it cannot be asked for.
const LABEL = /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/;
const OBJECT = /^[-A-Za-z0-9_.]{1,253}$/;

/** The value of the filter `workload` for an end; `null` if none finds it. */
export function workloadFilter(end) {
  const has = end.kind === "pod" && LABEL.test(end.namespace ?? "") && OBJECT.test(end.name ?? "");
  return has ? `${end.namespace}/${end.name}` : null;
}

/** The value of the filter `policy`; `null` if none finds the policy. */
export function policyFilter({ namespace, name }) {
  const has = (namespace === "" || LABEL.test(namespace)) && OBJECT.test(name);
  return has ? policyName({ namespace, name }) : null;
}

/** The name of a policy; that of the whole cluster has no namespace. */
export function policyName({ namespace, name }) {
  return namespace === "" ? name : `${namespace}/${name}`;
}

function peerFilter(end) {
  if (end.kind === "pod") return workloadFilter(end);
  if (end.kind === "node") return LABEL.test(end.name ?? "") ? end.name : null;
  return end.kind;
}

/** Filters that admit the flows between two ends, and perhaps some others: the caller compares the ends. */
export function edgeFilters(source, destination) {
  const [near, far] = workloadFilter(source) ? [source, destination] : [destination, source];
  const filters = {};
  const [workload, peer] = [workloadFilter(near), peerFilter(far)];
  if (workload) filters.workload = [workload];
  else if (LABEL.test(near.namespace ?? "")) filters.namespace = [near.namespace];
  if (peer) filters.peer = [peer];
  return filters;
}
