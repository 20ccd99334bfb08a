// Observed edges of days and what the policies declare, where the aggregator keeps and watches them.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { endKey } from "./ends.js";
import { port } from "./format.js";

// Whether the aggregator keeps observed edges; it does not change while it runs.
let isKept = null;

/** Filters that observed edges have; records have more. */
const FILTERS = ["namespace", "workload", "peer"];

/**
 * Observed edges by the keys of their ends, and declared edges that were not seen: `{policies, pairs, unseen}`; `null` if
 * the aggregator does not keep them. `isPartial`: there are more. A pair has `lines` (one for each port), `isViolation` and `declaration`, the weakest one.
 */
export async function loadDeclared(state, signal) {
  if (isKept === null) isKept = (await getJson("/v1/edges?limit=1", signal)).kept;
  if (!isKept) return null;
  const query = new URLSearchParams({ limit: 10000 });
  for (const field of FILTERS) {
    for (const value of state.filters[field] ?? []) query.append(field, value);
  }
  const namespaces = state.filters.namespace ?? [];
  const namespace = namespaces.length === 1 ? `&namespace=${encodeURIComponent(namespaces[0])}` : "";
  const [observed, unseen] = await Promise.all([
    getJson(`/v1/edges?${query}`, signal),
    getJson(`/v1/edges/unseen?limit=2000${namespace}`, signal),
  ]);
  const pairs = new Map();
  for (const line of observed.edges) {
    const key = `${endKey(line.source)} ${endKey(line.destination)}`;
    const pair = pairs.get(key) ?? { lines: [], isViolation: false, declaration: "declared" };
    pair.lines.push(line);
    pair.isViolation ||= line.violation;
    if (RANK.indexOf(line.declaration) > RANK.indexOf(pair.declaration)) pair.declaration = line.declaration;
    pairs.set(key, pair);
  }
  const isPartial = observed.nextPage !== null || unseen.truncated;
  return { policies: observed.policies, since: observed.since, pairs, unseen: unseen.edges, isPartial };
}

const RANK = ["declared", "not-governed", "unknown", "undeclared"];

const WORDS = {
  declared: "declared",
  undeclared: "not declared",
  "not-governed": "no policy",
  unknown: "unknown",
};

/** A declaration as a mark with a word. */
export function declarationMark(declaration, isViolation) {
  const word = WORDS[declaration] ?? declaration;
  return h(isViolation ? "span.declaration.violation" : `span.declaration.${declaration}`, {}, word);
}

/** The mark of a pair of ends, or a dash where nothing is known of it. */
export function pairMark(declared, source, destination) {
  const pair = declared?.pairs.get(`${endKey(source)} ${endKey(destination)}`);
  return pair ? declarationMark(pair.declaration, pair.isViolation) : "-";
}

/** The ports of a pair of ends, each with its declaration. */
export function pairPorts(pair) {
  return h(
    "ul.plain",
    {},
    ...pair.lines.map((line) =>
      h("li", {}, h("code", {}, port(line)), " ", declarationMark(line.declaration, line.violation)),
    ),
  );
}
