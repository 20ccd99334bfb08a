//! The lines of a list, updated incrementally, with a version derived from its content.

use std::collections::BTreeMap;

use policy::{DeclaredLine, DeclaredLines, EdgeChanges};
use sha2::{Digest, Sha256};

use super::text::{Form, texts};
use crate::version::{Sum, first_half};

/// The set of lines of a list in one form. It stores digests only: the text is generated from the statements on request
/// ([`text_of`]), since it would be as large as all of them.
#[derive(Debug)]
pub struct Allowlist {
    form: Form,
    /// Number of statements by the digest of their line.
    lines: BTreeMap<LineDigest, u32>,
    /// Sum over the lines of the extended form, which is complete: both forms are generated from the same statements.
    said: Sum,
}

type LineDigest = [u8; 16];

/// Delta between two versions of a list: sorted lines, none in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowlistDelta {
    pub adds: Vec<String>,
    pub removes: Vec<String>,
}

impl Allowlist {
    pub fn new(form: Form) -> Allowlist {
        Allowlist { form, lines: BTreeMap::new(), said: Sum::default() }
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Inserts the initial lines, for which no delta is published.
    pub fn begin(&mut self, lines: &DeclaredLines) {
        for line in lines.iter() {
            self.add_line(&line);
            for text in texts(&line, self.form) {
                *self.lines.entry(digest(&text)).or_default() += 1;
            }
        }
    }

    /// Applies changes. Returns the lines of text that were added and removed.
    pub fn apply(&mut self, changes: &EdgeChanges) -> AllowlistDelta {
        changes.removes.iter().for_each(|line| self.remove_line(line));
        changes.adds.iter().for_each(|line| self.add_line(line));
        // Whether each was in the list before.
        let mut touched: BTreeMap<String, (LineDigest, bool)> = BTreeMap::new();
        for line in changes.removes.iter().flat_map(|line| texts(line, self.form)) {
            let digest = digest(&line);
            let Some(count) = self.lines.get_mut(&digest) else { continue };
            *count -= 1;
            if *count == 0 {
                self.lines.remove(&digest);
            }
            touched.entry(line).or_insert((digest, true));
        }
        for line in changes.adds.iter().flat_map(|line| texts(line, self.form)) {
            let digest = digest(&line);
            let count = self.lines.entry(digest).or_default();
            touched.entry(line).or_insert((digest, *count > 0));
            *count += 1;
        }
        let mut difference = AllowlistDelta::default();
        for (line, (digest, was_there)) in touched {
            match (was_there, self.lines.contains_key(&digest)) {
                (false, true) => difference.adds.push(line),
                (true, false) => difference.removes.push(line),
                (true, true) | (false, false) => {}
            }
        }
        difference
    }

    /// `edges-` and 16 hexadecimal digits. Changes if and only if the lines of the extended form change.
    pub fn version(&self) -> String {
        format!("edges-{:016x}", self.said.version())
    }

    fn add_line(&mut self, line: &DeclaredLine) {
        texts(line, Form::Extended).iter().for_each(|text| self.said.add(u128::from_be_bytes(digest(text))));
    }

    fn remove_line(&mut self, line: &DeclaredLine) {
        texts(line, Form::Extended).iter().for_each(|text| self.said.remove(u128::from_be_bytes(digest(text))));
    }
}

/// The whole list in the form: its first line, then C, E, G, P, R and S lines in this order, each block sorted bytewise,
/// which is the order of all the lines.
pub fn text_of(lines: &DeclaredLines, form: Form) -> String {
    written(lines.iter(), form)
}

fn written(lines: impl Iterator<Item = DeclaredLine>, form: Form) -> String {
    let mut texts: Vec<Box<str>> = lines.flat_map(|line| texts(&line, form)).map(String::into_boxed_str).collect();
    texts.sort_unstable();
    texts.dedup();
    let mut text = form.header();
    text.push('\n');
    for line in texts {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn digest(line: &str) -> LineDigest {
    first_half(Sha256::new_with_prefix(line))
}

#[cfg(test)]
mod tests {
    use policy::{EdgeEnd, FlowPorts, PortSpan, Protocol};

    use super::*;

    fn edge(protocol: Protocol, port: u16) -> DeclaredLine {
        let workload = |text: &str| EdgeEnd::Workload(text.parse().unwrap());
        let ports = FlowPorts::of([PortSpan { protocol, first: port, last: port }]);
        DeclaredLine::Edge { source: workload("a/web"), destination: workload("a/api"), ports, partial: false }
    }

    fn changes(adds: &[DeclaredLine], removes: &[DeclaredLine]) -> EdgeChanges {
        EdgeChanges { adds: adds.to_vec(), removes: removes.to_vec() }
    }

    #[test]
    fn line_stays_while_any_edge_writes_it() {
        let (tcp, udp) = (edge(Protocol::Tcp, 53), edge(Protocol::Udp, 53));
        let mut list = Allowlist::new(Form::Compatible);
        let first = list.apply(&changes(&[tcp.clone(), udp.clone()], &[]));
        assert_eq!((first.adds, first.removes), (vec!["E a/web > a/api : 53".to_owned()], vec![]));
        let version = list.version();
        assert_eq!(list.apply(&changes(&[], std::slice::from_ref(&tcp))), AllowlistDelta::default());
        assert_ne!(list.version(), version, "the extended form has a line less");
        assert_eq!(list.apply(&changes(&[tcp], &[udp])), AllowlistDelta::default());
        assert_ne!(list.version(), version);
        assert_eq!(list.apply(&changes(&[], &[edge(Protocol::Tcp, 53)])).removes, ["E a/web > a/api : 53"]);
        assert!(list.is_empty());
        assert_eq!(list.version(), Allowlist::new(Form::Compatible).version());
    }

    #[test]
    fn version_depends_on_list_contents_only() {
        let lines = [edge(Protocol::Tcp, 1), edge(Protocol::Tcp, 2), edge(Protocol::Udp, 3)];
        let mut at_once = Allowlist::new(Form::Extended);
        at_once.apply(&changes(&lines, &[]));
        let mut versions = vec![at_once.version()];
        let mut one_by_one = Allowlist::new(Form::Extended);
        one_by_one.apply(&changes(&[edge(Protocol::Sctp, 9)], &[]));
        for line in lines.iter().rev() {
            one_by_one.apply(&changes(std::slice::from_ref(line), &[]));
            versions.push(one_by_one.version());
        }
        one_by_one.apply(&changes(&[], &[edge(Protocol::Sctp, 9)]));
        assert_eq!((one_by_one.version(), one_by_one.len()), (at_once.version(), lines.len()));
        versions.sort();
        versions.dedup();
        assert_eq!(versions.len(), 4);
        let digits = at_once.version();
        let digits = digits.strip_prefix("edges-").unwrap();
        assert!(digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{digits}");
    }

    #[test]
    fn the_blocks_are_in_order() {
        let workload = |text: &str| text.parse().unwrap();
        let governed =
            [DeclaredLine::EgressGoverned(workload("a/web")), DeclaredLine::IngressGoverned(workload("a/api"))];
        let edges = [edge(Protocol::Tcp, 9), edge(Protocol::Udp, 9), edge(Protocol::Tcp, 80)];
        let expected = "# NetworkPolicy-derived declared-edge allow-list\n\
                        E a/web > a/api : 80\nE a/web > a/api : 9\nG a/api\nS a/web\n";
        assert_eq!(written(governed.into_iter().chain(edges), Form::Compatible), expected);
    }
}
