//! The list of lines, brought up to date line by line, with a version that says what it holds.

use std::sync::Arc;

use imbl::OrdMap;
use policy::{EdgeChanges, Lines};
use sha2::{Digest, Sha256};

use super::text::{Form, texts};

/// A list in one of the forms. A copy costs nothing, so that a baseline can be written of what a delta has carried while
/// the list goes on.
#[derive(Debug, Clone)]
pub struct Allowlist {
    form: Form,
    /// With the number of statements that are written so.
    lines: OrdMap<Arc<str>, u32>,
    /// Of the lines' digests: the same whatever the order is in which they came.
    sum: u128,
}

/// How a list differs from what it was before: lines in order, none in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    pub adds: Vec<String>,
    pub removes: Vec<String>,
}

impl Allowlist {
    pub fn new(form: Form) -> Allowlist {
        Allowlist { form, lines: OrdMap::new(), sum: 0 }
    }

    /// How many lines there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// In the order of the text.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.keys().map(|line| &**line)
    }

    /// Takes changes in; says which lines of text came and went.
    pub fn apply(&mut self, changes: &EdgeChanges) -> Difference {
        let (before, form) = (self.lines.clone(), self.form);
        let mut touched: Vec<Arc<str>> = Vec::new();
        for line in changes.removes.iter().flat_map(|line| texts(line, form)) {
            let Some((held, count)) = self.lines.get_key_value(line.as_str()) else { continue };
            let (held, count) = (held.clone(), *count);
            match count {
                0 | 1 => drop(self.lines.remove(&held)),
                _ => drop(self.lines.insert(held.clone(), count - 1)),
            }
            touched.push(held);
        }
        for line in changes.adds.iter().flat_map(|line| texts(line, form)) {
            let (held, count) = match self.lines.get_key_value(line.as_str()) {
                Some((held, count)) => (held.clone(), *count),
                None => (Arc::from(line), 0),
            };
            self.lines.insert(held.clone(), count + 1);
            touched.push(held);
        }
        touched.sort_unstable();
        touched.dedup();
        let mut difference = Difference::default();
        for line in touched {
            match (before.contains_key(&line), self.lines.contains_key(&line)) {
                (false, true) => {
                    self.sum = self.sum.wrapping_add(digest(&line));
                    difference.adds.push(line.to_string());
                }
                (true, false) => {
                    self.sum = self.sum.wrapping_sub(digest(&line));
                    difference.removes.push(line.to_string());
                }
                (true, true) | (false, false) => {}
            }
        }
        difference
    }

    /// `edges-` and 16 hexadecimal digits: another one if and only if the lines are others.
    pub fn version(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.lines.len() as u64).to_be_bytes());
        hash.update(self.sum.to_be_bytes());
        let bytes = hash.finalize();
        let digits: String = bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("edges-{digits}")
    }

    /// The whole list: its first line, then C, E, G, P and S lines in this order, each block sorted bytewise, which is the
    /// order of all the lines.
    pub fn text(&self) -> String {
        whole(self.form, self.lines())
    }
}

/// The text of a list in the form that has exactly these lines, without such a list.
pub fn text_of(lines: &Lines, form: Form) -> String {
    let mut texts: Vec<Box<str>> =
        lines.iter().flat_map(|line| texts(&line, form)).map(String::into_boxed_str).collect();
    texts.sort_unstable();
    texts.dedup();
    whole(form, texts.iter().map(|line| &**line))
}

fn whole<'a>(form: Form, lines: impl Iterator<Item = &'a str>) -> String {
    let mut text = form.header();
    text.push('\n');
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The first half of SHA-256.
fn digest(line: &str) -> u128 {
    let hash = Sha256::digest(line.as_bytes());
    hash[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use policy::{End, FlowPorts, Line, PortSpan, Protocol};

    use super::*;

    fn edge(protocol: Protocol, port: u16) -> Line {
        let workload = |text: &str| End::Workload(text.parse().unwrap());
        let ports = FlowPorts::of([PortSpan { protocol, first: port, last: port }]);
        Line::Edge { source: workload("a/web"), destination: workload("a/api"), ports, partial: false }
    }

    fn changes(adds: &[Line], removes: &[Line]) -> EdgeChanges {
        EdgeChanges { adds: adds.to_vec(), removes: removes.to_vec() }
    }

    #[test]
    fn a_line_stays_as_long_as_anything_is_written_so() {
        let (tcp, udp) = (edge(Protocol::Tcp, 53), edge(Protocol::Udp, 53));
        let mut list = Allowlist::new(Form::Compatible);
        let first = list.apply(&changes(&[tcp.clone(), udp.clone()], &[]));
        assert_eq!((first.adds, first.removes), (vec!["E a/web > a/api : 53".to_owned()], vec![]));
        let version = list.version();
        assert_eq!(list.apply(&changes(&[], std::slice::from_ref(&tcp))), Difference::default());
        assert_eq!(list.version(), version);
        assert_eq!(list.apply(&changes(&[tcp], &[udp])), Difference::default());
        assert_eq!(list.version(), version);
        assert_eq!(list.apply(&changes(&[], &[edge(Protocol::Tcp, 53)])).removes, ["E a/web > a/api : 53"]);
        assert!(list.is_empty());
        assert_eq!(list.version(), Allowlist::new(Form::Compatible).version());
    }

    #[test]
    fn the_version_says_what_the_list_holds_however_it_came_there() {
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
        assert_eq!((one_by_one.version(), one_by_one.text()), (at_once.version(), at_once.text()));
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
        let mut list = Allowlist::new(Form::Compatible);
        let governed = [Line::EgressGoverned(workload("a/web")), Line::IngressGoverned(workload("a/api"))];
        list.apply(&changes(&governed, &[]));
        list.apply(&changes(&[edge(Protocol::Tcp, 9), edge(Protocol::Tcp, 80)], &[]));
        let expected = "# NetworkPolicy-derived declared-edge allow-list\n\
                        E a/web > a/api : 80\nE a/web > a/api : 9\nG a/api\nS a/web\n";
        assert_eq!(list.text(), expected);
    }
}
