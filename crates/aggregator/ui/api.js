// Queries of the aggregator's API.

/** A query that failed; the message is for people. */
export class QueryError extends Error {}

/** The JSON of a query. */
export async function getJson(path, signal) {
  return (await get(path, signal)).json();
}

/** The records of a page of `/v1/flows`, and the token of the next page. */
export async function getRecords(query, signal) {
  const text = await (await get(`/v1/flows?${query}`, signal)).text();
  const records = text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line));
  const end = records.length > 0 && "nextPage" in records.at(-1) ? records.pop() : null;
  return { records, nextPage: end?.nextPage ?? null };
}

/** The JSON of the answer to a text, which the aggregator compares and does not keep. */
export async function postText(path, body) {
  return (await ask(path, { method: "POST", body, headers: { "content-type": "application/yaml" } })).json();
}

// The aggregator answers 8 queries at a time and asks others to come back a second later.
const ATTEMPTS = 4;

function get(path, signal) {
  return ask(path, { signal });
}

async function ask(path, options) {
  for (let attempt = 1; ; attempt += 1) {
    const response = await fetch(path, { ...options, credentials: "same-origin" }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new QueryError("The aggregator does not answer. Is kubectl port-forward still running?");
    });
    if (response.ok) return response;
    if (response.status === 503 && attempt < ATTEMPTS) {
      await new Promise((resume) => setTimeout(resume, 1000));
      continue;
    }
    throw new QueryError(await reason(response));
  }
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `The aggregator answered with status ${response.status}.`;
  }
}
