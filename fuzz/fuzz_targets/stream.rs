//! A stream of events is read the same however it is cut, and a follower takes no delta out of order from it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::stream(bytes));
