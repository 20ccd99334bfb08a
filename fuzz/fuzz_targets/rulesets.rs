//! nft and the kernel take the text of every ruleset. Needs root, for a network namespace of its own.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: kit::netns::enter_new_namespace(),
    |bytes: &[u8]| tests::fuzzing::rulesets(bytes)
);
