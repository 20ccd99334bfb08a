//! The agent's entry comes into any network configuration and out of it again, or the configuration is refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::conflists(bytes));
