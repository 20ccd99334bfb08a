//! Lines and files of the CNI plugin are read back as they were meant, or refused.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::cni(bytes));
