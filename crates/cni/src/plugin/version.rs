//! Versions of the CNI specification that the plugin supports.

use serde::{Deserialize, Serialize};

/// Sorted, the oldest first. The parsed parts of results are unchanged since 0.3.0, which kube-router writes (flannel
/// writes 0.3.1); later versions only added operations.
pub const SUPPORTED: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

pub(super) const NEWEST: &str = SUPPORTED[SUPPORTED.len() - 1];

/// The first version with GC and STATUS.
pub(super) const WITH_GC_AND_STATUS: &str = "1.1.0";

/// The supported version with this name.
pub(super) fn supported(name: &str) -> Option<&'static str> {
    SUPPORTED.into_iter().find(|version| *version == name)
}

/// The version that an input requests, if the plugin supports it.
pub(super) fn asked_for(input: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VersionRequest {
        cni_version: String,
    }
    let fields: VersionRequest = serde_json::from_slice(input).ok()?;
    supported(&fields.cni_version)
}

/// Result of VERSION.
pub(super) fn answer(asked_for: Option<&'static str>) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct VersionResult {
        cni_version: &'static str,
        supported_versions: [&'static str; SUPPORTED.len()],
    }
    let fields = VersionResult { cni_version: asked_for.unwrap_or(NEWEST), supported_versions: SUPPORTED };
    let mut json = serde_json::to_vec(&fields).expect("strings");
    json.push(b'\n');
    json
}
