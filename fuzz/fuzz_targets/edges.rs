//! A list of declared edges is read as it is written, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::edges(bytes));
