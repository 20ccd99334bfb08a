//! Parses server-sent events from a stream of bytes in chunks of any size.
//!
//! As in the standard: lines end with LF, CR or CRLF; a byte order mark at the beginning is skipped; comments and
//! unknown fields are ignored; an event without data is dropped; an id applies until the next one. `retry` is ignored:
//! a follower uses its own backoff.

/// Size limit of an event. The producer splits what it publishes into much smaller deltas.
const EVENT_BYTES: usize = 16 << 20;

/// A parsed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedEvent {
    /// The event type; `message` by default.
    pub event: String,
    /// The last id, of this event or an earlier one.
    pub id: String,
    /// Data lines, joined with LF.
    pub data: Vec<u8>,
}

/// An event exceeds 16 MiB. Without a limit, a server could exhaust the memory of its followers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct TooLong {
    limit: usize,
}

/// Parser state between chunks.
#[derive(Debug)]
pub struct Parser {
    limit: usize,
    /// The incomplete last line.
    line: Vec<u8>,
    /// The last byte was a CR: an LF now belongs to the same line end.
    after_cr: bool,
    is_first_line: bool,
    event: String,
    id: String,
    data: Vec<u8>,
    /// Bytes of the incomplete event, in all its fields.
    event_bytes: usize,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser::new()
    }
}

impl Parser {
    /// At the beginning of a stream.
    pub fn new() -> Parser {
        Parser::with_limit(EVENT_BYTES)
    }

    fn with_limit(limit: usize) -> Parser {
        Parser {
            limit,
            line: vec![],
            after_cr: false,
            is_first_line: true,
            event: String::new(),
            id: String::new(),
            data: vec![],
            event_bytes: 0,
        }
    }

    /// Parses the bytes, and appends the events that they complete.
    ///
    /// # Errors
    /// If an event is too long. The parser cannot be used afterwards.
    pub fn push(&mut self, mut bytes: &[u8], events: &mut Vec<ParsedEvent>) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            self.after_cr = false;
        }
        while let Some(end) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.append(&bytes[..end])?;
            events.extend(self.end_line());
            let is_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if is_cr {
                self.after_cr = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
        }
        self.append(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.event_bytes += bytes.len();
        if self.event_bytes > self.limit {
            return Err(TooLong { limit: self.limit });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Option<ParsedEvent> {
        let line = std::mem::take(&mut self.line);
        let mut text = line.as_slice();
        if std::mem::take(&mut self.is_first_line) {
            text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        }
        let event = if text.is_empty() {
            self.end_event()
        } else {
            self.field(text);
            None
        };
        self.line = line;
        self.line.clear();
        event
    }

    fn field(&mut self, line: &[u8]) {
        let (name, value) = match line.iter().position(|b| *b == b':') {
            // Comments do not count, so that any number of keepalives may be between two events.
            Some(0) => return self.event_bytes -= line.len(),
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"event" => self.event = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"id" if !value.contains(&0) => self.id = String::from_utf8_lossy(value).into_owned(),
            _ => {}
        }
    }

    fn end_event(&mut self) -> Option<ParsedEvent> {
        self.event_bytes = 0;
        let event = std::mem::take(&mut self.event);
        let mut data = std::mem::take(&mut self.data);
        data.pop()?;
        let event = if event.is_empty() { "message".to_owned() } else { event };
        Some(ParsedEvent { event, id: self.id.clone(), data })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Position, sse};

    fn parsed(event: &str, id: &str, data: &str) -> ParsedEvent {
        ParsedEvent { event: event.into(), id: id.into(), data: data.into() }
    }

    fn parse(text: &[u8]) -> Vec<ParsedEvent> {
        let mut events = vec![];
        Parser::new().push(text, &mut events).unwrap();
        events
    }

    #[test]
    fn parser_follows_server_sent_events_standard() {
        for (text, events) in [
            ("data: one\ndata: two\n\n", vec![parsed("message", "", "one\ntwo")]),
            ("data:one\n\ndata:  two\n\n", vec![parsed("message", "", "one"), parsed("message", "", " two")]),
            ("data\n\ndata\ndata\n\ndata:", vec![parsed("message", "", ""), parsed("message", "", "\n")]),
            ("event: a\n\ndata: x\n\n", vec![parsed("message", "", "x")]),
            (
                "id: 1\ndata: x\n\ndata: y\n\nid\ndata: z\n\n",
                vec![parsed("message", "1", "x"), parsed("message", "1", "y"), parsed("message", "", "z")],
            ),
            ("id: 1\0\ndata: x\n\n", vec![parsed("message", "", "x")]),
            (": a comment\n\nretry: 5\nunknown: 1\nevent: a\ndata: x\n\n", vec![parsed("a", "", "x")]),
            ("\u{feff}data: x\n\n", vec![parsed("message", "", "x")]),
            (
                "data: x\r\rdata: y\r\n\r\ndata: z\n\r",
                vec![parsed("message", "", "x"), parsed("message", "", "y"), parsed("message", "", "z")],
            ),
            ("data: not complete", vec![]),
        ] {
            assert_eq!(parse(text.as_bytes()), events, "{text:?}");
        }
    }

    #[test]
    fn written_events_parse_back_unchanged() {
        let at = Position { epoch: 7, seq: 3 };
        let text = [sse::position(at), sse::delta(at, b"{}"), sse::STILL_HERE, sse::pull(at, "a\nb")].concat();
        let [position, delta, pull] = &parse(&text)[..] else { panic!("three events") };
        assert_eq!(position, &parsed(sse::POSITION, "", r#"{"epoch":7,"seq":3}"#));
        assert_eq!(delta, &parsed(sse::DELTA, "7:3", "{}"));
        let data: sse::PullData = serde_json::from_slice(&pull.data).unwrap();
        assert_eq!(data, sse::PullData { position: at, reason: "a\nb".into() });
    }

    #[test]
    fn unterminated_event_is_refused_but_comments_are_unlimited() {
        let mut parser = Parser::with_limit(32);
        let mut events = vec![];
        for _ in 0..1_000 {
            parser.push(b": still here\n", &mut events).unwrap();
        }
        parser.push(b"data: 0123456789\ndata: 0123456789", &mut events).unwrap();
        assert_eq!(parser.push(b"9", &mut events), Err(TooLong { limit: 32 }));
        let mut parser = Parser::with_limit(32);
        assert!(parser.push(&[b':'; 33], &mut events).is_err(), "a comment without an end");
        assert_eq!(events, []);
    }

    proptest! {
        #[test]
        fn parser_result_is_independent_of_chunk_boundaries(
            text in "(data|event|id|:|: |x|\n|\r|\r\n|\n\n|\u{feff}|ä|\0){0,40}",
            cuts in prop::collection::vec(0..200_usize, 0..12),
        ) {
            let text = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut parser, mut events) = (Parser::new(), vec![]);
            for piece in cuts.windows(2) {
                parser.push(&text[piece[0]..piece[1]], &mut events).unwrap();
            }
            prop_assert_eq!(events, parse(text));
        }
    }
}
