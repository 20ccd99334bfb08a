//! A Lease as stored by the API server.

use std::time::Duration;

use jiff::Timestamp;
use policy::ObjectName;
use serde_json::{Value, json};

/// The object, including fields written by other clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    object: Value,
}

impl Lease {
    /// Wraps an object returned by the API server.
    pub fn of(object: Value) -> Lease {
        Lease { object }
    }

    /// A Lease that does not exist yet, without a holder.
    pub(super) fn new(name: &ObjectName) -> Lease {
        Lease::of(json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": *name.namespace, "name": *name.name},
        }))
    }

    pub fn object(&self) -> &Value {
        &self.object
    }

    /// The holder; `None` if the Lease is free.
    pub fn holder(&self) -> Option<&str> {
        self.object["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
    }

    /// The holder's lease duration; `None` if it is missing or 0.
    pub(super) fn duration(&self) -> Option<Duration> {
        let seconds = self.object["spec"]["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0)?;
        Some(Duration::from_secs(seconds))
    }

    /// Whether the specs are equal, so that the holder did not renew in between. Metadata may be written by any client.
    pub(super) fn says_the_same(&self, other: &Lease) -> bool {
        self.object["spec"] == other.object["spec"]
    }

    /// The same Lease acquired or renewed by this identity.
    pub(super) fn held_by(&self, identity: &str, duration: Duration, time: Timestamp) -> Lease {
        let is_new = self.holder() != Some(identity);
        let transitions = self.object["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
        let transitions = transitions + u64::from(is_new && self.object["spec"].is_object());
        self.with_spec(|spec| {
            spec["holderIdentity"] = identity.into();
            spec["leaseDurationSeconds"] = duration.as_secs().max(1).into();
            spec["renewTime"] = micro_time(time).into();
            if is_new {
                spec["acquireTime"] = micro_time(time).into();
                spec["leaseTransitions"] = transitions.into();
            }
        })
    }

    /// The same Lease without a holder, so that candidates acquire it without waiting.
    pub(super) fn released(&self, time: Timestamp) -> Lease {
        self.with_spec(|spec| {
            spec["holderIdentity"] = "".into();
            spec["leaseDurationSeconds"] = 1.into();
            spec["renewTime"] = micro_time(time).into();
        })
    }

    fn with_spec(&self, write: impl FnOnce(&mut Value)) -> Lease {
        let mut object = self.object.clone();
        let spec = &mut object["spec"];
        if !spec.is_object() {
            *spec = json!({});
        }
        write(spec);
        Lease { object }
    }
}

/// `meta.v1.MicroTime`: RFC 3339 with six digits.
fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> Timestamp {
        "2026-05-04T03:02:01.5Z".parse().unwrap()
    }

    #[test]
    fn a_lease_is_written_as_others_read_it() {
        let lease = Lease::new(&ObjectName::new("ringfence", "context"));
        let held = lease.held_by("a", Duration::from_secs(15), time());
        let time = "2026-05-04T03:02:01.500000Z";
        assert_eq!(
            held.object()["spec"],
            json!({
                "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": time, "acquireTime": time,
                "leaseTransitions": 0,
            })
        );
    }

    #[test]
    fn renewal_keeps_acquire_time_and_takeover_counts_transition() {
        let first = Lease::new(&ObjectName::new("ringfence", "context")).held_by("a", Duration::from_secs(15), time());
        let later = time() + jiff::SignedDuration::from_secs(2);
        let renewed = first.held_by("a", Duration::from_secs(15), later);
        assert_eq!(renewed.object()["spec"]["acquireTime"], first.object()["spec"]["acquireTime"]);
        assert_ne!(renewed.object()["spec"]["renewTime"], first.object()["spec"]["renewTime"]);
        assert_eq!(renewed.object()["spec"]["leaseTransitions"], 0);
        let taken = renewed.held_by("b", Duration::from_secs(15), later);
        assert_eq!(taken.object()["spec"]["leaseTransitions"], 1);
        assert_ne!(taken.object()["spec"]["acquireTime"], first.object()["spec"]["acquireTime"]);
    }

    #[test]
    fn renewal_keeps_foreign_fields_of_lease() {
        let object = json!({"metadata": {"resourceVersion": "7", "labels": {"a": "b"}}, "spec": {"strategy": "x"}});
        let held = Lease::of(object.clone()).held_by("a", Duration::from_secs(15), time());
        assert_eq!(held.object()["metadata"], object["metadata"]);
        assert_eq!(held.object()["spec"]["strategy"], "x");
    }

    #[test]
    fn released_lease_has_no_holder() {
        let held = Lease::new(&ObjectName::new("ringfence", "context")).held_by("a", Duration::from_secs(15), time());
        assert_eq!(held.holder(), Some("a"));
        assert_eq!(held.released(time()).holder(), None);
        assert_eq!(Lease::of(json!({"spec": 7})).holder(), None);
    }
}
