//! Any bytes are a dump of the kernel or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::netlink(bytes));
