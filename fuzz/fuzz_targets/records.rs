//! Any file is read as a baseline of identities, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::records(bytes));
