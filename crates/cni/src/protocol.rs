//! Protocol of the plugin and the agent on `cni.sock`: one line of JSON in each direction, then the connection closes.
//!
//! `{"version":1,"add":{...}}`, `delete`, `check` or `status` is answered by `{"version":1,"result":"..."}`. Tests pin
//! the bytes: during an upgrade the two programs may be of different releases.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::{AttachmentKey, AttachmentRecord};

/// Protocol version of requests and responses.
pub const VERSION: u32 = 1;

/// Maximum length of a line, including the newline. Ordinary lines have a few hundred bytes.
pub const LINE_BYTES: usize = 64 * 1024;

/// Request of the plugin to the agent.
#[expect(clippy::large_enum_variant, reason = "there is one a process, or one a connection")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The pod starts. The response is sent when its rules are in force, or after this timeout. The attachment is
    /// already stored.
    Add { attachment: AttachmentRecord, timeout_millis: u64 },
    /// The attachment and its file were removed.
    Delete(AttachmentKey),
    /// Asks whether the rules of this attachment are in force.
    Check(AttachmentKey),
    /// Asks whether an ADD would be answered.
    Status,
}

/// Response of the agent to the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Success of a DELETE or STATUS.
    Ok,
    /// The policies of the pod are in force.
    Enforced,
    /// The pod is not known yet: everything from and to its addresses is denied.
    Isolated { reason: String },
    /// Nothing is guaranteed.
    Failed { reason: String },
}

/// Why a request or response could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("connection closed before the end of the line")]
    Closed,
    #[error("the line is longer than {LINE_BYTES} bytes")]
    TooLong,
    #[error("unsupported protocol version {0}: expected {VERSION}")]
    Version(u32),
    #[error("cannot decode the line: {0}")]
    Content(String),
}

impl Request {
    /// Encodes the request as a line, including the newline.
    ///
    /// # Errors
    /// If it is too long.
    pub fn to_line(&self) -> Result<Vec<u8>, ProtocolError> {
        let mut fields = RequestFields::default();
        match self.clone() {
            Request::Add { attachment, timeout_millis } => fields.add = Some(AddFields { attachment, timeout_millis }),
            Request::Delete(id) => fields.delete = Some(id),
            Request::Check(id) => fields.check = Some(id),
            Request::Status => fields.status = Some(NoFields {}),
        }
        to_line(VersionedMessage { version: VERSION, fields })
    }

    /// Decodes a line, with or without its newline.
    ///
    /// # Errors
    /// If it is too long, has another version, or is invalid.
    pub fn from_line(line: &[u8]) -> Result<Request, ProtocolError> {
        match from_line(line)? {
            RequestFields {
                add: Some(AddFields { attachment, timeout_millis }),
                delete: None,
                check: None,
                status: None,
            } => Ok(Request::Add { attachment, timeout_millis }),
            RequestFields { add: None, delete: Some(id), check: None, status: None } => Ok(Request::Delete(id)),
            RequestFields { add: None, delete: None, check: Some(id), status: None } => Ok(Request::Check(id)),
            RequestFields { add: None, delete: None, check: None, status: Some(NoFields {}) } => Ok(Request::Status),
            _ => Err(ProtocolError::Content("unknown request, or several requests in one line".into())),
        }
    }
}

impl Response {
    /// Encodes the response as a line, including the newline.
    ///
    /// # Errors
    /// If it is too long.
    pub fn to_line(&self) -> Result<Vec<u8>, ProtocolError> {
        let (result, reason) = match self.clone() {
            Response::Ok => (ResultWord::Ok, None),
            Response::Enforced => (ResultWord::Enforced, None),
            Response::Isolated { reason } => (ResultWord::Isolated, Some(reason)),
            Response::Failed { reason } => (ResultWord::Failed, Some(reason)),
        };
        to_line(VersionedMessage { version: VERSION, fields: ResponseFields { result, reason } })
    }

    /// Decodes a line, with or without its newline.
    ///
    /// # Errors
    /// If it is too long, has another version, or is invalid.
    pub fn from_line(line: &[u8]) -> Result<Response, ProtocolError> {
        let ResponseFields { result, reason } = from_line(line)?;
        let reason = reason.unwrap_or_else(|| "no reason given".into());
        Ok(match result {
            ResultWord::Ok => Response::Ok,
            ResultWord::Enforced => Response::Enforced,
            ResultWord::Isolated => Response::Isolated { reason },
            ResultWord::Failed => Response::Failed { reason },
        })
    }
}

/// # Errors
/// If reading fails or the line is not a valid request.
pub fn read_request(from: &mut impl Read) -> Result<Request, ProtocolError> {
    Request::from_line(&read_line(from)?)
}

/// # Errors
/// If writing fails.
pub fn write_request(to: &mut impl Write, request: &Request) -> Result<(), ProtocolError> {
    Ok(to.write_all(&request.to_line()?)?)
}

/// # Errors
/// If reading fails or the line is not a valid response.
pub fn read_response(from: &mut impl Read) -> Result<Response, ProtocolError> {
    Response::from_line(&read_line(from)?)
}

/// # Errors
/// If writing fails.
pub fn write_response(to: &mut impl Write, response: &Response) -> Result<(), ProtocolError> {
    Ok(to.write_all(&response.to_line()?)?)
}

/// Reads up to the end of a line. Bytes of the same read that follow the newline are not kept for another line.
fn read_line(from: &mut impl Read) -> Result<Vec<u8>, ProtocolError> {
    let mut line = Vec::new();
    let mut part = [0; 4096];
    loop {
        let length = match from.read(&mut part) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Err(ProtocolError::Closed);
        }
        line.extend_from_slice(&part[..length]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end + 1);
            return Ok(line);
        }
        if line.len() >= LINE_BYTES {
            return Err(ProtocolError::TooLong);
        }
    }
}

