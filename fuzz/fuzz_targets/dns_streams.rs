//! Segments of a TCP connection give the DNS messages of the whole stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::dns_streams(bytes));
