// Traces: the decisions of the policies of each side, as in the output of `ringfence explain`.

import { h } from "./dom.js";
import { policyName } from "./ends.js";
import { verdict } from "./parts.js";

const WORDS = {
  "not-a-pod": ["allowed", "not a pod: no policy applies"],
  "not-isolated": ["allowed", "no policy isolates the pod in this direction"],
  itself: ["allowed", "the pod itself"],
  "own-node": ["allowed", "the pod's own node"],
  allowed: ["allowed", "a rule allows it"],
  denied: ["denied", "no rule matches, or a rule denies it"],
  "would-allow": ["allowed", "policies in audit would allow it"],
  "would-deny": ["would-deny", "policies in audit would deny it"],
  unreadable: ["denied", "an invalid or unsupported policy denies it"],
  unknown: ["allowed", "the policies that decided are no longer known"],
};

/** The trace of one side. */
export function trace(side, open = () => null) {
  const [word, text] = WORDS[side.verdict] ?? ["allowed", side.verdict];
  return h(
    "div.trace",
    {},
    h(
      "p",
      {},
      verdict(word),
      " ",
      text,
      side.enforcedHere || side.verdict === "not-a-pod"
        ? null
        : h("span.soft", {}, " (the node of this side has not reported the flow)"),
    ),
    hits(side.passedBy ?? [], "passed to the next tier", open),
    hits(side.enforced, "", open),
    hits(side.pending, "in audit", open),
  );
}

/** The facts that only rules of cluster policies have: name, tier and action. */
export function ruleFacts({ ruleName, tier, action }) {
  const facts = [ruleName ? `“${ruleName}”` : null, tier ? `${tier} tier` : null, tier ? action : null];
  const text = facts.filter((fact) => fact).join(", ");
  return text === "" ? [] : [h("span.soft", {}, text), " "];
}

function hits(list, stage, open) {
  if (list.length === 0) return null;
  const items = list.map((hit) =>
    h(
      "li",
      {},
      open(hit) ?? policyName(hit),
      " ",
      h("code", {}, hit.rule ?? "isolates the pod, no rule matches"),
      " ",
      ...ruleFacts(hit),
      stage === "" ? null : h("span.stage", {}, stage),
    ),
  );
  return h("ul.hits", {}, ...items);
}

/** Key of a trace, which is equal for traces of the same decision. */
export function traceKey(side) {
  const hit = ({ namespace, name, tier, rule, action }) => [namespace, name, tier, rule, action];
  const lists = [side.enforced, side.pending, side.passedBy ?? []];
  return JSON.stringify([side.verdict, side.enforcedHere, ...lists.map((list) => list.map(hit))]);
}
