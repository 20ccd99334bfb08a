// Suggested policies of one namespace, as a difference from those that exist.

import { QueryError, getJson } from "./api.js";
import { h } from "./dom.js";
import { endName } from "./ends.js";
import { plural, port } from "./format.js";
import { note, table } from "./parts.js";

/** Up to this many policies, their differences are open. */
const OPEN_UP_TO = 3;

/** Days of the suggestions, in the query and in the printed command: the default of `ringfence suggest`. */
const DAYS = 7;

/** The suggestions of the namespace in the state, or why there are none. */
export async function loadSuggestion({ suggest }, signal) {
  if (suggest === "") return null;
  try {
    const search = new URLSearchParams({ namespace: suggest, audit: "true", since: `${DAYS}d` });
    return { answer: await getJson(`/v1/suggestions?${search}`, signal), problem: null };
  } catch (error) {
    if (!(error instanceof QueryError)) throw error;
    return { answer: null, problem: error.message };
  }
}

export function suggestionPart(context, loaded) {
  const { state, go } = context;
  const choose = (event) => go({ ...state, suggest: event.target.value.trim() }, { replace: true });
  return h(
    "section.suggestion",
    { "aria-label": "Suggested policies" },
    h("h2", {}, "Suggested policies"),
    note(`Policies that allow the flows observed in the last ${plural(DAYS, "day")}, in audit. This page applies nothing.`),
    h(
      "div.bar",
      {},
      h("label", { for: "suggest" }, "Namespace"),
      h("input", {
        type: "text",
        id: "suggest",
        name: "suggest",
        "data-key": "suggest",
        value: state.suggest,
        placeholder: "shop",
        spellcheck: "false",
        autocomplete: "off",
        onchange: choose,
      }),
    ),
    loaded?.problem && h("p.problem", { role: "alert" }, loaded.problem),
    loaded?.answer && answerOf(state.suggest, loaded.answer),
  );
}

function answerOf(namespace, { policies, withoutRule, notes, edges, denied, unknownNamespaces }) {
  if (unknownNamespaces.length > 0)
    return h("p.problem", { role: "alert" }, `The namespace ${namespace} does not exist, and no flow of it was seen.`);
  if (policies.length === 0) return note(`No policy: ${edges === 0 ? `no flow of the namespace ${namespace} was` : `${plural(edges, "edge")} of ${namespace} were`} seen.`);
  const server = location.origin;
  return [
    h("p", {}, "Read the policies, then apply them:"),
    h("pre.command", {}, `ringfence suggest --namespace ${namespace} --days ${DAYS} --audit --server ${server} | kubectl apply -f -`),
    ...notes.map((text) => note(text)),
    denied > 0 && note(`${plural(denied, "edge was", "edges were")} denied: no rule allows what was denied.`),
    ...policies.map((policy) => policyPart(policy, policies.length <= OPEN_UP_TO)),
    withoutRule.length > 0 &&
      table({
        columns: [
          { title: "Without a rule", cell: ({ source, destination }) => `${endName(source)} → ${endName(destination)}` },
          { title: "Port", nowrap: true, cell: port },
          { title: "Direction", cell: ({ direction }) => direction },
          { title: "Why", cell: ({ reason }) => reason },
        ],
        rows: withoutRule,
        caption: "Flows without a rule",
        key: "without rule",
      }),
  ];
}

const MARKS = { "+": "added", "-": "removed", " ": "same" };

function policyPart({ namespace, name, workloads, comments, existing, diff }, isOpen) {
  const lines = diff.split("\n").filter((line) => line !== "");
  return h(
    "details.difference",
    { open: isOpen, "data-key": `difference ${namespace}/${name}` },
    h(
      "summary",
      {},
      h("b", {}, `${namespace}/${name}`),
      ` for ${workloads.join(", ")} `,
      h("span.soft", {}, existing === null ? "No policy of these pods to compare with" : `Compared with ${existing}`),
    ),
    ...comments.map((comment) => h("p.soft", {}, comment)),
    h("pre.diff", {}, ...lines.map((line) => h(`span.${MARKS[line[0]] ?? "same"}`, {}, `${line}\n`))),
  );
}
