//! The published tables as one value: records of addresses and declared edges, updated from the objects, with the delta
//! since the last publication.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cluster::Problem;
use feed::Position;
use policy::remote::{LabelPrefix, RemoteChange};
use policy::{Change, Diagnostic, EdgeChanges, Edges, Withheld};

use crate::channel::Baseline;
pub use crate::channel::Unencodable;
use crate::directory::{Directory, Settings, StateEffects};
use crate::edge_publication::{self, Lists};
use crate::edges::{AllowlistDelta, Form};
use crate::identity::{self, DeltaAudience, Exception};
use crate::object::WatchedObject;
use crate::ranges::RangeRecords;
use crate::record::Record;

/// Addresses with their identities, and declared edges.
pub struct Tables {
    directory: Directory,
    edges: Edges,
    lists: Lists,
    ranges: Arc<RangeRecords>,
    /// Changes that the edges have not applied yet; unused before they are first computed.
    applied: StateEffects,
    begun: bool,
    /// [`Directory::ledger_revision`] as of the last deltas.
    ledger: u64,
}

/// Unpublished changes, as deltas of bounded size.
pub struct Deltas {
    /// The ledger of the baseline has changed: a number whose rest has expired changes no record.
    pub(crate) has_other_ledger: bool,
    pub(crate) identities: Vec<identity::IdentityDelta>,
    pub(crate) edges: Vec<edge_publication::DeclaredDelta>,
    /// The addresses whose records differ, each with its previous record.
    pub(crate) past: Vec<(IpAddr, Option<Arc<Record>>)>,
}

impl Tables {
    pub fn new(settings: Settings, form: Form) -> Tables {
        Tables {
            directory: Directory::new(settings),
            edges: Edges::new(),
            lists: Lists::new(form),
            ranges: Arc::default(),
            applied: StateEffects::default(),
            begun: false,
            ledger: 0,
        }
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change<WatchedObject>, now: Instant) {
        let applied = self.directory.apply(change, now);
        self.join(applied);
    }

    /// Sets the label prefixes with which policies select remote sets. Default: [`LabelPrefix::defaults`].
    pub fn set_remote_prefixes(&mut self, prefixes: Vec<LabelPrefix>) {
        let applied = self.directory.set_remote_prefixes(prefixes);
        self.join(applied);
    }

    /// Sets the records of ranges in every baseline. Default: none.
    pub fn set_ranges(&mut self, ranges: Arc<RangeRecords>) {
        self.ranges = ranges;
    }

    /// Applies a change of remote sets.
    pub fn apply_remote(&mut self, change: RemoteChange, now: Instant) {
        let applied = self.directory.apply_remote(change, now);
        self.join(applied);
    }

    fn join(&mut self, applied: StateEffects) {
        if self.begun {
            self.applied.join(applied);
        }
    }

    /// True if there may be unpublished changes or changed problems since the last deltas. It is cheap enough to call
    /// after each event.
    pub fn has_changes(&self) -> bool {
        self.directory.has_unpublished() || self.ledger != self.directory.ledger_revision() || self.applied.any()
    }

    /// Publishes the current tables as the first state, without deltas.
    pub fn begin(&mut self) {
        self.directory.publish();
        self.ledger = self.directory.ledger_revision();
        drop(self.update_edges());
        self.lists.begin(&self.edges);
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Releases the numbers whose rest has expired.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.directory.next_expiry().is_some_and(|at| at <= now) {
            self.directory.expire(now);
        }
    }

    /// Returns the deltas since the last call.
    pub fn take_deltas(&mut self) -> Deltas {
        let ledger = self.directory.ledger_revision();
        let has_other_ledger = std::mem::replace(&mut self.ledger, ledger) != ledger;
        let changes = self.directory.take_changes();
        let past = changes.past();
        let identities = identity::chunks(changes);
        Deltas { has_other_ledger, identities, edges: edge_publication::chunks(self.update_lists()), past }
    }

    /// Updates the edges. Returns the difference of their text.
    fn update_lists(&mut self) -> AllowlistDelta {
        let changes = self.update_edges();
        self.lists.apply(&changes, &self.edges)
    }

