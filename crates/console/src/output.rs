//! Standard output. A reader that closes the pipe early, as `head` does, is not an error. The verbs decide what is
//! printed.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;

use crate::YES;

/// Whether the reader is still connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderState {
    Reads,
    Gone,
}

/// Prints and flushes, also into a pipe. Colours are omitted if the output is not a terminal.
pub fn print(text: &str) -> io::Result<ReaderState> {
    print_bytes(text.as_bytes())
}

/// Like [`print()`], for a part of a text that may end within a character.
pub fn print_bytes(part: &[u8]) -> io::Result<ReaderState> {
    let mut output = anstream::stdout().lock();
    reader(output.write_all(part).and_then(|()| output.flush()))
}

/// Prints the whole output of a verb and returns its exit status: 0 if the reader has closed the pipe.
pub fn answer(text: &str, status: ExitCode) -> anyhow::Result<ExitCode> {
    Ok(match print(text)? {
        ReaderState::Reads => status,
        ReaderState::Gone => YES,
    })
}

/// Formats the value as `--output json` does.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn reader(written: io::Result<()>) -> io::Result<ReaderState> {
    match written {
        Ok(()) => Ok(ReaderState::Reads),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ReaderState::Gone),
        Err(error) => Err(error),
    }
}
