//! `ringfence doctor`: checks whether this node really enforces policies.

use std::path::Path;
use std::process::ExitCode;

use anstyle::Style;
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};

use crate::cli::DoctorArguments;
use crate::doctor::{CniPlaces, Finding, FindingSeverity, examine, self_test};

/// JSON output of the verb.
#[derive(serde::Serialize)]
struct DoctorReport {
    findings: Vec<Finding>,
}

pub(crate) fn doctor(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let DoctorArguments { no_self_test, run_dir, cni_conf_dir, cni_bin_dir, table, output: form } = arguments;
    let places = CniPlaces { configurations: cni_conf_dir, binaries: cni_bin_dir, run_dir };
    let mut findings = examine(Path::new("/"), &places, table)?;
    if !no_self_test {
        findings.push(self_test::finding(&self_test::run(&self_test::ruleset())));
    }
    let count = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let (errors, warnings, notes) =
        (count(FindingSeverity::Error), count(FindingSeverity::Warning), count(FindingSeverity::Note));
    let text = match form {
        Output::Json => output::json(&DoctorReport { findings })?,
        Output::Text => {
            let findings: String = findings.iter().map(as_text).collect();
            format!("{findings}{errors} errors, {warnings} warnings, {notes} notes\n")
        }
    };
    output::answer(&text, if errors > 0 { NO } else { YES })
}

fn as_text(Finding { id, severity, finding, advice }: &Finding) -> String {
    let style = match severity {
        FindingSeverity::Ok => GOOD,
        FindingSeverity::Note => Style::new(),
        FindingSeverity::Warning => DOUBTFUL,
        FindingSeverity::Error => BAD,
    };
    let advice = advice.as_ref().map_or_else(String::new, |advice| format!("        to do: {advice}\n"));
    format!("{style}{:<7}{style:#} {}: {finding}\n{advice}", severity.as_str(), id.id())
}
