//! Dependencies satisfy deny.toml, whose licences and banned crates need no tool but cargo. The workflow runs cargo-deny,
//! which also asks for advisories.

use std::path::Path;

use serde_json::Value;
use spdx::{Expression, ParseMode};

use super::walls::cargo_metadata;

/// The packages that the workspace is built with, without its own.
fn packages() -> Vec<Value> {
    let metadata = cargo_metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.filter(|package| !package["source"].is_null()).cloned().collect()
}

fn rules() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

fn texts<'a>(values: &'a toml::Value, field: Option<&'a str>) -> Vec<&'a str> {
    let values = values.as_array().expect("an array").iter();
    values.map(|value| field.map_or(value, |field| &value[field]).as_str().expect("a string")).collect()
}

/// Whether the licences of `allowed` suffice. Crates of earlier years separate licences by a slash.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let expression = Expression::parse_mode(licence, ParseMode::LAX).expect("an SPDX expression");
    expression.evaluate(|requirement| allowed.contains(&requirement.to_string().trim_end_matches('+')))
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let rules = rules();
    let allowed = texts(&rules["licenses"]["allow"], None);
    let packages = packages();
    assert!(packages.len() > 200, "found only {} packages", packages.len());
    let others =
        packages.iter().filter(|package| !package["license"].as_str().is_some_and(|l| is_allowed(l, &allowed)));
    let others: Vec<String> = others.map(|package| format!("{}: {}", package["name"], package["license"])).collect();
    assert!(others.is_empty(), "licences that deny.toml does not allow:\n{}", others.join("\n"));
}

#[test]
fn banned_crates_and_sources_are_absent() {
    let rules = rules();
    let banned = texts(&rules["bans"]["deny"], Some("crate"));
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        // A name with a version bans earlier ones, which Cargo.toml requires anyway.
        assert!(!banned.contains(&name), "deny.toml bans {name}");
        let source = package["source"].as_str().unwrap();
        assert!(source.starts_with("registry+"), "{name} is from {source}, which deny.toml denies");
    }
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT", "Unicode-3.0", "MPL-2.0", "Apache-2.0 WITH LLVM-exception"];
    for (licence, expected) in [
        ("MIT OR GPL-3.0-only", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND GPL-3.0-only", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("Unlicense/MIT", true),
        ("MPL-2.0+", true),
        ("GPL-3.0-only", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), expected, "{licence}");
    }
}
