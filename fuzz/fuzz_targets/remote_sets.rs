//! Whatever a provider sends of remote sets, what an agent enforces is what it says that it knows.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::remote_sets(bytes));
