//! Standard output. Whoever reads it may have seen enough before its end, as `head` has; that is no error. What is
//! printed is the verbs' affair.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;

use crate::YES;

/// Whether somebody still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Reads,
    Gone,
}

/// At once, also into a pipe. Colours are left out where nobody sees them.
pub fn print(text: &str) -> io::Result<Reader> {
    print_bytes(text.as_bytes())
}

/// As [`print()`], for a part of a text that may end within a character.
pub fn print_bytes(part: &[u8]) -> io::Result<Reader> {
    let mut output = anstream::stdout().lock();
    reader(output.write_all(part).and_then(|()| output.flush()))
}

/// Prints all that a verb has to say, and gives the exit status of the verb: 0 where the reader had seen enough.
pub fn answer(text: &str, status: ExitCode) -> anyhow::Result<ExitCode> {
    Ok(match print(text)? {
        Reader::Reads => status,
        Reader::Gone => YES,
    })
}

/// As `--output json` has it.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn reader(written: io::Result<()>) -> io::Result<Reader> {
    match written {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error),
    }
}
