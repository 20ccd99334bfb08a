// Policies that decided: what each did, and for one its rules and the edges that it decided about.

import { getJson } from "./api.js";
import { edgeColumns } from "./columns.js";
import { loadUnseen, unseenPart } from "./declared.js";
import { h } from "./dom.js";
import { endKey, endName, policyName } from "./ends.js";
import { ago, plural } from "./format.js";
import { policyLink } from "./edge.js";
import { comparisonNote, empty, link, note, table, toggle, truncation } from "./parts.js";
import { queryOf } from "./state.js";
import { ruleFacts } from "./traces.js";
import { decisionColumns, stage } from "./workload.js";

export const key = (state) => `${state.since} ${state.name}`;

export async function load(state, signal) {
  const filters = state.name === "" ? {} : { policy: [state.name] };
  const query = queryOf({ ...state, filters });
  const [statistics, graph, declared] = await Promise.all([
    getJson(`/v1/statistics?${query}`, signal),
    state.name === "" ? null : getJson(`/v1/graph?${query}`, signal),
    loadUnseen(signal),
  ]);
  return { statistics, graph, declared };
}

export function view(context, { statistics, graph, declared }) {
  const compared = declared?.policies === "known" ? declared : null;
  const screen = graph === null ? list(context, statistics, compared) : one(context, statistics, graph);
  return [screen, compared !== null && unseen(compared, context.state.name)];
}

/** Declared edges without a flow: of all policies, or of the rules of one. */
function unseen(declared, name) {
  // `ingress: shop/api spec.ingress[0]`, `egress: ClusterNetworkPolicy tenants spec.egress[1] (Admin tier, Accept)`
  const isOf = (rule) => rule.replace(/^[a-z]+: (ClusterNetworkPolicy )?/, "").split(" ")[0] === name;
  const rows = name === "" ? declared.unseen : declared.unseen.filter(({ rules }) => rules.some(isOf));
  const nothing = name === "" ? "Every declared edge was seen." : "Every edge that its rules declare was seen.";
  return [comparisonNote(declared), unseenPart(rows, nothing)];
}

const STAGES = [
  ["", "all"],
  ["enforced", "enforced"],
  ["pending", "in audit"],
];

function list(context, { policies }, compared) {
  const { state, go } = context;
  if (policies.length === 0)
    return empty(
      "No policy judged a flow in this range.",
      "Flows of pods that no policy selects are allowed without one.",
    );
  const rows = policies.filter((policy) => state.view === "" || policy.stage === state.view);
  const columns = [
    {
      title: "Policy",
      cell: (policy) => policyLink(context, policy) ?? policyName(policy),
      value: policyName,
    },
    { title: "Direction", cell: (policy) => policy.direction, value: (policy) => policy.direction },
    { title: "Stage", cell: stage, value: (policy) => policy.stage },
    ...decisionColumns(rows),
  ];
  const stages = STAGES.map(([word, label]) =>
    toggle(label, state.view === word, () => go({ ...state, view: word }, { replace: true }), {
      "data-key": `stage ${label}`,
    }),
  );
  return [
    h(
      "div.bar",
      {},
      h("span.segments", { role: "group", "aria-label": "Stage" }, ...stages),
      // The table of policies may be long, and the edges are below it.
      compared !== null &&
        h(
          "button",
          { type: "button", "data-key": "to unseen", onclick: () => document.getElementById("unseen").scrollIntoView() },
          `${plural(compared.unseen.length, "declared edge")} not seen`,
        ),
      h("span.sum", {}, plural(rows.length, "policy", "policies")),
    ),
    note("Policies that judged no flow in this range are not listed."),
    table({ columns, rows, caption: "Policies that judged flows", context, standard: "Policy" }),
  ];
}

function one(context, statistics, graph) {
  const { state } = context;
  const name = state.name;
  const mine = statistics.rules.filter((rule) => policyName(rule) === name);
  const title = h(
    "div.title",
    {},
    h("h1", {}, name),
    link(context, { ...state, name: "", sort: "" }, {}, "All policies"),
    link(context, { ...state, screen: "flows", name: "", sort: "", filters: { policy: [name] } }, {}, "Its records"),
  );
  if (mine.length === 0) return [title, empty("It judged no flow in this range.", "Choose a longer range.")];
  const rules = [
    {
      title: "Rule",
      cell: (rule) => h("span", {}, h("code", {}, rule.rule ?? "isolates, no rule matches"), " ", ...ruleFacts(rule)),
    },
    { title: "Direction", cell: (rule) => rule.direction },
    { title: "Stage", cell: stage },
    ...decisionColumns(mine),
  ];
  const open = (edge) =>
    context.go({ ...state, from: endKey(graph.nodes[edge.source]), to: endKey(graph.nodes[edge.destination]) });
  const text = (edge) => `${endName(graph.nodes[edge.source])} → ${endName(graph.nodes[edge.destination])}`;
  const edges = [
    {
      title: "Flows",
      cell: (edge) =>
        h(
          "button.link",
          { type: "button", "data-key": `decided ${text(edge)}`, onclick: () => open(edge) },
          text(edge),
        ),
      value: text,
    },
    ...edgeColumns(),
    { title: "Last", nowrap: true, cell: (edge) => ago(edge.last), value: (edge) => edge.last },
  ];
  return [
    title,
    h("h2", {}, "Rules that decided"),
    table({ columns: rules, rows: mine, caption: "Rules", key: "rules" }),
    h("h2", {}, "Flows that it decided about"),
    truncation(graph),
    table({ columns: edges, rows: graph.edges, caption: "Flows", context, standard: "-Connections" }),
  ];
}
