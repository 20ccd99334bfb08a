//! Chooses the source of objects from the command line and the environment.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

/// Chooses between a cluster (`--kubeconfig`) and a folder (`--manifests`): a flag takes precedence over a variable,
/// since a shell may have KUBECONFIG for other reasons; of two variables, that of the folder takes precedence.
///
/// # Errors
/// If both are flags.
pub fn choose(
    given: &ArgMatches,
    kubeconfig: &mut Option<PathBuf>,
    manifests: &mut Option<PathBuf>,
) -> Result<(), &'static str> {
    let is_flag = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    match (is_flag("kubeconfig"), is_flag("manifests")) {
        (true, true) => return Err("--kubeconfig and --manifests cannot be used together"),
        (true, false) => *manifests = None,
        (false, _) if manifests.is_some() => *kubeconfig = None,
        (false, _) => {}
    }
    Ok(())
}
