//! Generated input of any size for tests, demos and benchmarks: the objects of a cluster, and flow records of its pods.
//!
//! Both are the same at every run.

pub mod cluster;
pub mod flows;
