//! The one test binary.

// The kernel's state after a netlink commit equals its state after `nft -f` of the text.
mod netlink;
// Reporting does not affect verdicts, and its counters survive every change.
mod reporting;
// Packets in the network-namespace lab arrive exactly where its rules let them.
mod lab;
// The ruleset, the explanation and the oracle agree on every flow.
mod agreement;
// Informers converge to the API server's state despite failures.
mod informers;
// Leader election has one leader, and never two at once.
mod leases;
// A folder of manifests is followed like a cluster, and a malformed file affects only its own objects.
mod folder;
// The oracle interprets each line of the API documentation as intended.
mod oracle;
// YAML in, nft text and diagnostics out.
mod golden;
mod kernel_cost;
// Declared edges match the oracle, workload by workload.
mod declared;
// Suggested policies allow exactly the observed flows.
mod suggestion;
// What-if reports what the oracle says, and suggestions over time allow what was seen.
mod insight;
// The verbs suggest and what-if, and their screens, compare the same flows alike.
mod comparison;
// Any sequence of changes ends in the ruleset of a fresh start.
mod sequence;
// Fuzz inputs that once violated a property.
mod regressions;
// Real packets through real rules: the kernel's verdicts equal the oracle's.
mod kernel;
// Real packets and open connections under cluster policies.
mod tiers;
// Addresses that an agent learns from DNS answers, and the connections of pods to them.
mod domain_names;
// A running agent explains a flow as the kernel and the oracle judge it.
mod explained;
// The aggregator has each record of each node once, and unauthenticated clients get none.
mod aggregator;
// Messages of Hubble's and Goldmane's protocols have the bytes of the published definitions.
mod flows;
mod protocol_messages;
// The aggregator's exports equal the nodes' records despite failures.
mod trail;
// The demo's expectation matches the policies of the example.
mod demo;
// The agent and the provider of context compute the same identities.
mod identities;
// Dependency rules between the crates.
mod walls;
// Naming conventions of tests.
mod tidy;
// A node in a lab, on which the agent runs.
mod stage;
// The agent as a process: rules, repairs, refusals, reports and its socket.
mod agent;
// A policy change affects exactly the open connections that it concerns.
mod connections;
// Each program filters its messages by severity.
mod log_level;
// Output and exit status of the other verbs.
mod verbs;
// The CNI plugin's entry gets into the node's configuration, and stays there.
mod install;
// Conntrack accounting is enabled for flow records, and restored.
mod accounting;
// Uninstalling removes everything that Ringfence has put on a node, and nothing else.
mod uninstall;
// The manifests, the chart and the image match the code.
mod deploy;
// Known bypasses of a policy are closed.
mod attacks;
// Packets that conntrack leaves untracked do not bypass the policies.
mod untracked;
// The CNI plugin in chains of real plugins: when a pod may start, and its state afterwards.
mod cni;
// A pod's rules are in the kernel before its first packet: the agent and the plugin together.
mod pod_start;
// The doctor detects from outside whether a node enforces.
mod doctor;
// Denied packets are reported with names, and counted exactly.
mod drops;
// Audited policies let packets pass and report them, and the reports become suggested policies.
mod audit;
// Addresses of the node's pods without a known owner.
mod unknown_pods;
// Each security claim for each state of a node has a test.
mod security_claims;
// Enforcement has no gaps: kills, upgrades, failures of everything around the agent.
mod life;
// The benchmark measures what it reports.
mod bench;
// Every stock reader of the format returns the same records of an identity table.
mod stock_readers;
// A provider publishes the tables of a fresh start despite failures, and writes only its Lease.
mod provider;
// Pods of another cluster are admitted as its API server reports them, despite outages.
mod remote;
