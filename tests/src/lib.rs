//! The test kit: what the tests of several crates stand on.

pub mod fake_api;
pub mod generate;
pub mod lab;
pub mod netns;
pub mod oracle;
