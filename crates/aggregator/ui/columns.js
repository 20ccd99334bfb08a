// Columns that the tables of edges have in common.

import { count, ports } from "./format.js";
import { verdictOfEdge } from "./graph.js";
import { verdict } from "./parts.js";

/** What went over an edge, and how it was decided. */
export function edgeColumns() {
  return [
    { title: "Ports", cell: (edge) => ports(edge) },
    { title: "Verdict", cell: (edge) => verdict(verdictOfEdge(edge)), value: verdictOfEdge },
    { title: "Connections", number: true, cell: (edge) => count(edge.connections), value: (edge) => edge.connections },
    {
      title: "Denied packets",
      number: true,
      cell: (edge) => count(edge.deniedPackets),
      value: (edge) => edge.deniedPackets,
    },
  ];
}
