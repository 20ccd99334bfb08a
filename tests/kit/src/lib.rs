//! The test kit that tests, demos and benchmarks share: labs, processes, fake servers, and the oracle.
//!
//! Nothing here depends on libraries for plots, object stores or property tests, since `make demo` builds it.

pub mod agent_process;
pub mod cni_runtime;
pub mod connection_load;
pub mod fake_agent;
pub mod fake_api;
pub mod fake_loki;
pub mod frame;
pub mod http;
pub mod kernel_table;
pub mod lab;
pub mod netdev_backlog;
pub mod netns;
pub mod openmetrics;
pub mod oracle;
pub mod prober;
pub mod provider_process;
pub mod threads;
pub mod two_clusters;
