//! The agent as a process: what it programs, repairs, refuses and says.

// The rules are those of its source, at all times.
mod rules;
// An API server comes late, changes, and goes.
mod server;
// What others do to the table is undone.
mod repairs;
// It ends, and begins again where it stood.
mod restarts;
// Where going on makes no sense, it ends with one sentence.
mod refusals;
// What it tells about itself.
mod reports;
// What it is asked over the socket, and may not answer.
mod questions;
// The rules that it prints.
mod committed_rules;
