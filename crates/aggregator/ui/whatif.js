// What-if: which observed edges a change of policies would affect. Nothing is written anywhere: the policies are sent to the
// aggregator, compared, and forgotten.

import { QueryError, postText } from "./api.js";
import { h } from "./dom.js";
import { endKey, endName } from "./ends.js";
import { ago, count, plural, port } from "./format.js";
import { link, note, table } from "./parts.js";

/** New records do not redraw this screen while somebody types. */
export const isStill = true;

export const key = () => "";

export async function load() {
  return null;
}

const EXAMPLE = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  namespace: shop
  name: api
spec:
  podSelector: {matchLabels: {app: api}}
  policyTypes: [Ingress]
  ingress: []
`;

/** The shape and words of an effect. */
const EFFECTS = {
  "newly-denied": ["denied", "newly denied"],
  "newly-would-deny": ["would-deny", "newly denied if enforced"],
  "newly-allowed": ["allowed", "newly allowed"],
  "no-longer-would-deny": ["allowed", "no longer denied if enforced"],
  "other-rule": ["allowed", "decided by another rule"],
};

// The elements outlive a redraw, so that text, selection and focus do.
let fields = null;
let result = { report: null, problem: null, isBusy: false };

function fieldsOf(redraw) {
  if (fields !== null) return fields;
  const policies = h("textarea.policies", {
    id: "policies",
    name: "policies",
    "data-key": "policies",
    rows: 14,
    spellcheck: "false",
    autocomplete: "off",
    placeholder: EXAMPLE,
  });
  const deleted = h("input", {
    id: "deleted",
    name: "deleted",
    "data-key": "deleted",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    placeholder: "NetworkPolicy/shop/api",
  });
  fields = { policies, deleted };
  deleted.addEventListener("keydown", (event) => event.key === "Enter" && compare(redraw));
  policies.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) compare(redraw);
  });
  return fields;
}

async function compare(redraw) {
  if (result.isBusy) return;
  const { policies, deleted } = fields;
  const names = deleted.value.split(/[\s,]+/).filter((name) => name !== "");
  result = { report: null, problem: null, isBusy: true };
  redraw();
  try {
    const search = new URLSearchParams(names.map((name) => ["delete", name]));
    const report = await postText(`/v1/what-if?${search}`, policies.value);
    result = { report, problem: null, isBusy: false };
  } catch (error) {
    if (!(error instanceof QueryError)) throw error;
    result = { report: null, problem: error.message, isBusy: false };
  }
  redraw();
}

export function view(context) {
  const redraw = () => context.state.screen === "whatif" && context.show();
  const { policies, deleted } = fieldsOf(redraw);
  return [
    h("p.lead", {}, "What would change if these policies were applied?"),
    note("Policies are compared with the flows that were seen, by the pods that exist. Nothing is written to the cluster."),
    h(
      "div.whatif",
      {},
      h("label", { for: "policies" }, "NetworkPolicy and ClusterNetworkPolicy, as YAML or JSON"),
      policies,
      h("label", { for: "deleted" }, "Policies to delete"),
      h(
        "div.bar",
        {},
        deleted,
        h(
          "button.primary",
          { type: "button", "data-key": "compare", disabled: result.isBusy, onclick: () => compare(redraw) },
          "Compare",
        ),
        h("span.soft", {}, "Ctrl+Enter"),
      ),
    ),
    result.isBusy && note("Comparing …"),
    result.problem !== null && h("p.problem", { role: "alert" }, result.problem),
    result.report !== null && reportOf(context, result.report),
  ];
}

const ACTIONS = {
  created: "would be created",
  changed: "would be changed",
  deleted: "would be deleted",
  unchanged: "exists as given",
  "not-found": "does not exist",
};

function reportOf(context, { policies, findings, edges, unchanged, changed, notEvaluated }) {
  const columns = [
    { title: "Effect", nowrap: true, cell: ({ effect }) => effectOf(effect) },
    { title: "Edge", cell: (edge) => [edgeLink(context, edge), " ", h("code.whole", {}, port(edge))] },
    { title: "Now", cell: ({ before, after }) => decisions(before, after) },
    { title: "Then", cell: ({ before, after }) => decisions(after, before) },
    { title: "Flows", number: true, cell: ({ flows, judged }) => (flows === judged ? count(flows) : `${flows} of ${judged}`) },
    { title: "Connections", number: true, cell: ({ connections }) => count(connections) },
    { title: "Last", nowrap: true, cell: ({ last }) => ago(last) },
  ];
  const counts = Object.entries(EFFECTS)
    .map(([effect, [, words]]) => [changed.filter((edge) => edge.effect === effect).length, words])
    .filter(([number]) => number > 0)
    .map(([number, words]) => `${number} ${words}`);
  const rest = [`${unchanged} unchanged`, ...(notEvaluated.length > 0 ? [`${notEvaluated.length} not evaluated`] : [])];
  return h(
    "section.result",
    { "aria-label": "Result" },
    h("ul.policylist", {}, ...policies.map(({ policy, action }) => h("li", {}, `${policy} ${ACTIONS[action]}`))),
    findings.length > 0 &&
      h(
        "ul.findings",
        {},
        ...findings.map(({ severity, message }) =>
          h("li", {}, h(`span.verdict.${severity === "error" ? "denied" : "would-deny"}`, {}, severity), ` ${message}`),
        ),
      ),
    h("p.summary", {}, `${edges} observed ${edges === 1 ? "edge" : "edges"}: ${[...counts, ...rest].join(", ")}`),
    changed.length > 0 && table({ columns, rows: changed, caption: "Edges that change", key: "changed" }),
    notEvaluated.length > 0 &&
      table({
        columns: [
          { title: "Not evaluated", cell: (edge) => edgeLink(context, edge) },
          { title: "Port", nowrap: true, cell: port },
          { title: "Why", cell: ({ reason }) => REASONS[reason] ?? reason },
          { title: "Last", nowrap: true, cell: ({ last }) => ago(last) },
        ],
        rows: notEvaluated,
        caption: "Edges that were not evaluated",
        key: "not evaluated",
      }),
  );
}

const REASONS = {
  "source-gone": "no pod of the source exists any more",
  "destination-gone": "no pod of the destination exists any more",
  "source-unknown": "the source was an unknown pod, or its address has another owner now",
  "destination-unknown": "the destination was an unknown pod, or its address has another owner now",
  "remote-unknown": "addresses of pods of the other cluster are not known",
  "many-ports": "its records aggregate many ports",
  "no-common-family": "its ends have no address family in common",
};

function effectOf(effect) {
  const [shape, words] = EFFECTS[effect];
  return h(`span.verdict.${shape}`, {}, words);
}

function edgeLink(context, { source, destination }) {
  const to = { ...context.state, screen: "map", from: endKey(source), to: endKey(destination) };
  const end = (name) => h("span.whole", {}, name);
  return link(context, to, {}, end(endName(source)), " → ", end(endName(destination)));
}

/** The sides of an explanation that differ from the other one. */
function decisions(explanation, other) {
  const sides = ["egress", "ingress"].filter(
    (side) => JSON.stringify(explanation[side]) !== JSON.stringify(other[side]),
  );
  return sides.map((side) => h("div", {}, `${side}: ${decision(explanation[side])}`));
}

function decision(side) {
  const rule = ({ policy, field }) => `${policy} ${field}`;
  switch (side.verdict) {
    case "not-a-pod":
      return "no pod";
    case "not-isolated":
      return "allowed: no policy isolates the pod";
    case "itself":
    case "own-node":
      return "always allowed";
    case "allowed":
    case "accepted":
      return `allowed by ${rule(side.rule)}`;
    case "would-allow":
    case "would-accept":
      return `passes; in audit, allowed by ${rule(side.rule)}`;
    case "denied":
      return `denied, isolated by ${side.isolatedBy.join(", ")}`;
    case "denied-by-rule":
      return `denied by ${rule(side.rule)}`;
    case "would-deny":
      return `passes; would be denied, in audit by ${side.auditedBy.join(", ")}`;
    case "would-deny-by-rule":
      return `passes; in audit, would be denied by ${rule(side.rule)}`;
    default:
      return `denied: ${side.reason ?? side.verdict}`;
  }
}
