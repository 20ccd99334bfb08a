//! DNS answers become names and addresses, or nothing.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::dns_answers(bytes));
