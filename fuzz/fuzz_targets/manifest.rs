//! Any text is manifests or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::manifest(bytes));
