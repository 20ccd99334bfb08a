// Starts the page: reads the state from the URL, loads and shows the data of the screen, and follows the stream of records.

import { QueryError } from "./api.js";
import { h, replace } from "./dom.js";
import { filterBar } from "./filters.js";
import { time } from "./format.js";
import { listen, helpDialog } from "./keys.js";
import { follow } from "./live.js";
import * as audit from "./audit.js";
import * as coverage from "./coverage.js";
import * as edge from "./edge.js";
import * as flows from "./flows.js";
import * as map from "./map.js";
import * as policies from "./policies.js";
import * as whatif from "./whatif.js";
import * as workload from "./workload.js";
import { link, toggle } from "./parts.js";
import { RANGES, SCREENS, formatState, parseState } from "./state.js";

const MODULES = { map, flows, workload, audit, policies, whatif, coverage };

const TITLES = {
  map: "Map",
  flows: "Flows",
  workload: "Workload",
  audit: "Audit",
  policies: "Policies",
  whatif: "What if",
  coverage: "Coverage",
};

const RANGE_TITLES = { "5m": "5 min", "15m": "15 min", "1h": "1 hour" };

const page = {
  state: parseState(location.search),
  // Data of the screen and of the panel by the key of their queries.
  loaded: { screen: { key: null, data: null }, panel: { key: null, data: null } },
  problem: null,
  isLive: false,
  newest: null,
  abort: new AbortController(),
  stop: null,
};

const header = document.querySelector("header");
const main = document.querySelector("main");
const help = helpDialog();
document.body.append(help);

function contextOf() {
  return { state: page.state, go, show, newest: page.newest };
}

/** Shows another state, and records it in the history of the browser unless `replace` is set. */
function go(state, { replace: isReplaced = false } = {}) {
  const url = formatState(state);
  if (isReplaced) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  const isOther = state.screen !== page.state.screen || state.name !== page.state.name;
  page.state = state;
  update();
  if (isOther) window.scrollTo(0, 0);
}

window.addEventListener("popstate", () => {
  page.state = parseState(location.search);
  update();
});

/** Loads what the state needs and is not there, or everything if `isStale` is set, and shows it. */
async function update({ isStale = false } = {}) {
  page.abort.abort();
  page.abort = new AbortController();
  const { signal } = page.abort;
  const module = MODULES[page.state.screen];
  document.documentElement.dataset.busy = "true";
  connect();
  // The first screen shows a loading note; later, the previous screen stays until the next one has loaded.
  const { key } = page.loaded.screen;
  if (key === null || key === `${page.state.screen} ${module.key(page.state)}`) show();
  else showHeader();
  try {
    await load("screen", module, page.state.screen, isStale, signal);
    page.problem = null;
    if (edge.isOpen(page.state)) {
      show();
      await load("panel", edge, "edge", isStale, signal);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof QueryError)) throw error;
    page.problem = error.message;
  }
  show();
  document.documentElement.dataset.busy = "false";
}

async function load(part, module, name, isStale, signal) {
  const key = `${name} ${module.key(page.state)}`;
  if (!isStale && page.loaded[part].key === key) return;
  const data = await module.load(page.state, signal);
  page.loaded[part] = { key, data };
}

function show() {
  const { state } = page;
  const module = MODULES[state.screen];
  const { key, data } = page.loaded.screen;
  const isThere = key === `${state.screen} ${module.key(state)}`;
  document.title = `${TITLES[state.screen]} - Ringfence flows`;
  document.documentElement.dataset.screen = isThere ? state.screen : "";
  showHeader();
  main.classList.toggle("withpanel", isThere && edge.isOpen(state));
  replace(
    main,
    page.problem !== null &&
      h(
        "p.problem",
        { role: "alert" },
        page.problem,
        h("button", { type: "button", onclick: () => update({ isStale: true }) }, "Try again"),
      ),
    // A filter that is refused can be removed.
    page.problem !== null && !isThere && filterBar(contextOf()),
    h(
      "div.screen",
      {},
      isThere ? module.view(contextOf(), data) : h("p.note", {}, page.problem === null ? "Loading …" : ""),
    ),
    edge.isOpen(state) && isThere && panel(),
  );
  moveFocus(isThere && edge.isOpen(state));
  if (isThere && performance.getEntriesByName("first-screen").length === 0) {
    // After the frame that shows it.
    requestAnimationFrame(() => setTimeout(() => performance.mark("first-screen")));
  }
}