    fn update_edges(&mut self) -> EdgeChanges {
        let StateEffects { changed, renamed, problems: _ } = std::mem::take(&mut self.applied);
        let directory = &self.directory;
        let workload_of = |pod: &policy::Pod| directory.workload_of(pod);
        self.begun = true;
        self.edges.update(directory.state(), &changed, &workload_of, &renamed)
    }

    /// The baseline of published addresses and identities.
    pub(crate) fn identities(&self) -> impl FnOnce(Position) -> Baseline + use<> {
        let exceptions = self.directory.exceptions().map(|(sid, num)| Exception { sid, num }).collect();
        let (snapshot, ranges) = (self.directory.published().clone(), self.ranges.clone());
        move |at| identity::baseline(snapshot, exceptions, ranges, at)
    }

    /// Changes if and only if a list of edges changes, even if only in the extended form.
    pub(crate) fn edges_version(&self) -> String {
        self.lists.version()
    }

    /// The baseline of published edges.
    pub(crate) fn declared(&self) -> impl FnOnce(Position) -> Baseline + use<> {
        let listed = self.lists.now();
        move |at| edge_publication::baseline(listed, at)
    }

    /// The database of addresses, as downloaded.
    ///
    /// # Errors
    /// If there are more addresses than the format can hold.
    pub fn database(&self, at: Position) -> Result<Bytes, Unencodable> {
        Ok(self.identities()(at).encoded_here()?.bytes.clone())
    }

    /// The list of edges, as downloaded.
    ///
    /// # Errors
    /// None at present.
    pub fn edge_list(&self, at: Position) -> Result<Bytes, Unencodable> {
        Ok(self.declared()(at).encoded_here()?.bytes.clone())
    }

    /// Problems of objects, and parts of the tables that are not published.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let of_diagnostic = |Diagnostic { kind, object, field, message, .. }| Problem {
            origin: format!("{kind} {object} {field}").trim_end().into(),
            message,
        };
        let mut problems: Vec<Problem> = self.directory.state().problems().into_iter().map(of_diagnostic).collect();
        problems.extend(self.directory.problems().cloned());
        if let Some(why) = self.edges.withheld() {
            let message = match why {
                Withheld::TooMany => format!("more than {} edges, so none are published", policy::MOST_EDGES),
            };
            problems.push(Problem { origin: "declared edges".into(), message });
        }
        let with_denied_ports = self.edges.count_with_denied_ports();
        if with_denied_ports > 0 {
            let message = format!(
                "{with_denied_ports} edges allow everything but some denied ports, which the compatible form lacks"
            );
            problems.push(Problem { origin: "declared edges".into(), message });
        }
        problems
    }
}

impl Deltas {
    /// The JSON of the deltas after the position: of identities, and of edges.
    pub fn into_json(self, after: Position) -> [Vec<Vec<u8>>; 2] {
        let positions = || std::iter::successors(Some(after.next()), |at| Some(at.next()));
        let identities = self.identities.into_iter().zip(positions());
        let edges = self.edges.into_iter().zip(positions());
        [
            identities.map(|(chunk, at)| chunk.json(at, DeltaAudience::Follower)).collect(),
            edges.map(|(chunk, at)| chunk.json(at)).collect(),
        ]
    }

