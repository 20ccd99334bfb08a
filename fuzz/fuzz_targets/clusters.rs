//! A file of clusters is accepted with bounded contents or refused with one line.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::clusters(bytes));
