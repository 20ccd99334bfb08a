//! Conventions of the sources that neither the compiler nor clippy checks.

use std::path::Path;

use super::walls::source_files;

/// The words of a test's name are its parts between underscores. A longer name does not read as one statement, and does
/// not fit a line of a failed run.
const MOST_WORDS: usize = 8;

/// Every folder with members of the workspace, and the fuzz targets.
const FOLDERS: [&str; 3] = ["crates", "fuzz", "tests"];

/// The line number and the name of each test function.
fn tests_of(text: &str) -> Vec<(usize, &str)> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = function_name(line) {
            if is_test {
                tests.push((index + 1, name));
            }
            is_test = false;
        }
    }
    tests
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn word_count(name: &str) -> usize {
    name.split('_').filter(|word| !word.is_empty()).count()
}

#[test]
fn test_names_have_at_most_eight_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut count, mut long) = (0, Vec::new());
    for path in FOLDERS.iter().flat_map(|folder| source_files(&root.join(folder))) {
        let text = std::fs::read_to_string(&path).unwrap();
        for (line, name) in tests_of(&text) {
            count += 1;
            let words = word_count(name);
            if words > MOST_WORDS {
                long.push(format!("{}:{line}: {words} words: {name}", path.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(count > 1_000, "found only {count} tests");
    long.sort();
    assert!(long.is_empty(), "test names of more than {MOST_WORDS} words:\n{}", long.join("\n"));
}

#[test]
fn test_functions_are_found_with_their_lines() {
    let text = "#[test]\nfn plain() {}\n\nfn helper() {}\n\n\
                proptest! {\n    #[test]\n    fn drawn(x in 0..3) {}\n}\n\n\
                #[tokio::test(flavor = \"multi_thread\")]\n#[allow(clippy::unwrap_used)]\nasync fn waits() {}\n";
    assert_eq!(tests_of(text), [(2, "plain"), (8, "drawn"), (13, "waits")]);
}