    /// The JSON of the deltas of identities in the form of numbers, after the position.
    pub fn number_json(&self, after: Position) -> Vec<Vec<u8>> {
        let positions = std::iter::successors(Some(after.next()), |at| Some(at.next()));
        self.identities.iter().zip(positions).map(|(chunk, at)| chunk.number_json(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use ::identity::{LabelFilter, Space};
    use cluster::Watchable;
    use policy::Interner;
    use serde_json::{Value, json};

    use super::*;
    use crate::object::WatchedKind;

    fn object(kind: WatchedKind, value: &Value) -> WatchedObject {
        let Ok(object) = WatchedObject::lower(&mut Interner::new(), kind, value) else { panic!("{value}") };
        object
    }

    fn web() -> Value {
        json!({
            "metadata": {"namespace": "shop", "name": "web-1", "uid": "1", "labels": {"app": "web"}},
            "spec": {"nodeName": "node-a", "containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    fn tables() -> Tables {
        let (filter, numbers) = (LabelFilter::default(), Space::STANDARD);
        let settings =
            Settings { cluster_id: "test".into(), filter, pod_detail: false, agent: None, node: None, numbers };
        let mut tables = Tables::new(settings, Form::Compatible);
        let namespace = json!({"metadata": {"name": "shop", "labels": {"team": "shop"}}});
        for (kind, value) in [(WatchedKind::Namespace, namespace), (WatchedKind::Pod, web())] {
            tables.apply(Change::Set(object(kind, &value)), Instant::now());
        }
        tables.begin();
        tables
    }

    /// Whether the object leaves unpublished changes; then takes the deltas.
    fn changes(tables: &mut Tables, kind: WatchedKind, value: &Value) -> bool {
        tables.apply(Change::Set(object(kind, value)), Instant::now());
        let changes = tables.has_changes();
        tables.take_deltas();
        assert!(!tables.has_changes(), "{value}: nothing is left");
        changes
    }

    #[test]
    fn objects_without_a_meaning_for_tables_change_nothing() {
        let mut tables = tables();
        let mut annotated = web();
        annotated["metadata"]["annotations"] = json!({"note": "x"});
        let mut not_ready = web();
        not_ready["status"]["conditions"][0]["status"] = "False".into();
        let namespace = json!({"metadata": {"name": "shop", "labels": {"team": "shop"}, "annotations": {"note": "x"}}});
        let service =
            json!({"metadata": {"namespace": "shop", "name": "other"}, "spec": {"selector": {"app": "other"}}});
        for (kind, value) in [
            (WatchedKind::Pod, web()),
            (WatchedKind::Pod, annotated),
            (WatchedKind::Pod, not_ready),
            (WatchedKind::Namespace, namespace),
            (WatchedKind::Service, service),
        ] {
            assert!(!changes(&mut tables, kind, &value), "{value}");
        }
    }

    #[test]
    fn remote_sets_change_lines_by_their_existence_only() {
        let mut tables = tables();
        let from_east = json!({
            "namespaceSelector": {"matchLabels": {"semaphore.uw.systems/cluster": "east"}},
            "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "web"}},
        });
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "from-east"},
            "spec": {"podSelector": {}, "ingress": [{"from": [from_east], "ports": [{"port": 80}]}]},
        });
        tables.apply(Change::Set(object(WatchedKind::NetworkPolicy, &policy)), Instant::now());
        tables.take_deltas();
        let mut lines = |adds: &[&str], removes: &[&str]| {
            let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
            let set = policy::remote::RemoteSet::new("east", "shop", "web");
            let change = RemoteChange::Update { set, adds: parse(adds), removes: parse(removes) };
            tables.apply_remote(change, Instant::now());
            let [_, edges] = tables.take_deltas().into_json(Position { epoch: 1, seq: 0 });
            let deltas = edges.iter().map(|delta| serde_json::from_slice::<Value>(delta).unwrap());
            deltas.map(|delta| (delta["adds"].clone(), delta["removes"].clone())).collect::<Vec<_>>()
        };
        let (line, nothing) = (json!(["E east:shop/web > shop/web : 80"]), json!([]));
        assert_eq!(lines(&["10.9.0.1"], &[]), [(line.clone(), nothing.clone())]);
        assert_eq!(lines(&["10.9.0.2"], &["10.9.0.1"]), []);
        assert_eq!(lines(&[], &["10.9.0.2"]), [(nothing, line)]);
    }

    #[test]
    fn records_edges_and_problems_are_changes() {
        let mut tables = tables();
        let mut relabelled = web();
        relabelled["metadata"]["labels"]["app"] = "api".into();
        assert!(changes(&mut tables, WatchedKind::Pod, &relabelled), "a record");
        let policy = json!({"metadata": {"namespace": "shop", "name": "deny"}, "spec": {"podSelector": {}}});
        assert!(changes(&mut tables, WatchedKind::NetworkPolicy, &policy), "edges");
        assert!(!changes(&mut tables, WatchedKind::NetworkPolicy, &policy));
        let service = json!({"metadata": {"namespace": "shop", "name": "odd"}, "spec": {"type": "Odd"}});
        assert!(changes(&mut tables, WatchedKind::Service, &service), "a problem");
        assert!(!changes(&mut tables, WatchedKind::Service, &service), "the same problem");
        tables.apply(Change::Remove(WatchedKind::Service, "shop/odd".parse().unwrap()), Instant::now());
        assert!(tables.has_changes(), "a problem is gone");
    }
}
