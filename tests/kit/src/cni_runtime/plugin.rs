//! Runs one CNI plugin once.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::NodeNamespaces;

/// The output of a plugin that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginOutput {
    pub plugin: String,
    pub stdout: String,
    pub stderr: String,
    /// Duration of the process.
    pub took: Duration,
}

/// The output of a plugin that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFailure {
    pub plugin: String,
    pub cni_version: String,
    pub code: u64,
    pub message: String,
    pub details: String,
    pub stderr: String,
}

/// Runs a plugin with these variables, no others but PATH, and this input.
///
/// # Errors
/// Its error output, if it fails.
///
/// # Panics
/// If it does not start, or its output is invalid.
pub(super) fn run(
    node: &NodeNamespaces,
    program: &Path,
    variables: &[(&str, String)],
    input: &str,
) -> Result<PluginOutput, Box<PluginFailure>> {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(variables.iter().map(|(k, v)| (*k, v)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (output, took) = node.run(|| {
        let begin = Instant::now();
        let mut child = command.spawn().expect("the plugin starts");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        match stdin.write_all(input.as_bytes()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => panic!("{}: {error}", program.display()),
        }
        drop(stdin);
        let output = child.wait_with_output().expect("the plugin ends");
        (output, begin.elapsed())
    });
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    let plugin = program.file_name().expect("a program's name").to_string_lossy().into_owned();
    if output.status.success() {
        return Ok(PluginOutput { plugin, stdout, stderr, took });
    }
    let error: Value = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{plugin} failed without words: {error}\n{stdout}\n{stderr}"));
    let said = |key: &str| error[key].as_str().unwrap_or("").to_owned();
    let code = error["code"].as_u64().unwrap_or_else(|| panic!("{plugin} failed without a code: {stdout}"));
    let (cni_version, message, details) = (said("cniVersion"), said("msg"), said("details"));
    Err(Box::new(PluginFailure { plugin, cni_version, code, message, details, stderr }))
}
