//! Conventions of the sources that neither the compiler nor clippy checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::walls::{product_code, source_files};

/// The words of a test's name are its parts between underscores. A longer name does not read as one statement, and does
/// not fit a line of a failed run.
const MOST_WORDS: usize = 8;

/// Every folder with manifests or scripts.
const COMMENTED_FOLDERS: [&str; 6] = [".github", "deploy", "examples", "fuzz/regressions", "scripts", "tests"];

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

/// Wording that makes a comment hard to search and to skim: everyday verbs and pronouns in place of the field's terms.
/// A comment names its subject ("the subscriber", "the kubelet") and uses the term ("receives", "reports", "expires").
const BANNED_WORDING: [&str; 21] = [
    "nobody",
    "somebody",
    "tell",
    "tells",
    "told",
    "hears",
    "heard",
    "in mind",
    "be it",
    "meant was",
    "from now on",
    "in vain",
    "for good",
    "thereby",
    "as it were",
    "comes and goes",
    "come and go",
    "nothing but",
    "none but",
    "of theirs",
    "need not",
];

/// Openings that replace the subject of a comment by a relative clause.
const BANNED_OPENINGS: [&str; 5] = ["What ", "Whoever ", "Whatever ", "Of who", "Of what "];

/// Participles and pronouns, each of which once named several unrelated types. A type is named by a noun.
const BANNED_TYPE_NAMES: [&str; 17] = [
    "Told", "Followed", "Standing", "Held", "Known", "Found", "Named", "Written", "Seen", "Kept", "Wanted", "Of",
    "Placed", "Heard", "Said", "Given", "Taken",
];

/// Names of visible types that end as participles do. Each is a noun.
const NOUNS: [(&str, &str); 4] = [
    ("Finding", "a result of `ringfence doctor`"),
    ("Listing", "the entries of a folder"),
    ("Need", "whether the initial sync requires a kind"),
    ("Ring", "a ring buffer"),
];

/// File names that do not say what is in the file.
const BANNED_FILE_NAMES: [&str; 43] = [
    "told",
    "alike",
    "stars",
    "standing",
    "slots",
    "placed",
    "matches",
    "room",
    "strays",
    "promises",
    "seen",
    "kept",
    "lean",
    "known",
    "followed",
    "utils",
    "util",
    "common",
    "misc",
    "helpers",
    "elsewhere",
    "shared",
    "keeping",
    "following",
    "leading",
    "redirecting",
    "isolating",
    "judging",
    "lacks",
    "plain",
    "tally",
    "emit",
    "related",
    "logged",
    "tracked",
    "book",
    "packed",
    "changed",
    "unrecorded",
    "moment",
    "surroundings",
    "chance",
    "shots",
];

/// Crates with the messages of other projects' protocols: their types have the protocol's names.
const PROTOCOL_CRATES: [&str; 2] = ["goldmane", "hubble"];

/// The text of a line's comment, without its marker.
fn comment_of(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim_start())
}

/// The words of a text in lower case, without the parts in backticks, which are code.
fn words_of(text: &str) -> String {
    let prose: String = text.split('`').step_by(2).collect();
    let words = prose.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    format!(" {} ", words.map(str::to_lowercase).collect::<Vec<_>>().join(" "))
}

/// The banned wording in a comment, if there is any.
fn banned_in(comment: &str) -> Option<&'static str> {
    let words = words_of(comment);
    let wording = BANNED_WORDING.iter().find(|wording| words.contains(&format!(" {wording} ")));
    wording.or_else(|| BANNED_OPENINGS.iter().find(|opening| comment.starts_with(**opening))).copied()
}

/// Where a type is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visibility {
    Module,
    /// `pub(crate)`, `pub(super)` and `pub(in path)`.
    Crate,
    Public,
}

/// The name of the type that a line declares, and where the type is visible.
fn type_name(line: &str) -> Option<(&str, Visibility)> {
    let line = line.trim_start();
    let visibility = match line {
        line if line.starts_with("pub ") => Visibility::Public,
        line if line.starts_with("pub(") => Visibility::Crate,
        _ => Visibility::Module,
    };
    let line = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let mut words = line.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    matches!(words.next()?, "struct" | "enum" | "trait" | "type" | "union")
        .then(|| words.next().map(|name| (name, visibility)))?
}

