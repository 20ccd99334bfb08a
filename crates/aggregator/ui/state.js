// The state of the page is its URL: these functions convert one to the other.

/** Filters of the API, in the order of the filter bar. Values of one field are alternatives. */
const FILTERS = ["namespace", "workload", "peer", "port", "protocol", "verdict", "policy"];

export const SCREENS = ["map", "flows", "workload", "audit", "policies", "whatif", "coverage"];

/** Ranges of time: all that the aggregator keeps is an hour. */
export const RANGES = ["5m", "15m", "1h"];

const TEXTS = { screen: "map", since: "15m", view: "", q: "", from: "", to: "", name: "", sort: "", before: "", suggest: "" };
const LISTS = ["hide"];
const FLAGS = ["pause"];

/** Parses the query string of a URL. Unknown parameters are ignored. */
export function parseState(search) {
  const given = new URLSearchParams(search);
  const state = { filters: {}, open: given.has("open") ? split(given.get("open")) : null };
  for (const [key, standard] of Object.entries(TEXTS)) state[key] = given.get(key) ?? standard;
  for (const key of LISTS) state[key] = split(given.get(key) ?? "");
  for (const key of FLAGS) state[key] = given.has(key);
  for (const field of FILTERS) {
    const values = given.getAll(field).filter((value) => value !== "");
    if (values.length > 0) state.filters[field] = [...new Set(values)];
  }
  if (!SCREENS.includes(state.screen)) state.screen = TEXTS.screen;
  if (!RANGES.includes(state.since)) state.since = TEXTS.since;
  return state;
}

/** The query string of a state: `?` and the parameters that differ from their defaults. */
export function formatState(state) {
  const search = new URLSearchParams();
  for (const [key, standard] of Object.entries(TEXTS)) {
    if (state[key] !== standard) search.set(key, state[key]);
  }
  for (const field of FILTERS) {
    for (const value of state.filters[field] ?? []) search.append(field, value);
  }
  if (state.open !== null) search.set("open", join(state.open));
  for (const key of LISTS) {
    if (state[key].length > 0) search.set(key, join(state[key]));
  }
  for (const key of FLAGS) {
    if (state[key]) search.set(key, "");
  }
  return `?${search}`;
}

/** The parameters of a query of the API for this state, with further ones. */
export function queryOf(state, more = {}) {
  const search = new URLSearchParams({ since: state.since });
  for (const [field, values] of Object.entries(state.filters)) {
    for (const value of values) search.append(field, value);
  }
  for (const [key, value] of Object.entries(more)) {
    for (const each of [value].flat()) search.append(key, each);
  }
  return search.toString();
}

/** The state with a filter value added or removed. */
export function toggleFilter(state, field, value) {
  const values = state.filters[field] ?? [];
  const next = values.includes(value) ? values.filter((each) => each !== value) : [...values, value];
  const filters = { ...state.filters, [field]: next };
  if (next.length === 0) delete filters[field];
  return { ...state, filters };
}

// Lists are separated by commas, which are escaped within their items.
function split(text) {
  return text
    .split(",")
    .filter((item) => item !== "")
    .map(decode);
}

function join(items) {
  return items.map((item) => encodeURIComponent(item)).join(",");
}

function decode(item) {
  try {
    return decodeURIComponent(item);
  } catch {
    return item;
  }
}
