// Readiness of audited policies over days, and edges that were seen for the first time.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { endName } from "./ends.js";
import { ago, count, plural, port } from "./format.js";
import { note, table, verdict } from "./parts.js";

/** Up to this many policies, the commands of those that are not ready are open, too. */
const OPEN_UP_TO = 3;

/** New edges that the page lists. */
const MOST_EVENTS = 50;

/** `{readiness, events}`; `null` if the aggregator does not keep observed edges. */
export async function loadReadiness(signal) {
  const readiness = await getJson("/v1/readiness", signal);
  if (!readiness.kept) return null;
  const { events, learnedAt } = await getJson("/v1/edges/first-seen", signal);
  return { readiness, events, learnedAt };
}

export function readinessSection({ readiness }) {
  if (!readiness.policiesKnown) {
    return note("Readiness needs the policies: start the aggregator with --watch-policies on.");
  }
  const { policies, days, unreported, nodes, problems } = readiness;
  const ready = policies.filter((policy) => policy.ready).length;
  return h(
    "section",
    {},
    h("h2", {}, "Ready to enforce?"),
    h(
      "p.lead",
      {},
      policies.length === 0
        ? "No policy is in audit."
        : `${ready} of ${plural(policies.length, "policy", "policies")}. A policy is ready after ${plural(days, "day")} without a flow that it would deny.`,
    ),
    unreported.length > 0 &&
      note(
        `${plural(unreported.length, "node")} of ${nodes} did not report for some of this time, such as ${unreported[0].node}: a silent node is no evidence.`,
      ),
    ...problems.map((problem) => note(problem)),
    ...policies.map((policy) => policyReadiness(policy, policies.length <= OPEN_UP_TO)),
  );
}

function policyReadiness(readiness, isOpen) {
  const { policy, since, cleanSeconds, observedSeconds, connections, last, ready, reasons, steps } = readiness;
  const name = policy.namespace ? `${policy.namespace}/${policy.name}` : `${policy.kind} ${policy.name}`;
  return h(
    "article.readiness",
    {},
    h(
      "h3",
      {},
      name,
      " ",
      h(ready ? "span.declaration.declared" : "span.declaration.undeclared", {}, ready ? "ready" : "not ready"),
    ),
    h(
      "p",
      {},
      `${span(cleanSeconds)} without a would-deny, observed for ${span(observedSeconds)}, since ${day(since)}.`,
      last !== null && ` It would have denied ${plural(connections, "connection")}.`,
    ),
    last !== null &&
      h(
        "p",
        {},
        `Last: ${endName(last.source)} → ${endName(last.destination)} `,
        h("code", {}, port(last)),
        `, ${last.direction}, ${ago(last.at)}`,
        last.sourcePods.length > 0 && `, from ${last.sourcePods[0]}`,
        last.destinationPods.length > 0 && `, to ${last.destinationPods[0]}`,
      ),
    reasons.length > 0 && h("ul.reasons", {}, ...reasons.map((reason) => h("li", {}, reason))),
    steps !== null &&
      h(
        "details.commands",
        { open: ready || isOpen, "data-key": `commands ${name}` },
        h("summary", {}, "Commands"),
        h(
          "dl.steps",
          {},
          h("dt", {}, "Enforce it"),
          h("dd", {}, h("code", {}, steps.enforce)),
          h("dt", {}, "Audit again"),
          h("dd", {}, h("code", {}, steps.undo)),
        ),
      ),
  );
}

/** Day and minute: these times are days apart. */
function day(text) {
  return text.slice(0, 16).replace("T", " ");
}

/** `7.4 days`, `3.5 hours`, `12 minutes`, `40 seconds`. */
function span(seconds) {
  if (seconds < 120) return plural(seconds, "second");
  if (seconds < 7200) return plural(Math.floor(seconds / 60), "minute");
  if (seconds < 172_800) return `${(Math.floor(seconds / 360) / 10).toFixed(1)} hours`;
  return `${(Math.floor(seconds / 8640) / 10).toFixed(1)} days`;
}

export function eventsSection(context, { events, learnedAt }) {
  const columns = [
    { title: "First seen", nowrap: true, cell: (event) => `${day(event.first)}, ${ago(event.first)}` },
    { title: "Source", cell: (event) => endName(event.source) },
    { title: "Destination", cell: (event) => endName(event.destination) },
    { title: "Port", cell: (event) => h("code", {}, port(event)) },
    { title: "Verdict", cell: (event) => verdict(event.verdict) },
  ];
  const rows = events.slice(0, MOST_EVENTS);
  return h(
    "section",
    {},
    h("h2", {}, "Edges seen for the first time"),
    rows.length === 0
      ? note(
          Date.parse(learnedAt) > Date.now()
            ? `Edges are learned until ${day(learnedAt)}; those that are new afterwards are listed here.`
            : "None since the edges were learned.",
        )
      : table({ columns, rows, caption: "Edges seen for the first time", key: "first seen" }),
    events.length > rows.length && note(`These are the newest of ${count(events.length)}.`),
  );
}
