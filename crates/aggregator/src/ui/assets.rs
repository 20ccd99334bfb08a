//! The files of the page, from `crates/aggregator/ui`.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A file of the page.
#[derive(Debug)]
pub(super) struct Asset {
    name: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: &'static [u8],
}

macro_rules! asset {
    ($name:literal, $content_type:expr) => {
        Asset { name: $name, content_type: $content_type, body: include_bytes!(concat!("../../ui/", $name)) }
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

pub(super) const INDEX: Asset = asset!("index.html", "text/html; charset=utf-8");

const FILES: &[Asset] = &[
    asset!("icon.svg", "image/svg+xml"),
    asset!("style.css", "text/css; charset=utf-8"),
    asset!("api.js", SCRIPT),
    asset!("audit.js", SCRIPT),
    asset!("columns.js", SCRIPT),
    asset!("coverage.js", SCRIPT),
    asset!("declared.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("edge.js", SCRIPT),
    asset!("ends.js", SCRIPT),
    asset!("filters.js", SCRIPT),
    asset!("flows.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("graph.js", SCRIPT),
    asset!("keys.js", SCRIPT),
    asset!("layout.js", SCRIPT),
    asset!("live.js", SCRIPT),
    asset!("main.js", SCRIPT),
    asset!("map.js", SCRIPT),
    asset!("parts.js", SCRIPT),
    asset!("picture.js", SCRIPT),
    asset!("pointing.js", SCRIPT),
    asset!("policies.js", SCRIPT),
    asset!("readiness.js", SCRIPT),
    asset!("state.js", SCRIPT),
    asset!("suggestion.js", SCRIPT),
    asset!("traces.js", SCRIPT),
    asset!("whatif.js", SCRIPT),
    asset!("workload.js", SCRIPT),
];

pub(super) fn named(name: &str) -> Option<&'static Asset> {
    FILES.iter().find(|asset| asset.name == name)
}

impl Asset {
    /// The entity tag: a hash of the content.
    pub(super) fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.body.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn text(asset: &Asset) -> &'static str {
        std::str::from_utf8(asset.body).unwrap()
    }

    fn scripts() -> impl Iterator<Item = &'static Asset> {
        FILES.iter().filter(|asset| asset.name.ends_with(".js"))
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let entries = std::fs::read_dir(folder).unwrap();
        let there: BTreeSet<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let served = FILES.iter().chain([&INDEX]).map(|asset| asset.name.to_owned()).collect();
        assert_eq!(there, served);
    }

    #[test]
    fn page_preloads_each_module() {
        let page = text(&INDEX);
        for script in scripts() {
            assert!(page.contains(&format!("\"/ui/{}\"", script.name)), "{} is missing in index.html", script.name);
        }
    }

    /// The Content-Security-Policy would refuse them, in the browser of a user.
    #[test]
    fn files_have_no_inline_code_or_markup() {
        let page = text(&INDEX);
        for banned in ["<script>", "<style", " style=", " onclick=", "javascript:", "http://", "https://"] {
            assert!(!page.contains(banned), "index.html has {banned}");
        }
        for script in scripts() {
            for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!text(script).contains(banned), "{} has {banned}", script.name);
            }
        }
    }
}
