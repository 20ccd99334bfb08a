// Numbers, volumes and times as text.

/** `950`, `1.2k`, `34k`, `5.6M`. */
export function count(number) {
  return scaled(number, 1000, ["", "k", "M", "G", "T"], "");
}

/** `950 B`, `1.2 kB`. */
export function bytes(number) {
  return scaled(number, 1000, ["B", "kB", "MB", "GB", "TB"], " ");
}

function scaled(number, step, units, space) {
  let unit = 0;
  while (number >= step * 0.9995 && unit < units.length - 1) {
    number /= step;
    unit += 1;
  }
  const text = unit === 0 || number >= 9.95 ? String(Math.round(number)) : number.toFixed(1);
  return `${text}${space}${units[unit]}`;
}

/** The bytes of a volume of the API; `?` if it is unknown. */
export function volume(given) {
  return given ? bytes(given.bytes) : "?";
}

/** Time of day, in UTC, as in the output of `ringfence flows`. */
export function time(text) {
  return text ? new Date(text).toISOString().slice(11, 19) : "-";
}

/** `12 s ago`, `3 min ago`, `2 h ago`. */
export function ago(text, now = Date.now()) {
  if (!text) return "never";
  const seconds = Math.max(0, Math.round((now - new Date(text).getTime()) / 1000));
  if (seconds < 100) return `${seconds} s ago`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

const PROTOCOLS = { 1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp" };

/** `5432/tcp`, `icmp`; `any/tcp` for records that sum up many ports. */
export function port({ protocol, port: number }) {
  const name = PROTOCOLS[protocol] ?? `protocol ${protocol}`;
  if (number === null || number === undefined) return [1, 58].includes(protocol) ? name : `any/${name}`;
  return `${number}/${name}`;
}

/** `10 connections`, `4 denied packets`, or both. */
export function traffic({ connections, deniedPackets }) {
  const parts = [];
  if (connections > 0 || deniedPackets === 0) parts.push(plural(connections, "connection"));
  if (deniedPackets > 0) parts.push(plural(deniedPackets, "denied packet"));
  return parts.join(", ");
}

/** The volume of an edge of the API in one direction; denied flows have none. */
export function edgeVolume(edge, direction) {
  return edge.verdicts.allowed.records + edge.verdicts.wouldDeny.records === 0 ? "-" : volume(edge[direction]);
}

/** The ports of an edge of the API; the busiest first. */
export function ports(edge, most = 3) {
  const shown = edge.ports.slice(0, most).map(port).join(", ");
  const more = edge.ports.length - most;
  if (more <= 0) return edge.portsTruncated ? `${shown} …` : shown;
  return `${shown} and ${more}${edge.portsTruncated ? "+" : ""} more`;
}
