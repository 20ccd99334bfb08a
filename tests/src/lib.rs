//! The test kit: what the tests of several crates stand on.

pub mod agent_process;
pub mod backlog;
pub mod bench;
pub mod certificates;
pub mod cni_runtime;
pub mod demo;
pub mod demo_context;
pub mod demo_remote;
pub mod fake_api;
pub mod fake_bucket;
pub mod fake_relay;
pub mod frame;
pub mod fuzzing;
pub mod generate;
mod http;
pub mod kernel_table;
pub mod lab;
pub mod netns;
pub mod objects;
pub mod openmetrics;
pub mod oracle;
pub mod prober;
pub mod provider_process;
pub mod scale;
pub mod shared_memory;
pub mod threads;
pub mod two_clusters;
