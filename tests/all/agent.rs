//! The agent as a process: rules, repairs, refusals, reports and its socket.

// The kernel's rules match the state of the source.
mod rules;
// An API server that starts late, changes and stops.
mod server;
// Foreign changes to the table are repaired.
mod repairs;
// The agent resumes after a restart.
mod restarts;
// The agent exits with one error message where it cannot continue.
mod refusals;
// Metrics, status and logs of the agent.
mod reports;
// Requests over the socket, and those that are refused.
mod questions;
// The output of `committed-rules`.
mod committed_rules;
