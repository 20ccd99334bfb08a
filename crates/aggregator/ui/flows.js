// The table of records, the newest first, with the rules of both sides in an expandable row.

import { getRecords } from "./api.js";
import { h } from "./dom.js";
import { endKey, endName } from "./ends.js";
import { facts, policyLink } from "./edge.js";
import { filterBar } from "./filters.js";
import { count, plural, port, time, volume } from "./format.js";
import { empty, link, note, verdict } from "./parts.js";
import { RANGES, queryOf } from "./state.js";
import { workloadLink } from "./workload.js";
import { trace } from "./traces.js";

/** Records are read in spans of this many seconds, back from the newest, until there are enough rows. */
const SPAN_SECONDS = [60, 120, 240, 480, 960, 1920];
const ENOUGH_ROWS = 200;

/** Most rows that are drawn: a span of a large cluster has more. */
const MOST_ROWS = 400;
const MOST_RECORDS = 5000;

const RANGE_SECONDS = { "5m": 300, "15m": 900, "1h": 3600 };

export const key = (state) => `${queryOf(state)} ${state.before}`;

export async function load(state, signal) {
  const begin = Date.now() - RANGE_SECONDS[state.since] * 1000;
  const end = state.before === "" ? Date.now() + 60_000 : Date.parse(state.before);
  let [until, rows, isCut] = [end, [], false];
  for (const seconds of SPAN_SECONDS) {
    const since = Math.max(begin, until - seconds * 1000);
    if (since >= until) break;
    const query = queryOf({ ...state, since: iso(since) }, { until: iso(until), limit: MOST_RECORDS });
    const { records, nextPage } = await getRecords(query, signal);
    // A window that overlaps the later span was read with that span.
    const known = until === end && state.before === "" ? null : iso(until);
    rows.push(...records.filter((record) => known === null || record.window < known).reverse());
    until = since;
    isCut = nextPage !== null;
    if (rows.length >= ENOUGH_ROWS || isCut || since <= begin) break;
  }
  rows.sort((a, b) => (a.window < b.window ? 1 : a.window > b.window ? -1 : 0));
  const oldest = rows.length > MOST_ROWS ? rows[MOST_ROWS - 1].window : iso(until);
  return {
    rows: rows.slice(0, MOST_ROWS),
    total: rows.length,
    isCut,
    older: until > begin || rows.length > MOST_ROWS ? oldest : null,
  };
}

function iso(milliseconds) {
  const second = Math.floor(milliseconds / 15_000) * 15_000;
  return new Date(second).toISOString().replace(".000Z", "Z");
}

// Rows that are open stay open while new records arrive.
const opened = new Set();

export function view(context, { rows, total, isCut, older }) {
  const { state, go } = context;
  const isPart = state.before === "" && (older !== null || total > rows.length);
  const bar = h(
    "div.bar",
    {},
    state.before !== "" && link(context, { ...state, before: "" }, {}, "Newest"),
    state.before !== "" && h("span", {}, `before ${time(state.before)}`),
    h("span.sum", { role: "status" }, `${isPart ? "the newest " : ""}${plural(rows.length, "record")}`),
  );
  if (rows.length === 0) {
    const longer = RANGES[RANGES.indexOf(state.since) + 1];
    return [
      filterBar(context),
      bar,
      empty(
        "No records in this range.",
        longer
          ? link(context, { ...state, since: longer }, {}, "Choose a longer range")
          : "Remove filters to see more.",
      ),
    ];
  }
  const head = ["Time", "Source", "Destination", "Service", "Port", "Verdict"].map((title) =>
    h("th", { scope: "col" }, title),
  );
  const numbers = ["Began", "Open", "Sent", "Received"].map((title) => h("th.number", { scope: "col" }, title));
  return [
    filterBar(context),
    bar,
    h(
      "div.scroll",
      { "data-scroll": "flows" },
      h(
        "table.records",
        {},
        h("caption", {}, "Records of flows, the newest first"),
        h("thead", {}, h("tr", {}, ...head, ...numbers)),
        h("tbody", {}, ...rows.flatMap((record) => recordRows(context, record))),
      ),
    ),
    isCut && note(`A minute has more than ${count(MOST_RECORDS)} records; filters show the others.`),
    total > rows.length && note(`${count(total - rows.length)} more records of these windows are not drawn.`),
    older !== null &&
      h(
        "p.actions",
        {},
        h(
          "button",
          { type: "button", "data-key": "older", onclick: () => go({ ...state, before: older, pause: true }) },
          "Older records",
        ),
      ),
  ];
}

