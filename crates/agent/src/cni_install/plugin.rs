//! The plugin's executable: its CNI versions, and its copy in the folder of plugins.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::files;
use crate::conflist::PLUGIN;

/// A plugin to install.
pub(crate) struct Plugin {
    bytes: Vec<u8>,
    /// The CNI versions that it supports.
    pub(crate) cni_versions: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: Vec<String>,
}

impl Plugin {
    /// Reads the plugin and queries its versions, which also verifies that it runs.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Plugin> {
        let bytes = std::fs::read(path)
            .with_context(|| format!("cannot read the plugin {}; set its path with --plugin", path.display()))?;
        if !mentions_us(&bytes) {
            bail!("{} is not {PLUGIN}; set the path of the plugin with --plugin", path.display());
        }
        let cni_versions =
            ask_versions(path).with_context(|| format!("operation VERSION of the plugin {} failed", path.display()))?;
        Ok(Plugin { bytes, cni_versions })
    }

    /// Copies the plugin if the copy is missing or differs. Running processes keep the old executable.
    ///
    /// # Errors
    /// If the folder or the file cannot be read or written.
    pub(crate) fn copy_into(&self, folder: &Path) -> io::Result<bool> {
        let path = path_in(folder);
        let present = match std::fs::read(&path) {
            Ok(bytes) => bytes == self.bytes && std::fs::metadata(&path)?.permissions().mode() & 0o7777 == 0o755,
            Err(e) if e.kind() == ErrorKind::NotFound => false,
            Err(e) => return Err(files::with_path(&path, e)),
        };
        if !present {
            std::fs::create_dir_all(folder).map_err(|e| files::with_path(folder, e))?;
            for abandoned in files::leftovers(folder, Some(super::ABANDONED))? {
                std::fs::remove_file(abandoned)?;
            }
            files::write_program(&path, &self.bytes)?;
        }
        Ok(!present)
    }
}

/// Path of the plugin in the folder of plugins.
pub(crate) fn path_in(folder: &Path) -> PathBuf {
    folder.join(PLUGIN)
}

/// Whether the file is the Ringfence plugin, recognised by its name in the executable's messages.
pub(crate) fn is_ours(path: &Path) -> io::Result<bool> {
    Ok(mentions_us(&std::fs::read(path)?))
}

fn mentions_us(bytes: &[u8]) -> bool {
    bytes.windows(PLUGIN.len()).any(|window| window == PLUGIN.as_bytes())
}

/// Runs the VERSION operation of the CNI specification.
fn ask_versions(path: &Path) -> anyhow::Result<Vec<String>> {
    let mut child = Command::new(path)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take()
        && let Err(e) = input.write_all(br#"{"cniVersion":"1.0.0"}"#)
        && e.kind() != ErrorKind::BrokenPipe
    {
        return Err(e.into());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout).trim());
    }
    let versions: Versions = serde_json::from_slice(&output.stdout).context("invalid response to VERSION")?;
    Ok(versions.supported_versions)
}