/// Envelope of both messages. The version is read first, since the other fields depend on it.
#[derive(Serialize)]
struct VersionedMessage<T> {
    version: u32,
    #[serde(flatten)]
    fields: T,
}

#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct RequestFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    add: Option<AddFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete: Option<AttachmentKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<AttachmentKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<NoFields>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AddFields {
    attachment: AttachmentRecord,
    timeout_millis: u64,
}

#[derive(Serialize, Deserialize)]
struct NoFields {}

#[derive(Serialize, Deserialize)]
struct ResponseFields {
    result: ResultWord,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ResultWord {
    Ok,
    Enforced,
    Isolated,
    Failed,
}

fn to_line(value: impl Serialize) -> Result<Vec<u8>, ProtocolError> {
    let mut line = serde_json::to_vec(&value).map_err(|error| ProtocolError::Content(error.to_string()))?;
    line.push(b'\n');
    if line.len() > LINE_BYTES { Err(ProtocolError::TooLong) } else { Ok(line) }
}

fn from_line<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Result<T, ProtocolError> {
    if line.len() > LINE_BYTES {
        return Err(ProtocolError::TooLong);
    }
    let not_understood = |error: serde_json::Error| ProtocolError::Content(error.to_string());
    let VersionField { version } = serde_json::from_slice(line).map_err(not_understood)?;
    if version != VERSION {
        return Err(ProtocolError::Version(version));
    }
    serde_json::from_slice(line).map_err(not_understood)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::tests::{EXAMPLE, example};

    fn requests() -> Vec<(Request, String)> {
        let id = AttachmentKey::new("4f1c", "eth0").unwrap();
        let add = Request::Add { attachment: example(), timeout_millis: 9000 };
        let line = |text: &str| format!("{text}\n");
        vec![
            (add, line(&format!(r#"{{"version":1,"add":{{"attachment":{EXAMPLE},"timeoutMillis":9000}}}}"#))),
            (Request::Delete(id.clone()), line(r#"{"version":1,"delete":{"containerId":"4f1c","interface":"eth0"}}"#)),
            (Request::Check(id), line(r#"{"version":1,"check":{"containerId":"4f1c","interface":"eth0"}}"#)),
            (Request::Status, line(r#"{"version":1,"status":{}}"#)),
        ]
    }

    fn responses() -> Vec<(Response, &'static str)> {
        let reason = || String::from("the pod shop/api-0 is not known");
        vec![
            (Response::Ok, "{\"version\":1,\"result\":\"ok\"}\n"),
            (Response::Enforced, "{\"version\":1,\"result\":\"enforced\"}\n"),
            (
                Response::Isolated { reason: reason() },
                "{\"version\":1,\"result\":\"isolated\",\"reason\":\"the pod shop/api-0 is not known\"}\n",
            ),
            (
                Response::Failed { reason: reason() },
                "{\"version\":1,\"result\":\"failed\",\"reason\":\"the pod shop/api-0 is not known\"}\n",
            ),
        ]
    }

    #[test]
    fn requests_and_responses_are_these_bytes() {
        for (request, line) in requests() {
            let mut written = Vec::new();
            write_request(&mut written, &request).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), line);
            assert_eq!(read_request(&mut line.as_bytes()).unwrap(), request);
        }
        for (response, line) in responses() {
            let mut written = Vec::new();
            write_response(&mut written, &response).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), line);
            assert_eq!(read_response(&mut line.as_bytes()).unwrap(), response);
        }
    }

    #[test]
    fn request_in_pieces_is_complete_at_newline_only() {
        struct Pieces<'a>(&'a [u8]);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let (first, rest) = self.0.split_at(self.0.len().min(7));
                into[..first.len()].copy_from_slice(first);
                self.0 = rest;
                Ok(first.len())
            }
        }
        for (request, line) in requests() {
            assert_eq!(read_request(&mut Pieces(line.as_bytes())).unwrap(), request);
            for end in 0..line.len() - 1 {
                let cut = read_request(&mut Pieces(&line.as_bytes()[..end]));
                assert!(matches!(cut, Err(ProtocolError::Closed)), "{cut:?}");
            }
        }
    }

    #[test]
    fn invalid_lines_are_refused_with_distinct_errors() {
        let of_request = |line: &str| Request::from_line(line.as_bytes()).unwrap_err().to_string();
        assert!(of_request(r#"{"version":2,"surprise":[]}"#).contains("version 2"));
        assert!(of_request(r#"{"status":{}}"#).contains("missing field `version`"));
        assert!(of_request(r#"{"version":1}"#).contains("unknown request"));
        assert!(of_request(r#"{"version":1,"later":{}}"#).contains("unknown request"));
        let two = r#"{"version":1,"status":{},"delete":{"containerId":"a","interface":"b"}}"#;
        assert!(of_request(two).contains("several requests"));
        let path = r#"{"version":1,"delete":{"containerId":"../a","interface":"b"}}"#;
        assert!(of_request(path).contains("invalid container ID"));
        assert!(Response::from_line(br#"{"version":1,"result":"maybe"}"#).is_err());
        let endless = read_response(&mut io::repeat(b' '));
        assert!(matches!(endless, Err(ProtocolError::TooLong)), "{endless:?}");
        let long = Response::Failed { reason: "x".repeat(LINE_BYTES) };
        assert!(matches!(long.to_line(), Err(ProtocolError::TooLong)));
    }
}
