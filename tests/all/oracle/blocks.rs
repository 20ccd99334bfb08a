//! Blocks of the oracle: addresses in a CIDR and outside of its exceptions.

use super::*;

// Semantics 12.

#[test]
fn except_belongs_to_its_own_block() {
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    assert_sources(
        json!([{"from": [block("192.0.2.0/24", &["192.0.2.0/31"])]}]),
        &["192.0.2.2"],
        &[OUTSIDE, "192.0.3.1"],
    );
    let another = json!([{"from": [block("192.0.2.0/24", &["192.0.2.0/31"]), block("192.0.2.1/32", &[])]}]);
    assert_sources(another, &[OUTSIDE], &["192.0.2.0"]);
    let rules = json!([{"from": [block("0.0.0.0/0", &["192.0.2.0/24"])]}, {"from": [block("192.0.2.0/30", &[])]}]);
    assert_sources(rules, &[OUTSIDE, "8.8.8.8"], &["192.0.2.4"]);
}

#[test]
fn blocks_match_their_prefix_in_own_family_only() {
    let block = |cidr: &str| json!([{"from": [{"ipBlock": {"cidr": cidr}}]}]);
    assert_sources(block("0.0.0.0/0"), &[OUTSIDE, "255.255.255.255"], &[]);
    assert_sources(block("192.0.2.77/25"), &[OUTSIDE, "192.0.2.127"], &["192.0.2.128"]);
    assert_sources(block("::/0"), &[], &[OUTSIDE]);
    let v6 = |cidr: &str| judge_flow(&world([ingress(block(cidr))]), "2001:db8::1", "fd00::1", TCP, 80).ingress;
    assert_eq!(["::/0", "2001:db8::ff/64", "2001:db8::2/127", "0.0.0.0/0"].map(v6), [Allowed, Allowed, Denied, Denied]);
}

// Semantics 13.

#[test]
fn a_block_holds_the_addresses_of_pods_too() {
    assert_sources(json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/30"}}]}]), &[CACHE, DB], &[OTHER]);
}