/// Whether a name is one word with the ending of a participle.
fn is_participle(name: &str) -> bool {
    let is_one_word = !name.contains('_') && name.chars().filter(|c| c.is_uppercase()).count() == 1;
    is_one_word && (name.ends_with("ed") || name.ends_with("ing"))
}

/// Every source file below the folders, by its path from the root of the workspace.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = FOLDERS.iter().flat_map(|folder| source_files(&root.join(folder)));
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(), text)
    };
    files.map(read).collect()
}

fn assert_none(mut found: Vec<String>, rule: &str) {
    found.sort();
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn comments_use_no_banned_wording() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (index, comment) in text.lines().enumerate().filter_map(|(index, line)| Some((index, comment_of(line)?))) {
            // The rest of a sentence that began on the line before is no opening.
            let opens = index == 0 || text.lines().nth(index - 1).and_then(comment_of).is_none_or(|c| c.is_empty());
            match banned_in(comment) {
                Some(wording) if opens || !BANNED_OPENINGS.contains(&wording) => {
                    found.push(format!("{path}:{}: '{wording}': {comment}", index + 1));
                }
                _ => {}
            }
        }
    }
    assert_none(found, "comments with wording that CONTRIBUTING.md rules out");
}

/// Manifests, workflows and scripts below the folders that have any, by their path from the root of the workspace.
fn manifests_and_scripts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders: Vec<_> = COMMENTED_FOLDERS.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // A script without an extension begins with its interpreter.
            let extension = path.extension().map_or("", |extension| extension.to_str().unwrap());
            let text = match extension {
                "yaml" | "yml" | "sh" | "" => String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
                _ => continue,
            };
            if !extension.is_empty() || text.starts_with("#!") {
                files.push((path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(), text));
            }
        }
    }
    files
}

#[test]
fn manifests_and_scripts_use_no_banned_wording() {
    let (mut found, files) = (Vec::new(), manifests_and_scripts());
    assert!(files.len() > 100, "found only {} files", files.len());
    for (path, text) in files {
        for (index, line) in text.lines().enumerate() {
            // In place of the sentence's start, a line may have its continuation: openings are not checked.
            let comment = line.split_once('#').map_or("", |(_, comment)| comment).trim_start();
            let wording = banned_in(comment).filter(|wording| !BANNED_OPENINGS.contains(wording));
            found.extend(wording.map(|wording| format!("{path}:{}: '{wording}': {comment}", index + 1)));
        }
    }
    assert_none(found, "comments of manifests and scripts with wording that CONTRIBUTING.md rules out");
}

/// The string literals of a line of code that have several words, without their placeholders.
fn messages_of(line: &str) -> impl Iterator<Item = String> {
    let is_prose = |literal: &String| literal.contains(' ');
    let code = if comment_of(line).is_some() { "" } else { line };
    let without_placeholders = |literal: &str| {
        let parts = literal.split('{').enumerate().map(|(index, part)| match index {
            0 => part,
            _ => part.split_once('}').map_or("", |(_, rest)| rest),
        });
        parts.collect::<String>()
    };
    code.split('"').skip(1).step_by(2).map(without_placeholders).filter(is_prose)
}

/// The code with each string literal on one line.
fn joined_literals(code: &str) -> String {
    let mut parts = code.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start())
}

#[test]
fn messages_use_no_banned_wording() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/") || path.contains("cases.rs");
        let is_demo = path.starts_with("tests/demos/");
        if !is_demo && (is_test || !path.starts_with("crates/")) {
            continue;
        }
        for line in joined_literals(product_code(&text)).lines() {
            let banned = messages_of(line).find_map(|message| banned_in(&message));
            found.extend(banned.map(|wording| format!("{path}: '{wording}': {line}")));
        }
    }
    assert_none(found, "messages with wording that CONTRIBUTING.md rules out");
}

/// A file of fewer lines needs a reason to be one.
const FEWEST_LINES: usize = 40;

/// Files that cargo requires: roots of crates and of binaries.
fn is_root(path: &str) -> bool {
    let in_folder = |folder: &str| path.contains(&format!("/{folder}/"));
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || in_folder("bin") || in_folder("fuzz_targets")
}

