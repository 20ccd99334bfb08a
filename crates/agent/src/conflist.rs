//! The plugin's entry in a CNI network configuration list, as functions on text.
//!
//! The list belongs to the pod network: everything but the entry stays byte for byte, and removing the entry restores
//! the previous text. This module does not access files.

mod document;
mod formatting;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use document::Document;
use formatting::Style;

/// The `type` of the entry, which is also the plugin's file name.
pub const PLUGIN: &str = "ringfence-cni";

/// Key with the source of a derived list. Runtimes ignore unknown keys (`NetworkConfFromBytes` of libcni).
const SOURCE: &str = "ringfenceSource";

/// Default of `cniVersion` (the CNI specification, section 1).
const UNSAID_VERSION: &str = "0.1.0";

/// Configuration of the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConflistEntry {
    pub agent_socket: PathBuf,
    pub state_dir: PathBuf,
    pub timeout_seconds: u64,
    pub on_timeout: &'static str,
    /// `txChecksumOffload`; left out for the default.
    pub checksum_offload: Option<&'static str>,
}

/// Why a configuration is left unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("invalid JSON: {0}")]
    Malformed(String),
    #[error("invalid network configuration: {0}")]
    UnexpectedShape(&'static str),
    #[error("unsupported cniVersion {0}: {PLUGIN} supports {1}")]
    Version(String, String),
}

impl ConflistEntry {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let text = |path: &Path| json!(path.to_string_lossy());
        let mut fields = vec![
            ("type", json!(PLUGIN)),
            ("agentSocket", text(&self.agent_socket)),
            ("stateDir", text(&self.state_dir)),
            ("timeoutSeconds", json!(self.timeout_seconds)),
            ("onTimeout", json!(self.on_timeout)),
        ];
        fields.extend(self.checksum_offload.map(|offload| ("txChecksumOffload", json!(offload))));
        fields
    }

    fn value(&self) -> Value {
        self.fields().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// The list with the entry; `None` if it is already present.
///
/// A new entry is appended to the chain. An existing one keeps its place even if others follow: two programs that both
/// insist on being last would rewrite the file forever. Only an entry at the head is moved, since the plugin that
/// assigns the pod's addresses must precede it.
pub fn with_entry(text: &str, entry: &ConflistEntry, cni_versions: &[String]) -> Result<Option<String>, Unusable> {
    let document = Document::parse(text)?;
    require_version(&document, cni_versions)?;
    let plugins = document.plugins()?;
    let ours: Vec<usize> = (0..plugins.len()).filter(|i| plugins[*i].kind == PLUGIN).collect();
    match ours[..] {
        [place] if place > 0 => {
            let span = plugins[place].span.clone();
            if serde_json::from_str::<Value>(&text[span.clone()]).is_ok_and(|value| value == entry.value()) {
                return Ok(None);
            }
            let written = Style::of(text, &plugins[place]).write(&entry.fields());
            Ok(Some(format!("{}{written}{}", &text[..span.start], &text[span.end..])))
        }
        [] => {
            let Some(last) = plugins.last() else {
                return Err(Unusable::UnexpectedShape("the list of plugins is empty"));
            };
            let separator = match &plugins[..] {
                [.., before, _] => text[before.span.end..last.span.start].to_owned(),
                _ => format!(",{}", formatting::lead(text, last.span.start)),
            };
            let written = Style::of(text, last).write(&entry.fields());
            let (head, tail) = text.split_at(last.span.end);
            Ok(Some(format!("{head}{separator}{written}{tail}")))
        }
        [..] => {
            let cleaned =
                without_entry(text)?.ok_or(Unusable::UnexpectedShape("its plugins cannot be distinguished"))?;
            with_entry(&cleaned, entry, cni_versions)
        }
    }
}

/// The list without entries; `None` if it has none.
pub fn without_entry(text: &str) -> Result<Option<String>, Unusable> {
    let mut rest = None;
    while let Some(next) = without_first_entry(rest.as_deref().unwrap_or(text))? {
        rest = Some(next);
    }
    Ok(rest)
}

fn without_first_entry(text: &str) -> Result<Option<String>, Unusable> {
    let plugins = Document::parse(text)?.plugins()?;
    let Some(place) = plugins.iter().position(|plugin| plugin.kind == PLUGIN) else { return Ok(None) };
    let span = &plugins[place].span;
    // One comma is removed with the entry: the preceding one, or the following one if the entry is the first.
    let (start, end) = match (place.checked_sub(1), plugins.get(place + 1)) {
        (Some(before), _) => (plugins[before].span.end, span.end),
        (None, Some(next)) => (span.start, next.span.start),
        (None, None) => (span.start, span.end),
    };
    Ok(Some(format!("{}{}", &text[..start], &text[end..])))
}

/// Derives a list with the entry from a `.conf` file of one plugin, as runtimes do in memory (`ConfListFromConf` of
/// libcni).
pub fn from_conf(text: &str, file: &str, entry: &ConflistEntry, cni_versions: &[String]) -> Result<String, Unusable> {
    let document = Document::parse(text)?;
    if document.field("plugins").is_some() {
        return Err(Unusable::UnexpectedShape(
            "it has the format of a .conflist, which runtimes refuse in a .conf file",
        ));
    }
    if document.text_field("type").is_none() {
        return Err(Unusable::UnexpectedShape("the plugin's type is missing"));
    }
    let quoted = |key: &str| document.field(key).map(|raw| raw.get().to_owned());
    let version = quoted("cniVersion").map(|version| format!("  \"cniVersion\": {version},\n")).unwrap_or_default();
    let name = quoted("name").unwrap_or_else(|| "\"\"".into());
    let list = format!(
        "{{\n{version}  \"name\": {name},\n  \"{SOURCE}\": {},\n  \"plugins\": [\n    {}\n  ]\n}}\n",
        json!(file),
        text.trim()
    );
    with_entry(&list, entry, cni_versions)?.ok_or(Unusable::UnexpectedShape("it has no plugin besides ringfence-cni"))
}

/// The source file of a list derived by [`from_conf`].
pub fn source(text: &str) -> Option<String> {
    Document::parse(text).ok()?.text_field(SOURCE)
}

/// Refuses a configuration whose CNI versions the plugin does not support: with the entry no pod would start.
fn require_version(document: &Document<'_>, cni_versions: &[String]) -> Result<(), Unusable> {
    let one = document.text_field("cniVersion");
    let several: Vec<String> = match document.field("cniVersions") {
        Some(raw) => serde_json::from_str(raw.get())
            .map_err(|_| Unusable::UnexpectedShape("cniVersions is not a list of strings"))?,
        None => vec![],
    };
    let mut said: Vec<String> = one.into_iter().chain(several).collect();
    if said.is_empty() {
        said.push(UNSAID_VERSION.into());
    }
    match said.iter().any(|version| cni_versions.contains(version)) {
        true => Ok(()),
        false => Err(Unusable::Version(said.join(", "), cni_versions.join(", "))),
    }
}

#[cfg(test)]
mod tests;
