//! The feed `remote-sets` between the provider and the agents, as JSON: a baseline and deltas.
//!
//! Both sides only use these types. Providers write lists sorted and without duplicates; readers do not rely on it.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{RemoteChange, RemoteSet};

/// The name of the feed in the provider's URL.
pub const FEED: &str = "remote-sets";

/// The complete content at a position in the feed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBaseline {
    /// Epoch of the publication: start of the provider in milliseconds since 1970.
    pub epoch: u64,
    /// Number of the last delta that the baseline contains; 0 if none.
    pub seq: u64,
    /// Sorted by name.
    pub clusters: Vec<ClusterRow>,
    /// Sorted by cluster, namespace and name.
    pub sets: Vec<SetRow>,
}

/// The changes of one step of the feed. Empty parts are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteDelta {
    /// Epoch of the publication, as in [`RemoteBaseline`].
    pub epoch: u64,
    /// Number of the delta in the epoch, from 1 without gaps.
    pub seq: u64,
    /// Sets that are new, changed or without addresses now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetDelta>,
    /// Rows that are new or changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterRow>,
    /// Clusters that are no longer watched. Their rows and sets are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Arc<str>>,
}

/// The status of a watched cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRow {
    /// The name under which the provider watches the cluster.
    pub cluster: Arc<str>,
    /// Whether the cluster's API server responds. While it does not, its sets are left unchanged.
    pub reachable: bool,
    /// When its sets were last in sync; omitted if never.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "moment")]
    pub synced_at: Option<Timestamp>,
}

/// A set with all its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRow {
    /// Fields `cluster`, `namespace` and `name`.
    #[serde(flatten)]
    pub set: RemoteSet,
    /// Sorted; not empty.
    pub addresses: Vec<IpAddr>,
}

/// The change of one set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetDelta {
    /// Fields `cluster`, `namespace` and `name`.
    #[serde(flatten)]
    pub set: RemoteSet,
    /// Addresses that the set gains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adds: Vec<IpAddr>,
    /// Addresses that the set loses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removes: Vec<IpAddr>,
}

impl RemoteBaseline {
    /// The change that replaces the content of any state.
    pub fn change(&self) -> RemoteChange {
        RemoteChange::Replace(self.sets.iter().map(|row| (row.set.clone(), row.addresses.clone())).collect())
    }
}

impl RemoteDelta {
    /// The changes for a state, in order. Removing a cluster removes its sets, even if the delta also updates them.
    pub fn changes(&self) -> Vec<RemoteChange> {
        let update = |SetDelta { set, adds, removes }: &SetDelta| RemoteChange::Update {
            set: set.clone(),
            adds: adds.clone(),
            removes: removes.clone(),
        };
        let gone = self.gone.iter().cloned().map(RemoteChange::RemoveCluster);
        self.sets.iter().map(update).chain(gone).collect()
    }
}

/// RFC 3339, in UTC.
mod moment {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(moment: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match moment {
            Some(moment) => serializer.collect_str(moment),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        let text: Option<String> = Option::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden<T>(value: &T, text: &str)
    where
        T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(value).unwrap(), text);
        assert_eq!(serde_json::from_str::<T>(text).unwrap(), *value);
    }

    fn row(reachable: bool) -> ClusterRow {
        let synced_at = reachable.then(|| "2026-01-02T03:04:05Z".parse().unwrap());
        ClusterRow { cluster: "my-cluster".into(), reachable, synced_at }
    }

    fn set() -> RemoteSet {
        RemoteSet::new("my-cluster", "my-ns", "my-app")
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_baseline_has_these_bytes() {
        let addresses = vec![address("10.4.1.38"), address("2001:db8::1")];
        let sets = vec![SetRow { set: set(), addresses }];
        golden(
            &RemoteBaseline { epoch: 1767323045000, seq: 7, clusters: vec![row(true)], sets },
            r#"{"epoch":1767323045000,"seq":7,"clusters":[{"cluster":"my-cluster","reachable":true,"syncedAt":"2026-01-02T03:04:05Z"}],"sets":[{"cluster":"my-cluster","namespace":"my-ns","name":"my-app","addresses":["10.4.1.38","2001:db8::1"]}]}"#,
        );
        golden(
            &RemoteBaseline { epoch: 1, ..RemoteBaseline::default() },
            r#"{"epoch":1,"seq":0,"clusters":[],"sets":[]}"#,
        );
    }

    #[test]
    fn delta_matches_golden_json_and_omits_empty_fields() {
        let delta = RemoteDelta {
            epoch: 1,
            seq: 8,
            sets: vec![SetDelta { set: set(), adds: vec![address("10.4.1.39")], removes: vec![address("10.4.1.38")] }],
            clusters: vec![row(false)],
            gone: vec!["other".into()],
        };
        golden(
            &delta,
            r#"{"epoch":1,"seq":8,"sets":[{"cluster":"my-cluster","namespace":"my-ns","name":"my-app","adds":["10.4.1.39"],"removes":["10.4.1.38"]}],"clusters":[{"cluster":"my-cluster","reachable":false}],"gone":["other"]}"#,
        );
        let adds_only = SetDelta { set: set(), adds: vec![address("10.4.1.39")], removes: vec![] };
        golden(
            &RemoteDelta { epoch: 1, seq: 9, sets: vec![adds_only], ..RemoteDelta::default() },
            r#"{"epoch":1,"seq":9,"sets":[{"cluster":"my-cluster","namespace":"my-ns","name":"my-app","adds":["10.4.1.39"]}]}"#,
        );
        golden(&RemoteDelta { epoch: 1, seq: 10, ..RemoteDelta::default() }, r#"{"epoch":1,"seq":10}"#);
    }

    #[test]
    fn invalid_baseline_is_refused_entirely() {
        for text in [
            r#"{"epoch":1,"seq":0,"clusters":[]}"#,
            r#"{"epoch":1,"seq":0,"clusters":[],"sets":[{"cluster":"c","namespace":"n","addresses":[]}]}"#,
            r#"{"epoch":1,"seq":0,"clusters":[],"sets":[{"cluster":"c","namespace":"n","name":"a","addresses":["10.4.1.0/24"]}]}"#,
            r#"{"epoch":1,"seq":0,"clusters":[{"cluster":"c","reachable":true,"syncedAt":"yesterday"}],"sets":[]}"#,
        ] {
            assert!(serde_json::from_str::<RemoteBaseline>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn removed_cluster_in_delta_becomes_forget_change() {
        let update = SetDelta { set: set(), adds: vec![], removes: vec![address("10.4.1.38")] };
        let delta = RemoteDelta { sets: vec![update], gone: vec!["my-cluster".into()], ..RemoteDelta::default() };
        assert_eq!(
            delta.changes(),
            [
                RemoteChange::Update { set: set(), adds: vec![], removes: vec![address("10.4.1.38")] },
                RemoteChange::RemoveCluster("my-cluster".into()),
            ]
        );
    }
}
