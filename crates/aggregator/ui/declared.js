// Observed edges of several days and edges that policies declare, if the aggregator keeps observed edges and watches policies.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { endKey } from "./ends.js";
import { count, port } from "./format.js";
import { note, table } from "./parts.js";

// Whether the aggregator keeps observed edges; it does not change while it runs.
let isKept = null;

/** Declared edges without a flow that a table lists. */
const MOST_UNSEEN = 200;

/** Filters that observed edges have; records have more. */
const FILTERS = ["namespace", "workload", "peer"];

/**
 * Observed edges by the keys of their ends, and declared edges that were not seen: `{policies, pairs, unseen}`; `null` if
 * the aggregator does not keep them. `isPartial`: there are more. A pair has `lines` (one for each port, with the samples of both ends if they are
 * wanted), `isViolation` and `declaration`, the weakest one.
 */
export async function loadDeclared(state, signal, { hasSamples = false } = {}) {
  if (isKept === null) isKept = (await getJson("/v1/edges?limit=1", signal)).kept;
  if (!isKept) return null;
  const query = new URLSearchParams({ limit: 10000, ...(hasSamples && { samples: "yes" }) });
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

/** Declared edges of the cluster without a flow, as `{policies, unseen, isPartial}`; `null` if the aggregator keeps no edges. */
export async function loadUnseen(signal) {
  const { kept, policies, edges, truncated } = await getJson("/v1/edges/unseen?limit=2000", signal);
  return kept ? { policies, unseen: edges, isPartial: truncated } : null;
}

/** Declared edges without a flow, with the rules that allow them. */
export function unseenPart(rows, nothing) {
  const columns = [
    { title: "Source", cell: (row) => row.source },
    { title: "Destination", cell: (row) => row.destination },
    { title: "Ports", cell: (row) => h("code", {}, row.ports.join(", ")) },
    { title: "Rules", cell: (row) => (row.rules.length === 0 ? "-" : row.rules.map((rule) => h("div", {}, rule))) },
  ];
  const shown = rows.slice(0, MOST_UNSEEN);
  return [
    h("h2.anchor", { id: "unseen" }, "Declared, and not seen"),
    rows.length > 0 && note("Allowed by policies, and never seen while edges were observed, whatever the range."),
    rows.length === 0
      ? note(nothing)
      : table({ columns, rows: shown, caption: "Declared edges without a flow", key: "unseen" }),
    rows.length > shown.length && note(`These are ${count(shown.length)} of ${count(rows.length)}.`),
  ];
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
