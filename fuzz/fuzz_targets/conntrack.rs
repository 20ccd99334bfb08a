//! Any bytes are messages about conntrack entries or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::conntrack(bytes));
