// The picture of the map: namespaces as groups, workloads as cards within open groups, edges by verdict.

import { h, place, svg } from "./dom.js";
import { plural, traffic } from "./format.js";
import { hubsOf, verdictOf } from "./graph.js";
import { layout } from "./layout.js";
import { verdict } from "./parts.js";
import { followPointer } from "./pointing.js";

const GROUP = { width: 190, height: 56 };
const CARD = { width: 164, height: 34, gap: 8 };

/** Room for edges between the columns of cards in a group. */
const CARD_COLUMN_GAP = 48;
const OPEN = { head: 38, pad: 12 };

/** Cards in a column of an open group. */
const COLUMN = 7;

// The layout of the last picture is reused while the boxes are the same, so that the map does not move.
let last = { key: "", result: null };

/** The map of a summary of the graph; `opened` are the ids of open groups. */
export function picture(context, summary, opened) {
  const boxes = summary.groups.map((group) => ({ id: group.id, ...sizeOf(group) }));
  const owner = new Map();
  for (const group of summary.groups) {
    owner.set(group.id, group.id);
    for (const end of group.ends) owner.set(end.key, group.id);
  }
  const width = Math.max(320, room());
  const gapX = width < 1000 ? 56 : 110;
  const same = JSON.stringify([boxes, width]);
  if (last.key !== same) {
    const links = summary.edges.map(({ source, target }) => [owner.get(source), owner.get(target)]);
    last = { key: same, result: layout(boxes, links, width, { gapX }) };
  }
  const { places, width: full, height } = last.result;
  const rectangles = rectanglesOf(summary.groups, places);
  const boxesBehind = summary.groups.map((group) => groupBox(group, places.get(group.id)));
  const nodes = summary.groups.flatMap((group) => groupNodes(context, group, rectangles, opened));
  const lastColumn = Math.max(...[...places.values()].map(({ column }) => column));
  const hubs = hubsOf(summary);
  const matching = matchesOf(summary.groups);
  const shownAs = (key) => (rectangles.has(key) ? key : owner.get(key));
  const [from, to] = [context.state.from, context.state.to].map(shownAs);
  const lines = summary.edges
    .filter((edge) => edge.source !== edge.target)
    .map((edge) => {
      const line = edgeLine(
        context,
        edge,
        pathOf(rectangles.get(edge.source), rectangles.get(edge.target), lastColumn),
      );
      if (edge.source === from && edge.target === to) line.classList.add("chosen");
      else if (!matching.has(edge.source) && !matching.has(edge.target)) line.classList.add("dim");
      else if (hubs.has(edge.source) || hubs.has(edge.target)) line.classList.add("faint");
      return line;
    });
  for (const node of nodes.flatMap((each) => [each, ...each.children])) {
    if ([from, to].includes(node.dataset.node)) node.classList.add("chosen");
  }
  const unseen = summary.unseen.map((edge) =>
    svg(
      hubs.has(edge.source) || hubs.has(edge.target) ? "g.edge.unseen.faint" : "g.edge.unseen",
      { "data-source": edge.source, "data-target": edge.target },
      svg("title", {}, `declared, not seen: ${edge.ports.join(", ")} ${edge.rules.join("; ")}`),
      svg("path.line.unseen", { d: pathOf(rectangles.get(edge.source), rectangles.get(edge.target), lastColumn) }),
    ),
  );
  const canvas = place(
    h(
      "div.canvas",
      { role: "group", "aria-label": "Map of flows; the view Table has the same edges" },
      ...boxesBehind,
      svg("svg", { width: full, height, "aria-hidden": "true" }, markers(), ...unseen, ...lines),
      ...nodes,
    ),
    { width: `${full}px`, height: `${height}px` },
  );
  followPointer(canvas);
  return h("div.mapframe", { "data-scroll": "map" }, canvas, legend(hubs.size > 0, summary.isDeclared));
}

/** Pixels for the map, beside an open panel. */
function room() {
  const main = document.querySelector("main");
  const { paddingLeft, paddingRight } = getComputedStyle(main);
  return main.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
}

// Keys of the search results; all keys without a search.
function matchesOf(groups) {
  const ends = groups.flatMap((group) => (group.isOpen ? group.ends : []));
  return new Set([
    ...groups.filter((group) => group.isMatch && !group.isOpen).map((group) => group.id),
    ...ends.filter((end) => end.isMatch).map((end) => end.key),
  ]);
}

function legend(hasHubs, isDeclared) {
  return h(
    "p.legend",
    {},
    verdict("allowed"),
    verdict("would-deny"),
    verdict("denied"),
    isDeclared && h("span.sample.undeclared", {}, "seen, not declared"),
    isDeclared && h("span.sample.unseen", {}, "declared, not seen"),
    h("span", {}, "Thicker edges have more connections."),
    hasHubs && h("span", {}, "Edges of peers that most groups have, such as DNS, are faint until you point at one."),
    h("span", {}, "Arrow keys move, Enter opens."),
  );
}

function sizeOf(group) {
  if (!group.isOpen) return { width: GROUP.width, height: GROUP.height };
  const columns = Math.ceil(group.ends.length / COLUMN);
  const rows = Math.ceil(group.ends.length / columns);
  return {
    width: 2 * OPEN.pad + columns * CARD.width + (columns - 1) * CARD_COLUMN_GAP,
    height: OPEN.head + OPEN.pad + rows * CARD.height + (rows - 1) * CARD.gap,
  };
}

