//! Errors in the format of the CNI specification.

use serde::Serialize;

/// Error codes of the specification ("Error"), and one of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Code {
    IncompatibleVersion = 1,
    Environment = 4,
    Io = 5,
    Decoding = 6,
    Configuration = 7,
    TryAgainLater = 11,
    /// STATUS: an ADD would fail. Running pods stay connected and their policies enforced, so 51 (limited connectivity
    /// of existing containers) is never used.
    Unavailable = 50,
    /// CHECK: the rules of the attachment are not in force.
    NotInForce = 100,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: Code,
    message: String,
    details: String,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), details: String::new() }
    }

    pub(super) fn because(self, details: impl ToString) -> Failure {
        Failure { details: details.to_string(), ..self }
    }

    /// The error result for standard output.
    pub(super) fn to_json(&self, cni_version: &str) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ErrorResult<'a> {
            cni_version: &'a str,
            code: u32,
            msg: &'a str,
            details: &'a str,
        }
        let Failure { code, message, details } = self;
        let fields = ErrorResult { cni_version, code: *code as u32, msg: message, details };
        let mut json = serde_json::to_vec(&fields).expect("numbers and strings");
        json.push(b'\n');
        json
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { code: _, message, details } = self;
        if details.is_empty() { f.write_str(message) } else { write!(f, "{message}: {details}") }
    }
}
