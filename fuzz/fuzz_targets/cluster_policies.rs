//! Generated clusters with ClusterNetworkPolicies become rulesets that agree with the oracle.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzzing::cluster_policies(bytes));