// The panel takes the focus when it opens, and gives it back to what opened it.
let opener = null;

function moveFocus(isPanelOpen) {
  const close = main.querySelector(".panel .close");
  if (isPanelOpen && close !== null && opener === null) {
    opener = document.activeElement?.dataset?.key ?? "";
    close.focus({ preventScroll: true });
  } else if (!isPanelOpen && opener !== null) {
    const next = [...main.querySelectorAll("[data-key]")].find((element) => element.dataset.key === opener);
    opener = null;
    next?.focus({ preventScroll: true });
  }
}

function panel() {
  const { key, data } = page.loaded.panel;
  const isThere = key === `edge ${edge.key(page.state)}`;
  return isThere
    ? edge.view(contextOf(), data)
    : h("aside.panel", { "aria-label": "Flows" }, h("p.note", {}, "Loading …"));
}

function showHeader() {
  const { state } = page;
  const screens = SCREENS.map((screen) => {
    const next = { ...parseState(""), since: state.since, pause: state.pause, filters: state.filters, screen };
    return link(
      contextOf(),
      next,
      { "aria-current": screen === state.screen ? "page" : undefined, "data-key": `to ${screen}` },
      TITLES[screen],
    );
  });
  const ranges = RANGES.map((range) =>
    toggle(RANGE_TITLES[range], range === state.since, () => go({ ...state, since: range }), {
      "data-key": `range ${range}`,
    }),
  );
  const status = state.pause ? "paused" : page.isLive ? "live" : "connecting";
  const live = h(
    "button.live",
    {
      type: "button",
      "data-key": "pause",
      "data-status": status,
      "aria-pressed": String(state.pause),
      title: state.pause ? "Follow new records (p)" : "Stop following new records (p)",
      onclick: () => go({ ...state, pause: !state.pause }, { replace: true }),
    },
    status,
    page.newest !== null && h("span.time", {}, time(page.newest)),
  );
  replace(
    header,
    h("span.brand", {}, h("img", { src: "/ui/icon.svg", alt: "", width: 20, height: 20 }), "Ringfence flows"),
    h("nav", { "aria-label": "Screens" }, ...screens),
    h("span.segments.ranges", { role: "group", "aria-label": "Range" }, ...ranges),
    live,
    h(
      "button",
      {
        type: "button",
        "data-key": "help",
        title: "Keyboard",
        "aria-label": "Keyboard",
        onclick: () => help.showModal(),
      },
      "?",
    ),
  );
}

/** Opens or closes the stream: it is closed while the page is paused or hidden. */
function connect() {
  const wanted = !page.state.pause && !document.hidden;
  if (wanted && page.stop === null) {
    page.stop = follow(
      (window) => {
        page.newest = window;
        if (MODULES[page.state.screen].isStill) showHeader();
        else update({ isStale: true });
      },
      (isLive) => {
        page.isLive = isLive;
        showHeader();
      },
    );
  } else if (!wanted && page.stop !== null) {
    page.stop();
    page.stop = null;
    page.isLive = false;
  }
}

document.addEventListener("visibilitychange", () => update({ isStale: !document.hidden }));

let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (width === document.documentElement.clientWidth) return;
  width = document.documentElement.clientWidth;
  show();
});

// The panel begins below the header, whose lines depend on the width.
new ResizeObserver(() => {
  document.documentElement.style.setProperty("--header", `${header.offsetHeight}px`);
}).observe(header);

listen({
  screens: SCREENS,
  open: (screen) =>
    go({ ...parseState(""), since: page.state.since, pause: page.state.pause, filters: page.state.filters, screen }),
  pause: () => go({ ...page.state, pause: !page.state.pause }, { replace: true }),
  toggleView: () => go({ ...page.state, view: page.state.view === "table" ? "" : "table" }),
  close: () => (page.state.from !== "" || page.state.to !== "") && go({ ...page.state, from: "", to: "" }),
  help: () => help.showModal(),
});

update();
