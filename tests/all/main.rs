//! The one test binary.

// What the kernel shows after a netlink commit is what it shows after `nft -f` of the text.
mod netlink;
// Reporting decides nothing, and its tables are the kernel's.
mod reporting;
// Packets in the network-namespace lab go where its rules let them, and nowhere else.
mod lab;
// The ruleset, the explanation and the oracle say the same of every flow.
mod agreement;
// What the API server holds becomes known, whatever happens on the way.
mod informers;
// Of several processes one leads, and never two at once.
mod leases;
// A folder of manifests is followed like a cluster, and a bad file spoils only itself.
mod folder;
// The oracle reads each line of the API documentation as it is meant.
mod oracle;
// YAML in, nft text and diagnostics out.
mod golden;
mod growth;
// Declared edges are what the oracle allows, workload by workload.
mod declared;
// Suggested policies allow exactly what was seen.
mod suggestion;
// Any sequence of changes ends in the ruleset of a fresh start.
mod sequence;
// Inputs that once broke a claim do so no more.
mod regressions;
// Real packets through real rules: the kernel judges as the oracle does.
mod kernel;
// What a running agent says of a flow is what the kernel does with it, and what the oracle says.
mod explained;
// The aggregator has each record of each node once, and strangers have none.
mod aggregator;
mod flows;
// What the aggregator exports is what the nodes had, whatever fails on the way.
mod trail;
// The demo's expectation is what the policies of the example say.
mod demo;
// The agent and the provider of context compute the same identities.
mod identities;
// The walls between the crates hold.
mod walls;
// Names of tests stay short.
mod tidy;
// A node for the agent to run on.
mod stage;
// The agent as a process: what it programs, repairs, refuses and says.
mod agent;
// A change of policy reaches connections that are open, and leaves alone those that it does not mean.
mod connections;
// Messages of each program are selected by their severity.
mod log_level;
// What the other verbs print, and with which status they end.
mod verbs;
// The CNI plugin's entry gets into the node's configuration, and stays there.
mod install;
// What flow records need of the kernel is set, and restored.
mod accounting;
// What Ringfence has put on a node goes, and nothing else.
mod uninstall;
// What is deployed says what the code does.
mod deploy;
// Known ways around a policy are closed.
mod attacks;
// What conntrack does not track is no way around the policies.
mod strays;
// The CNI plugin in chains of real plugins: when a pod may start, and what is left of it afterwards.
mod cni;
// A pod sends nothing before its rules are in the kernel: the agent and the plugin together.
mod pod_start;
// Whether a node really enforces, told from outside, on nodes that do and nodes that do not.
mod doctor;
// What is denied is told of with names, and counted to the packet.
mod drops;
// Audited policies let pass and tell, and what they tell becomes policies.
mod audit;
// Addresses of the node's pods that nobody is known to have.
mod unknown_pods;
// What is promised for every state of a node is held by tests.
mod promises;
// No moment of a node's life is unprotected: kills, upgrades, failures of everything around the agent.
mod life;
// The benchmark measures what it says.
mod bench;
// A table of identities says the same to every reader of its format.
mod stock_readers;
// What a provider publishes is what a fresh start would, whoever fails, and it writes nothing but its Lease.
mod provider;
// Pods of another cluster are admitted as its API server tells of them, whoever is away meanwhile.
mod remote;
