//! One HTTP request on an open stream, for an agent's port and its socket.

use std::io::{Error, ErrorKind, Read, Result, Write};

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Requests `target`. HTTP/1.0, so that the response ends with the stream.
pub(crate) fn get(mut stream: impl Read + Write, target: &str) -> Result<Response> {
    write!(stream, "GET {target} HTTP/1.0\r\nhost: ringfence\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let parsed = answer.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split_whitespace().nth(1)?.parse().ok()?;
        Some(Response { status, body: body.into() })
    });
    parsed.ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("no HTTP answer: {answer:?}")))
}