/// The reason is the comment at the head, which says what the file is about, or that the file declares modules.
fn has_reason(text: &str) -> bool {
    let declares = |line: &str| line.ends_with(';') && line.split(' ').any(|word| word == "mod");
    text.starts_with("//!") || text.lines().any(declares)
}

#[test]
fn short_files_state_their_reason() {
    let is_short = |text: &str| text.lines().count() < FEWEST_LINES;
    let short = sources().into_iter().filter(|(path, text)| is_short(text) && !is_root(path) && !has_reason(text));
    assert_none(short.map(|(path, _)| path).collect(), "short files without a comment that states what they are about");
}

#[test]
fn types_and_files_are_named_by_nouns() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let of_protocol = PROTOCOL_CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/")));
        let stem = Path::new(&path).file_stem().unwrap().to_str().unwrap();
        if BANNED_FILE_NAMES.contains(&stem) {
            found.push(format!("{path}: file name"));
        }
        for (index, line) in text.lines().enumerate() {
            let Some((name, visibility)) = type_name(line) else { continue };
            let is_allowed = NOUNS.iter().any(|(noun, _)| *noun == name);
            let is_visible_participle =
                visibility != Visibility::Module && is_participle(name) && !is_allowed && !of_protocol;
            if is_visible_participle || BANNED_TYPE_NAMES.contains(&name) {
                found.push(format!("{path}:{}: type {name}", index + 1));
            }
        }
    }
    assert_none(found, "names that do not say what the thing is");
}

/// Public types have one name in the workspace, and types that other modules see have one in their crate.
#[test]
fn visible_type_names_are_unique() {
    let mut files: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let Some((of, _)) = path.strip_prefix("crates/").and_then(|path| path.split_once('/')) else { continue };
        if PROTOCOL_CRATES.contains(&of) {
            continue;
        }
        for (name, visibility) in text.lines().filter_map(type_name) {
            let scopes: &[&str] = match visibility {
                Visibility::Public => &["workspace", of],
                Visibility::Crate => &[of],
                Visibility::Module => &[],
            };
            for scope in scopes {
                files.entry((name.to_owned(), (*scope).to_owned())).or_default().insert(path.clone());
            }
        }
    }
    files.retain(|_, files| files.len() > 1);
    let shared = files.iter().map(|((name, scope), files)| format!("{name} in {scope}: {files:?}"));
    assert_none(shared.collect(), "types of one name in several files");
}

#[test]
fn banned_wording_is_found_in_prose_only() {
    let cases = [
        ("Nobody listens.", Some("nobody")),
        ("A subscriber is told of it", Some("told")),
        ("What an ADD returns.", Some("What ")),
        ("The field `told` of the message.", None),
        ("Heartbeat interval of the event loop.", None),
    ];
    for (comment, expected) in cases {
        assert_eq!(banned_in(comment), expected, "{comment}");
    }
    assert_eq!(
        messages_of("f(\"{told} is kept\", \"told\", \"need not\")").collect::<Vec<_>>(),
        [" is kept", "need not"]
    );
    assert!(messages_of("// \"need not\"").next().is_none());
    let continued = joined_literals("f(\"it need \\\n        not\")\ng()");
    assert_eq!(continued, "f(\"it need not\")\ng()");
}

#[test]
fn types_are_found_with_visibility() {
    assert_eq!(type_name("    pub(super) struct Told<T> {"), Some(("Told", Visibility::Crate)));
    assert_eq!(type_name("pub enum Kind {"), Some(("Kind", Visibility::Public)));
    assert_eq!(type_name("type Key = u8;"), Some(("Key", Visibility::Module)));
    assert_eq!(type_name("let structure = 1;"), None);
    assert!(is_participle("Changed") && is_participle("Keeping"));
    assert!(!is_participle("StateDelta") && !is_participle("RecordedFlows") && !is_participle("FeedStarted"));
}

#[test]
fn pages_and_manifests_have_no_conflict_markers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut folders, mut found, mut read) = (vec![root.join("docs"), root.join("deploy")], Vec::new(), 0);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            read += 1;
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            let is_marker = |line: &str| ["<<<<<<< ", ">>>>>>> "].iter().any(|marker| line.starts_with(marker));
            found.extend(text.lines().find(|line| is_marker(line)).map(|_| path.display().to_string()));
        }
    }
    assert!(read > 50, "read only {read} files");
    assert_none(found, "files with markers of an unresolved merge");
}