function cardPlace(group, at) {
  const rows = Math.ceil(group.ends.length / Math.ceil(group.ends.length / COLUMN));
  return {
    part: Math.floor(at / rows),
    x: OPEN.pad + Math.floor(at / rows) * (CARD.width + CARD_COLUMN_GAP),
    y: OPEN.head + (at % rows) * (CARD.height + CARD.gap),
  };
}

function rectanglesOf(groups, places) {
  const rectangles = new Map();
  for (const group of groups) {
    const { x, y, column } = places.get(group.id);
    rectangles.set(group.id, { x, y, column, ...sizeOf(group) });
    if (!group.isOpen) continue;
    group.ends.forEach((end, at) => {
      const card = cardPlace(group, at);
      // Columns of cards count as columns within that of their group.
      rectangles.set(end.key, {
        x: x + card.x,
        y: y + card.y,
        column: column + card.part / 10,
        width: CARD.width,
        height: CARD.height,
      });
    });
  }
  return rectangles;
}

/** The background of a group, which is behind the edges. */
function groupBox(group, { x, y }) {
  const { width, height } = sizeOf(group);
  const box = h(`div.group.${group.kind}`, {});
  if (group.isOpen) box.classList.add("open");
  if (!group.isMatch) box.classList.add("dim");
  return placed(box, { x, y, width, height });
}

/** The head and the cards of a group, which are before the edges. */
function groupNodes(context, group, rectangles, opened) {
  const { state, go } = context;
  const others = opened.filter((id) => id !== group.id);
  const toggleOpen = () => go({ ...state, open: group.isOpen ? others : [...others, group.id] });
  const rectangle = rectangles.get(group.id);
  const head = h(
    "button.head",
    {
      type: "button",
      "data-key": group.id,
      "data-node": group.id,
      "aria-expanded": String(group.isOpen),
      onclick: toggleOpen,
      title: group.name,
    },
    h("span.name", {}, group.name),
    h("span.size", {}, group.isOpen ? "" : plural(group.ends.length, noun(group))),
  );
  const hide = h(
    "button.hide",
    {
      type: "button",
      tabindex: "-1",
      "aria-label": `Hide ${group.name}`,
      title: "Hide this group and its edges",
      onclick: () => go({ ...state, hide: [...state.hide, group.id] }),
    },
    "×",
  );
  const top = h(group.isOpen ? "div.top.open" : "div.top", {}, head, hide);
  if (!group.isMatch) top.classList.add("dim");
  placed(top, { ...rectangle, height: group.isOpen ? OPEN.head : rectangle.height });
  const cards = !group.isOpen
    ? []
    : group.ends.map((end) => {
        const onclick = () =>
          go(
            end.end.kind === "pod"
              ? { ...state, screen: "workload", name: end.key, from: "", to: "" }
              : { ...state, q: end.fullName, view: "table" },
          );
        const card = h(
          "button.card",
          { type: "button", "data-key": `card ${end.key}`, "data-node": end.key, onclick, title: end.fullName },
          end.name,
        );
        if (!end.isMatch) card.classList.add("dim");
        return placed(card, rectangles.get(end.key));
      });
  return [top, ...cards];
}

function placed(element, { x, y, width, height }) {
  return place(element, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
}

function noun(group) {
  return group.kind === "namespace" ? "workload" : "end";
}

function markers() {
  const arrow = (word) =>
    svg(
      "marker",
      {
        id: `arrow-${word}`,
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerWidth: 8,
        markerHeight: 8,
        markerUnits: "userSpaceOnUse",
        orient: "auto",
      },
      svg(`path.arrow.${word}`, { d: "M0,0.5 L8,4 L0,7.5 Z" }),
    );
  return svg("defs", {}, ...["allowed", "would-deny", "denied"].map(arrow));
}

function edgeLine(context, edge, path) {
  const word = verdictOf(edge);
  const size = 1 + Math.log10(1 + edge.connections + edge.deniedPackets) * 0.7;
  const line = svg(`path.line.${word}`, {
    d: path,
    "stroke-width": size.toFixed(1),
    "marker-end": `url(#arrow-${word})`,
  });
  if (edge.isViolation && word === "allowed") {
    line.classList.add("undeclared");
    line.setAttribute("marker-end", "url(#arrow-denied)");
  }
  const [from, to] = edge.ends;
  const onclick = () => context.go({ ...context.state, from, to });
  const label = `${edge.source} to ${edge.target}: ${traffic(edge)}`.replace(/\b(ns|pod|outside)\//g, "");
  return svg(
    "g.edge",
    { "data-source": edge.source, "data-target": edge.target, onclick },
    svg("title", {}, label),
    svg("path.hit", { d: path }),
    line,
  );
}

// A curve that leaves at the side of the source that faces the target.
function pathOf(source, target, lastColumn) {
  const [y1, y2] = [source.y + source.height / 2, target.y + target.height / 2];
  if (source.column === target.column) {
    const isLast = source.column === lastColumn && lastColumn > 0;
    const [x1, x2] = isLast ? [source.x, target.x] : [source.x + source.width, target.x + target.width];
    const most = source.width === CARD.width ? CARD_COLUMN_GAP - 14 : 66;
    const bend = Math.min(most, 24 + Math.abs(y2 - y1) / 8) * (isLast ? -1 : 1);
    return `M${x1},${y1} C${x1 + bend},${y1} ${x2 + bend},${y2} ${x2},${y2}`;
  }
  const forward = source.column < target.column;
  const [x1, x2] = forward ? [source.x + source.width, target.x] : [source.x, target.x + target.width];
  const bend = Math.max(20, Math.abs(x2 - x1) / 2) * (forward ? 1 : -1);
  return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
}
