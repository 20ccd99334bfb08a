//! For any sequence of remote set messages, the sets in force are those that the agent reports.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::remote_sets(bytes));
