//! Imports between the modules of declared edges, which must have no cycle: neither between the files, nor between the
//! modules directly below `edges`, which count with their submodules as one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names below `edges`; empty for `edges` itself.
type Module = Vec<String>;

/// The modules that each module imports or names in a path.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Identifiers and `::` as one token each, every other character as a token of its own; without comments.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    for line in text.lines() {
        let mut rest = line.split("//").next().unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let length = match first {
                _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
                _ if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            tokens.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// Every path of two or more segments, with the groups of `use` expanded. Omits visibilities such as `pub(in a::b)`.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let tokens = tokens(text);
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if tokens[at] == "pub" && tokens.get(at + 1) == Some(&"(") {
            at += tokens[at..].iter().position(|token| *token == ")").unwrap_or(1);
        } else if tokens.get(at + 1) == Some(&"::") {
            at = read_path(&tokens, at, &[], &mut paths);
            continue;
        }
        at += 1;
    }
    paths
}

/// Reads the path that begins at the token, below the prefix. Returns the index of the token after it.
fn read_path<'a>(tokens: &[&'a str], mut at: usize, prefix: &[&'a str], paths: &mut Vec<Vec<&'a str>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = match tokens[at] {
                        "," => at + 1,
                        _ => read_path(tokens, at, &path, paths),
                    };
                }
                return at + 1;
            }
            Some(segment) => path.push(segment),
            None => return at,
        }
        at += 1;
        if tokens.get(at) != Some(&"::") {
            paths.push(path);
            return at;
        }
        at += 1;
    }
}

/// The module that a path in this module refers to, or whose item it names; `None` if it is outside of `edges`.
fn target(path: &[&str], module: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut target: Module = module.clone();
    let supers = path.iter().take_while(|segment| **segment == "super").count();
    let rest = match path {
        ["crate", "edges", rest @ ..] => {
            target.clear();
            rest
        }
        ["crate", ..] => return None,
        ["self", rest @ ..] => rest,
        [first, ..] if supers == 0 => {
            target.push((*first).to_owned());
            modules.contains(&target).then_some(&path[1..])?
        }
        _ => {
            target.truncate(target.len().checked_sub(supers)?);
            &path[supers..]
        }
    };
    for segment in rest {
        target.push((*segment).to_owned());
        if !modules.contains(&target) {
            target.pop();
            break;
        }
    }
    Some(target)
}

fn imports(files: &BTreeMap<Module, String>) -> Imports {
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let of_file = |(module, text): (&Module, &String)| {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let targets = paths(code).into_iter().filter_map(|path| target(&path, module, &modules));
        (module.clone(), targets.filter(|target| target != module).collect())
    };
    files.iter().map(of_file).collect()
}

/// The imports between the modules directly below `edges`, and `edges` itself.
fn between_top_modules(imports: &Imports) -> Imports {
    let top = |module: &Module| module.iter().take(1).cloned().collect::<Module>();
    let mut joined = Imports::new();
    for (module, targets) in imports {
        let others = targets.iter().map(top).filter(|target| *target != top(module));
        joined.entry(top(module)).or_default().extend(others);
    }
    joined
}

/// A cycle, from a module back to itself, such as `edges::a -> edges::b -> edges::a`.
fn cycle(imports: &Imports) -> Option<String> {
    /// Visits what the last module of the stack imports.
    fn visit(imports: &Imports, stack: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> Option<Vec<Module>> {
        let last = stack.last()?.clone();
        for next in imports.get(&last).into_iter().flatten().filter(|next| !done.contains(*next)).collect::<Vec<_>>() {
            let start = stack.iter().position(|module| module == next);
            stack.push(next.clone());
            if let Some(cycle) = start.map(|start| stack[start..].to_vec()).or_else(|| visit(imports, stack, done)) {
                return Some(cycle);
            }
        }
        done.extend(stack.pop());
        None
    }
    let mut done = BTreeSet::new();
    let cycle = imports.keys().find_map(|module| match done.contains(module) {
        true => None,
        false => visit(imports, &mut vec![module.clone()], &mut done),
    })?;
    let name = |module: &Module| [&["edges".to_owned()][..], module].concat().join("::");
    Some(cycle.iter().map(name).collect::<Vec<_>>().join(" -> "))
}

/// The texts of the modules, without tests.
fn files_below(folder: &Path, module: &Module, files: &mut BTreeMap<Module, String>) {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in entries.collect::<Vec<PathBuf>>() {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let module: Module = module.iter().cloned().chain([stem.to_owned()]).collect();
        if stem == "tests" {
            continue;
        }
        match path.is_dir() {
            true => files_below(&path, &module, files),
            false => assert!(files.insert(module, std::fs::read_to_string(&path).unwrap()).is_none()),
        }
    }
}

fn module(path: &str) -> Module {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn imports_between_modules_have_no_cycle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::from([(Module::new(), std::fs::read_to_string(source.join("edges.rs")).unwrap())]);
    files_below(&source.join("edges"), &Module::new(), &mut files);
    let imports = imports(&files);
    let top = between_top_modules(&imports);
    // Imports in each form that the parser must read.
    assert!(top[&module("")].contains(&module("ports")), "{top:?}");
    assert!(top[&module("classes")].contains(&module("terms")), "{top:?}");
    assert!(top[&module("terms")].contains(&module("vocabulary")), "{top:?}");
    assert!(imports[&module("terms::tier_rules")].contains(&module("terms::other_end")), "{imports:?}");
    assert_eq!(cycle(&top), None);
    assert_eq!(cycle(&imports), None);
}

#[test]
fn imports_are_read_in_every_form() {
    let forms = [
        ("use super::b::Item;", "b"),
        ("pub(super) use super::{\n    Root,\n    b::{c::Item, self},\n};", ", b::c, b"),
        ("use super::*;", ""),
        ("use crate::edges::b;", "b"),
        ("use crate::edges::{b::c, Root};", "b::c, "),
        ("let x: Vec<super::b::Item> = inner::make::<u8>();", "b, a::inner"),
        ("use self::inner::Item;", "a::inner"),
        ("pub(in crate::edges) struct Item(crate::b::Item);", "-"),
        ("// super::b::Item\nuse super::super::b::Item; use std::b::Item;", "-"),
    ];
    for (text, expected) in forms {
        let names = ["", "a", "a::inner", "b", "b::c"];
        let modules: BTreeSet<Module> = names.into_iter().map(module).collect();
        let targets = paths(text).into_iter().filter_map(|path| target(&path, &module("a"), &modules));
        let found: Vec<String> = targets.map(|target| target.join("::")).collect();
        let expected: Vec<&str> = if expected == "-" { vec![] } else { expected.split(", ").collect() };
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn cycles_of_imports_are_named() {
    let texts = [("", "use a::A;"), ("a", "use super::b::B;"), ("b", ""), ("b::c", "use crate::edges::a::A;")];
    let mut files: BTreeMap<Module, String> = texts.map(|(path, text)| (module(path), text.to_owned())).into();
    assert_eq!(cycle(&imports(&files)), None);
    let top = between_top_modules(&imports(&files));
    assert_eq!(cycle(&top).as_deref(), Some("edges::a -> edges::b -> edges::a"));
    files.insert(module("b"), "use super::Edges;".to_owned());
    assert_eq!(cycle(&imports(&files)).as_deref(), Some("edges -> edges::a -> edges::b -> edges"));
}
