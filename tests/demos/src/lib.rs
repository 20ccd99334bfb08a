//! The demos of `make demo`, `make demo-context`, `make demo-remote`, `make demo-flows` and `make page`.

pub mod demo;
pub mod demo_context;
pub mod demo_remote;
