//! Network configuration lists: the agent's entry, and the plugin's configuration from them.

use agent::conflist::{ConflistEntry, PLUGIN, from_conf, source, with_entry, without_entry};
use serde::Deserialize;

const FILE: &str = "10-net.conf";

/// Bytes as a configuration in the folder of the container runtime. An entry is added once, everything else keeps its
/// bytes, and it can be removed again; the plugin parses any input or refuses it.
///
/// # Panics
/// If that does not hold.
pub fn conflists(bytes: &[u8]) {
    cni::plugin::accepts(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let supported: Vec<String> = cni::plugin::SUPPORTED.iter().map(|version| (*version).to_owned()).collect();
    let entry = ConflistEntry {
        agent_socket: "/run/ringfence/cni.sock".into(),
        state_dir: "/run/ringfence/cni".into(),
        timeout_seconds: 10,
        on_timeout: "fail",
        checksum_offload: None,
    };
    if let Ok(Some(with)) = with_entry(text, &entry, &supported) {
        assert_eq!(kinds(&with).iter().filter(|kind| *kind == PLUGIN).count(), 1, "{text}\n{with}");
        assert_eq!(with_entry(&with, &entry, &supported), Ok(None), "{text}\n{with}");
        let Ok(Some(without)) = without_entry(&with) else { panic!("the entry cannot be removed: {with}") };
        assert_eq!(kinds(&without), others(&kinds(text)), "{text}\n{with}");
        if others(&kinds(text)) == kinds(text) {
            assert_eq!(without, text, "{with}");
        }
    }
    if let Ok(list) = from_conf(text, FILE, &entry, &supported) {
        assert_eq!(source(&list).as_deref(), Some(FILE), "{list}");
        assert_eq!(with_entry(&list, &entry, &supported), Ok(None), "{text}\n{list}");
    }
}

#[derive(Deserialize)]
struct List {
    plugins: Vec<Plugin>,
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    kind: String,
}

/// The types of the plugins of a list.
fn kinds(text: &str) -> Vec<String> {
    let List { plugins } = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    plugins.into_iter().map(|plugin| plugin.kind).collect()
}

fn others(kinds: &[String]) -> Vec<String> {
    kinds.iter().filter(|kind| *kind != PLUGIN).cloned().collect()
}
