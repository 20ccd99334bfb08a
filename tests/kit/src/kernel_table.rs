//! Lists tables of the kernel, and loads rulesets in two ways. Everything runs in the calling thread's network
//! namespace, unless a function creates its own.

use std::io::Write;
use std::process::{Command, Stdio};

use nfnetlink::Kernel;
use nft::Ruleset;
use serde_json::Value;

use crate::netns::in_new_namespace;

/// Runs `nft` with these arguments and this input.
///
/// # Errors
/// The standard error of `nft`, if it failed.
///
/// # Panics
/// If `nft` is missing.
pub fn try_nft(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    // nft reads all of its input before it prints anything, so this cannot deadlock. If it does not read all of it, it
    // fails with an error message.
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("nft ends");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    written.expect("nft took its input");
    Ok(String::from_utf8(output.stdout).expect("nft prints UTF-8"))
}

/// Runs `nft` with the whitespace-separated arguments of `command`.
///
/// # Panics
/// If it fails.
pub fn nft(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    try_nft(&words, "").unwrap_or_else(|e| panic!("nft {command}: {e}"))
}

/// The packet counters of the rules, in the order of the rules. `of` names a table or a chain in the syntax of `nft
/// list`: `table inet seen`.
///
/// # Panics
/// If the table or chain does not exist.
pub fn counted_by_rule(of: &str) -> Vec<u64> {
    let listing: Value = serde_json::from_str(&nft(&format!("-j list {of}"))).expect("nft prints JSON");
    let objects = listing["nftables"].as_array().expect("nft lists objects").iter();
    let expressions = objects.filter_map(|object| object["rule"]["expr"].as_array()).flatten();
    expressions.filter_map(|expression| expression["counter"]["packets"].as_u64()).collect()
}

/// The sum of [`counted_by_rule`].
///
/// # Panics
/// As [`counted_by_rule`].
pub fn counted(of: &str) -> u64 {
    counted_by_rule(of).iter().sum()
}

/// Loads a ruleset's text with `nft -f`.
///
/// # Panics
/// If nft rejects it.
pub fn load_text(text: &str) {
    try_nft(&["-f", "-"], text).unwrap_or_else(|e| panic!("nft -f: {e}\n{text}"));
}

/// Commits the ruleset over netlink, as a new table.
///
/// # Panics
/// If the kernel refuses it.
pub fn load_netlink(ruleset: &Ruleset) {
    let mut kernel = Kernel::open().expect("nf_tables");
    let generation = kernel.generation().expect("a generation");
    kernel.commit(&nft::create(ruleset), generation).unwrap_or_else(|e| panic!("{e}\n{ruleset}"));
}

/// The table as `nft -j` lists it, without handles and with sorted set elements: the order of a hash table differs from
/// set to set.
///
/// # Panics
/// If the table does not exist.
pub fn listing(ruleset: &Ruleset) -> Value {
    let text = nft(&format!("-j list table {}", ruleset.table));
    let mut value: Value = serde_json::from_str(&text).expect("nft prints JSON");
    if let Some(objects) = value["nftables"].as_array_mut() {
        objects.retain(|o| o.get("metainfo").is_none());
        // Sets are listed in the order of their creation, which is irrelevant.
        objects
            .sort_by_key(|object| ["set", "map"].iter().find_map(|kind| Some(object.get(*kind)?["name"].to_string())));
    }
    normalise(&mut value);
    value
}

fn normalise(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("handle");
            fields.values_mut().for_each(normalise);
            if let Some(Value::Array(elements)) = fields.get_mut("elem") {
                elements.sort_by_key(Value::to_string);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(normalise),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The listing after a commit of the ruleset over netlink, in a new namespace.
///
/// # Panics
/// If the kernel refuses it, or if the output of `nft list` does not load again.
pub fn listing_after_netlink(ruleset: &Ruleset) -> Value {
    in_new_namespace(|| {
        load_netlink(ruleset);
        let listed = listing(ruleset);
        let text = nft(&format!("list table {}", ruleset.table));
        nft(&format!("delete table {}", ruleset.table));
        load_text(&text);
        listed
    })
}

/// The listing after `nft -f` of the ruleset's text, in a new namespace.
///
/// # Panics
/// If `nft -c` or `nft` rejects the text.
pub fn listing_after_text(ruleset: &Ruleset) -> Value {
    in_new_namespace(|| {
        let text = ruleset.to_string();
        try_nft(&["-c", "-f", "-"], &text).unwrap_or_else(|e| panic!("nft -c -f: {e}\n{text}"));
        load_text(&text);
        listing(ruleset)
    })
}

/// A listing without the generation of approvals, which an agent draws at random.
pub fn without_generation(listed: Value) -> Value {
    // nft folds the mask of a rule that sets the mark into the value.
    let is_mark = |number: u64| number >> 28 == 0b1010 && matches!(number & 0xffff, 0 | 0xffff);
    match listed {
        Value::Number(number) if number.as_u64().is_some_and(is_mark) => "generation".into(),
        Value::Array(values) => values.into_iter().map(without_generation).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, without_generation(value))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => listed,
    }
}