function recordKey(record) {
  const { window, source, destination, protocol, port: number, service, verdict: word } = record;
  return [
    window,
    endKey(source),
    endKey(destination),
    protocol,
    number,
    service?.name,
    word,
    record.egress.verdict,
    record.ingress.verdict,
  ].join(" ");
}

function recordRows(context, record) {
  const key = recordKey(record);
  const isOpen = opened.has(key);
  const { connections } = record;
  const details = h("tr.details", { hidden: !isOpen }, h("td", { colspan: 10 }, isOpen && detailsOf(context, record)));
  const expand = h(
    "button.link.expand",
    {
      type: "button",
      "aria-expanded": String(isOpen),
      "data-key": `open ${key}`,
      "aria-label": `Details of ${endName(record.source)} to ${endName(record.destination)}`,
      onclick: () => {
        if (opened.has(key)) opened.delete(key);
        else opened.add(key);
        const now = opened.has(key);
        expand.setAttribute("aria-expanded", String(now));
        details.hidden = !now;
        details.firstChild.replaceChildren(...(now ? [detailsOf(context, record)] : []));
      },
    },
    time(record.window),
  );
  const edge = { ...context.state, from: endKey(record.source), to: endKey(record.destination) };
  return [
    h(
      "tr",
      {},
      h("td.nowrap", {}, expand),
      h("td", {}, workloadLink(context, record.source, key)),
      h("td", {}, link(context, edge, { "data-key": `edge ${key}` }, endName(record.destination))),
      h("td", {}, serviceName(record)),
      h("td.nowrap", {}, port(record)),
      h("td", {}, verdict(record.verdict)),
      h(
        "td.number",
        {},
        record.deniedPackets > 0 ? `${count(record.deniedPackets)} packets` : count(connections.started),
      ),
      h("td.number", {}, count(connections.live)),
      h("td.number", {}, record.deniedPackets > 0 ? "-" : volume(record.sent)),
      h("td.number", {}, record.deniedPackets > 0 ? "-" : volume(record.received)),
    ),
    details,
  ];
}

function serviceName({ service }) {
  return service ? `${service.namespace}/${service.name}:${service.portName ?? service.port}` : "-";
}

function detailsOf(context, record) {
  const open = (hit) => policyLink(context, hit);
  const nodes = ({ source, destination, other }) =>
    [...source, ...destination, ...other].filter((node, at, all) => all.indexOf(node) === at).join(", ");
  return h(
    "div.record",
    {},
    end("Source", record.source, record.sources, h("div", {}, h("h4", {}, "Egress"), trace(record.egress, open))),
    end(
      "Destination",
      record.destination,
      record.destinations,
      h("div", {}, h("h4", {}, "Ingress"), trace(record.ingress, open)),
    ),
    h(
      "section",
      {},
      h("h4", {}, "Record"),
      facts([
        ["Window", `${time(record.window)} to ${time(new Date(Date.parse(record.window) + 15_000).toISOString())}`],
        ["Service", serviceName(record)],
        [
          "Connections",
          `${record.connections.started} began, ${record.connections.ended} ended, ${record.connections.live} open, ${record.connections.lost} lost`,
        ],
        ["Denied packets", count(record.deniedPackets)],
        ...(record.dropCause ? [["Cause", record.dropCause]] : []),
        ["Volume unknown", plural(record.unknownVolume, "connection")],
        ["Generation", record.generation ?? "-"],
        ["Seen by", nodes(record.seenBy)],
      ]),
    ),
  );
}

function end(title, endpoint, sample, rules) {
  const list = (items) =>
    items.slice(0, 6).join(", ") + (items.length > 6 ? ` and ${items.length - 6} more` : "") || "-";
  return h(
    "section",
    {},
    h("h4", {}, `${title}: ${endName(endpoint)}`),
    rules,
    facts([
      ["Pods", list(sample.pods)],
      ["Addresses", list(sample.addresses)],
      ["Nodes", list(sample.nodes)],
      ["Labels", list(sample.labels)],
    ]),
    sample.truncated && note("There were more than the record lists."),
  );
}
