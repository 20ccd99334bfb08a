//! Publication of declared edges: deltas of bounded size, and the forms of the baseline.

use bytes::Bytes;
use feed::Position;
use policy::{DeclaredLines, EdgeChanges, Edges};

use crate::channel::{Baseline, BaselineForm, Encode};
use crate::edges::{Allowlist, AllowlistDelta, EdgeDelta, Form, text_of};

/// The name of the feed.
pub(crate) const FEED: &str = "policy-edges";

pub(crate) const MEDIA_TYPE: &str = "text/plain";

/// Line limit of a delta: some 100 KiB of JSON, which any relay accepts.
const LINES_OF_DELTA: usize = 1_000;

/// The lists in the published form and the lines that both forms are written from.
#[derive(Debug)]
pub(crate) struct Lists {
    form: Form,
    published: Allowlist,
    lines: DeclaredLines,
}

/// A snapshot of the lists.
#[derive(Debug)]
pub(crate) struct DeclaredSnapshot {
    form: Form,
    version: String,
    count: usize,
    lines: DeclaredLines,
}

impl Lists {
    pub(crate) fn new(form: Form) -> Lists {
        Lists { form, published: Allowlist::new(form), lines: DeclaredLines::default() }
    }

    /// Initializes the lists from the edges.
    pub(crate) fn begin(&mut self, edges: &Edges) {
        self.lines = edges.snapshot();
        self.published.begin(&self.lines);
    }

    /// Applies a delta of the edges. Returns the difference in the published list.
    pub(crate) fn apply(&mut self, changes: &EdgeChanges, edges: &Edges) -> AllowlistDelta {
        self.lines = edges.snapshot();
        self.published.apply(changes)
    }

    pub(crate) fn version(&self) -> String {
        self.published.version()
    }

    pub(crate) fn now(&self) -> DeclaredSnapshot {
        let Lists { form, published, lines } = self;
        DeclaredSnapshot { form: *form, version: self.version(), count: published.len(), lines: lines.clone() }
    }
}

/// One delta.
#[derive(Debug, Default)]
pub(crate) struct DeclaredDelta {
    adds: Vec<String>,
    removes: Vec<String>,
}

/// Splits a difference into deltas of bounded size. Additions come first, so that a flow that is declared before and
/// after is declared throughout.
pub(crate) fn chunks(difference: AllowlistDelta) -> Vec<DeclaredDelta> {
    let AllowlistDelta { adds, removes } = difference;
    let adds = adds.chunks(LINES_OF_DELTA).map(|adds| DeclaredDelta { adds: adds.to_vec(), removes: vec![] });
    let mut chunks: Vec<DeclaredDelta> = adds.collect();
    let room = |chunk: &DeclaredDelta| LINES_OF_DELTA - chunk.adds.len();
    let (first, rest) = removes.split_at(chunks.last().map_or(0, room).min(removes.len()));
    if let Some(last) = chunks.last_mut() {
        last.removes = first.to_vec();
    }
    chunks.extend(rest.chunks(LINES_OF_DELTA).map(|removes| DeclaredDelta { adds: vec![], removes: removes.to_vec() }));
    chunks
}

impl DeclaredDelta {
    pub(crate) fn json(self, position: Position) -> Vec<u8> {
        let Position { epoch, seq } = position;
        match serde_json::to_vec(&EdgeDelta { epoch, seq, adds: self.adds, removes: self.removes }) {
            Ok(json) => json,
            Err(e) => unreachable!("strings and numbers are serializable: {e}"),
        }
    }
}

/// The empty delta.
pub(crate) fn nothing(at: Position) -> Vec<u8> {
    DeclaredDelta::default().json(at)
}

/// The baseline of a list at the position.
pub(crate) fn baseline(listed: DeclaredSnapshot, position: Position) -> Baseline {
    let DeclaredSnapshot { form, version, count, lines } = listed;
    let part = |what, extension, form| {
        let lines = lines.clone();
        let encode: Encode = Box::new(move |_, _| Ok(Bytes::from(text_of(&lines, form))));
        BaselineForm { what, extension, media_type: MEDIA_TYPE, encode }
    };
    let parts = vec![part("baseline", "txt", form), part("extended", "extended.txt", Form::Extended)];
    Baseline::new(version, position, count, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_difference_is_chunked_with_adds_first() {
        let lines = |count: usize| (0..count).map(|n| format!("G a/{n}")).collect::<Vec<_>>();
        let sizes = |adds, removes| {
            let chunks = chunks(AllowlistDelta { adds: lines(adds), removes: lines(removes) });
            chunks.iter().map(|chunk| (chunk.adds.len(), chunk.removes.len())).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0, 0), []);
        assert_eq!(sizes(1, 1), [(1, 1)]);
        assert_eq!(sizes(1_500, 700), [(1_000, 0), (500, 500), (0, 200)]);
        assert_eq!(sizes(0, 1_001), [(0, 1_000), (0, 1)]);
    }
}
