//! What is published, as one value: who has which address, and which flows are declared, kept up with the objects; with
//! what differs since it was last told.

use std::time::Instant;

use bytes::Bytes;
use cluster::Problem;
use feed::Position;
use policy::{Change, Diagnostic, EdgeChanges, Edges};

use crate::channel::Baseline;
pub use crate::channel::Unencodable;
use crate::declared::{self, Lists};
use crate::directory::{Applied, Directory, Settings};
use crate::edges::{Difference, Form};
use crate::identity::{self, Exception, Reader};
use crate::object::Object;

/// Addresses with their identities, and declared edges.
pub struct Tables {
    directory: Directory,
    edges: Edges,
    lists: Lists,
    /// What the edges have not been told of yet; nothing before they take in everything.
    applied: Applied,
    begun: bool,
}

/// What the tables have to tell, in deltas of bounded size.
pub struct Deltas {
    pub(crate) identities: Vec<identity::Chunk>,
    pub(crate) edges: Vec<declared::Chunk>,
}

impl Tables {
    pub fn new(settings: Settings, form: Form) -> Tables {
        Tables {
            directory: Directory::new(settings),
            edges: Edges::new(),
            lists: Lists::new(form),
            applied: Applied::default(),
            begun: false,
        }
    }

    /// Takes a change in.
    pub fn apply(&mut self, change: Change<Object>, now: Instant) {
        let applied = self.directory.apply(change, now);
        if self.begun {
            self.applied.join(applied);
        }
    }

    /// The tables as they are now are what others are told first: what made them is no delta.
    pub fn begin(&mut self) {
        self.directory.publish();
        drop(self.follow_edges());
        self.lists.begin(&self.edges);
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Ends what has rested long enough. Says whether there was something.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let is_due = self.directory.next_expiry().is_some_and(|at| at <= now);
        if is_due {
            self.directory.expire(now);
        }
        is_due
    }

    /// What differs from what this last gave.
    pub fn take_deltas(&mut self) -> Deltas {
        let identities = identity::chunks(self.directory.take_changes());
        Deltas { identities, edges: declared::chunks(self.follow()) }
    }

    /// Brings the edges up to date; what differs in their text.
    fn follow(&mut self) -> Difference {
        let changes = self.follow_edges();
        self.lists.apply(&changes, &self.edges)
    }

    fn follow_edges(&mut self) -> EdgeChanges {
        let Applied { changed, renamed } = std::mem::take(&mut self.applied);
        let directory = &self.directory;
        let workload_of = |pod: &policy::Pod| directory.workload_of(pod);
        self.begun = true;
        self.edges.update(directory.state(), &changed, &workload_of, &renamed)
    }

    /// The baseline of what deltas have told of addresses and identities.
    pub(crate) fn identities(&self) -> impl FnOnce(Position) -> Baseline + use<> {
        let exceptions = self.directory.exceptions().map(|(sid, num)| Exception { sid, num }).collect();
        let snapshot = self.directory.published().clone();
        move |at| identity::baseline(snapshot, exceptions, at)
    }

    /// Another one if and only if something is said otherwise in a list of edges, be it in the extended form alone.
    pub(crate) fn edges_version(&self) -> String {
        self.lists.version()
    }

    /// The baseline of what deltas have told of edges.
    pub(crate) fn declared(&self) -> impl FnOnce(Position) -> Baseline + use<> {
        let listed = self.lists.now();
        move |at| declared::baseline(listed, at)
    }

    /// The database of addresses as it is downloaded.
    ///
    /// # Errors
    /// If there are more addresses than one can hold.
    pub fn database(&self, at: Position) -> Result<Bytes, Unencodable> {
        Ok(self.identities()(at).encoded_here()?.bytes.clone())
    }

    /// The list of edges as it is downloaded.
    ///
    /// # Errors
    /// None, as it is now.
    pub fn edge_list(&self, at: Position) -> Result<Bytes, Unencodable> {
        Ok(self.declared()(at).encoded_here()?.bytes.clone())
    }

    /// What of the objects was not understood, and what of the tables is withheld.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let of_diagnostic = |Diagnostic { kind, object, field, message, .. }| Problem {
            origin: format!("{kind} {object} {field}").trim_end().into(),
            message,
        };
        let mut problems: Vec<Problem> = self.directory.state().problems().into_iter().map(of_diagnostic).collect();
        problems.extend(self.directory.problems().cloned());
        if self.edges.is_withheld() {
            let message = format!("there are more than {}, so that none is published", policy::MOST_EDGES);
            problems.push(Problem { origin: "declared edges".into(), message });
        }
        problems
    }
}

impl Deltas {
    /// The JSON of the deltas as they follow the position: of identities, and of edges.
    pub fn into_json(self, after: Position) -> [Vec<Vec<u8>>; 2] {
        let positions = || std::iter::successors(Some(after.next()), |at| Some(at.next()));
        let identities = self.identities.into_iter().zip(positions());
        let edges = self.edges.into_iter().zip(positions());
        [
            identities.map(|(chunk, at)| chunk.json(at, Reader::Follower)).collect(),
            edges.map(|(chunk, at)| chunk.json(at)).collect(),
        ]
    }
}
