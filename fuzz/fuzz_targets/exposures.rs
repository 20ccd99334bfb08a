//! Services, Ingresses and routes are read whatever they hold, and the table of identities is a function of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::exposures(bytes));
