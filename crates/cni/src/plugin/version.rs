//! The versions of the CNI specification that the plugin speaks.

use serde::{Deserialize, Serialize};

/// From the oldest to the newest. Results have had the form that is looked at since 0.3.0, which kube-router writes,
/// and flannel writes 0.3.1; what came later is operations.
pub const SUPPORTED: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

pub(super) const NEWEST: &str = SUPPORTED[SUPPORTED.len() - 1];

/// The first version with GC and STATUS.
pub(super) const WITH_GC_AND_STATUS: &str = "1.1.0";

/// The supported version of this name.
pub(super) fn supported(name: &str) -> Option<&'static str> {
    SUPPORTED.into_iter().find(|version| *version == name)
}

/// The version that an input asks for, if the plugin speaks it.
pub(super) fn asked_for(input: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        cni_version: String,
    }
    let fields: Fields = serde_json::from_slice(input).ok()?;
    supported(&fields.cni_version)
}

/// What VERSION prints.
pub(super) fn answer(asked_for: Option<&'static str>) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        cni_version: &'static str,
        supported_versions: [&'static str; SUPPORTED.len()],
    }
    let fields = Fields { cni_version: asked_for.unwrap_or(NEWEST), supported_versions: SUPPORTED };
    let mut json = serde_json::to_vec(&fields).expect("strings");
    json.push(b'\n');
    json
}
