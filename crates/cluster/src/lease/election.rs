//! Decides which candidate leads, from the Lease and the times at which this process observed it change.

use std::time::Instant;

use jiff::Timestamp;
use policy::ObjectName;

use super::{Lease, LeaseTerms};

/// One candidate's view of an election. Every `Instant` is one of this process's monotonic clock.
#[derive(Debug, Clone)]
pub struct Election {
    name: ObjectName,
    /// The identity, unique among the candidates.
    identity: String,
    terms: LeaseTerms,
    seen: Option<ObservedRecord>,
    /// When the last successful acquire or renew request was sent. No other candidate can have observed it earlier.
    renewed: Option<Instant>,
}

/// A record, and when its contents were first observed.
#[derive(Debug, Clone)]
struct ObservedRecord {
    lease: Lease,
    at: Instant,
}

/// The next step for the Lease as read.
#[derive(Debug, Clone, PartialEq)]
pub enum LeaseAction {
    /// The Lease does not exist: create this one.
    Create(Lease),
    /// We hold the Lease, or it is free or expired: replace the version that was read by this one.
    Replace(Lease),
    /// Another candidate holds the Lease, and may still lead.
    Wait,
}

impl Election {
    pub fn new(name: ObjectName, identity: String, terms: LeaseTerms) -> Election {
        Election { name, identity, terms, seen: None, renewed: None }
    }

    /// Records the Lease as read, and returns the next step. `time` is only written to the record.
    pub fn observe(&mut self, found: Option<Lease>, now: Instant, time: Timestamp) -> LeaseAction {
        let Some(found) = found else {
            self.seen = None;
            self.renewed = None;
            return LeaseAction::Create(Lease::new(&self.name).held_by(&self.identity, self.terms.duration, time));
        };
        let at = match &self.seen {
            Some(seen) if seen.lease.says_the_same(&found) => seen.at,
            Some(_) | None => now,
        };
        let lease_duration = found.duration().unwrap_or(self.terms.duration);
        let held = found.held_by(&self.identity, self.terms.duration, time);
        let step = match found.holder() {
            None => LeaseAction::Replace(held),
            Some(holder) if holder == self.identity => LeaseAction::Replace(held),
            Some(_) if now.saturating_duration_since(at) >= lease_duration => LeaseAction::Replace(held),
            Some(_) => LeaseAction::Wait,
        };
        if found.holder() != Some(&self.identity) {
            self.renewed = None;
        }
        self.seen = Some(ObservedRecord { lease: found, at });
        step
    }

    /// Records a successful step: the server stored this Lease, by a request sent at that time.
    pub fn record_write(&mut self, lease: Lease, sent: Instant) {
        self.renewed = (lease.holder() == Some(&self.identity)).then_some(sent);
        self.seen = Some(ObservedRecord { lease, at: sent });
    }

    /// The end of this candidate's leadership unless it renews; `None` if it does not lead.
    pub fn leads_until(&self, now: Instant) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.terms.renew_deadline).filter(|until| now < *until)
    }

    /// The last observed holder.
    pub fn holder(&self) -> Option<&str> {
        self.seen.as_ref().and_then(|seen| seen.lease.holder())
    }

    /// The record that releases our leadership early; `None` if we do not hold the Lease.
    pub fn release(&self, time: Timestamp) -> Option<Lease> {
        let seen = self.seen.as_ref().filter(|seen| seen.lease.holder() == Some(&self.identity))?;
        Some(seen.lease.released(time))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A Lease in a server, and candidates that read it at given seconds.
    struct World {
        began: Instant,
        lease: Option<Lease>,
    }

    impl World {
        fn new() -> World {
            World { began: Instant::now(), lease: None }
        }

        fn at(&self, second: u32) -> Instant {
            self.began + SECOND * second
        }

        /// A wall clock that is a day ahead of the monotonic clock.
        fn time(&self, second: u32) -> Timestamp {
            "2026-05-04T03:02:01Z".parse::<Timestamp>().unwrap()
                + jiff::SignedDuration::from_hours(24)
                + jiff::SignedDuration::from_secs(second.into())
        }

        fn observe(&self, candidate: &mut Election, second: u32) -> LeaseAction {
            candidate.observe(self.lease.clone(), self.at(second), self.time(second))
        }

        /// Reads the Lease and performs the step.
        fn round(&mut self, candidate: &mut Election, second: u32) -> bool {
            match self.observe(candidate, second) {
                LeaseAction::Create(lease) | LeaseAction::Replace(lease) => {
                    self.lease = Some(lease.clone());
                    candidate.record_write(lease, self.at(second));
                }
                LeaseAction::Wait => {}
            }
            candidate.leads_until(self.at(second)).is_some()
        }
    }

    fn candidate(identity: &str) -> Election {
        Election::new(ObjectName::new("ringfence", "context"), identity.into(), LeaseTerms::default())
    }

    #[test]
    fn first_candidate_creates_lease_and_second_waits() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        assert!(matches!(world.observe(&mut a, 0), LeaseAction::Create(_)));
        assert!(world.round(&mut a, 0));
        assert!(!world.round(&mut b, 0));
        assert_eq!((a.holder(), b.holder()), (Some("a"), Some("a")));
    }

    #[test]
    fn renewing_leader_is_never_replaced() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        for second in 0..200 {
            assert!(second % 8 != 0 || world.round(&mut a, second));
            assert!(!world.round(&mut b, second));
        }
    }

    #[test]
    fn silent_leader_steps_down_before_successor_leads() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        world.round(&mut a, 0);
        // b observes the Lease late, and counts the lease duration from that time.
        let followed = (1..60).find(|second| world.round(&mut b, *second)).unwrap();
        let gave_up = (1..60).find(|second| a.leads_until(world.at(*second)).is_none()).unwrap();
        assert_eq!((gave_up, followed), (10, 16));
        // a observes the new holder at its next read.
        assert!(!world.round(&mut a, 17));
        assert_eq!(a.holder(), Some("b"));
    }

    #[test]
    fn holder_timeout_starts_when_lease_first_observed() {
        let mut world = World::new();
        let spec =
            json!({"holderIdentity": "x", "leaseDurationSeconds": 30, "renewTime": "2001-01-01T00:00:00.000000Z"});
        world.lease = Some(Lease::of(json!({"metadata": {"resourceVersion": "7"}, "spec": spec})));
        let mut a = candidate("a");
        assert_eq!((100..200).find(|second| world.round(&mut a, *second)), Some(130));
    }

    #[test]
    fn metadata_changes_do_not_renew_lease() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        world.round(&mut a, 0);
        world.round(&mut b, 0);
        for second in 1..15 {
            let mut object = world.lease.clone().unwrap().object().clone();
            object["metadata"]["resourceVersion"] = second.to_string().into();
            world.lease = Some(Lease::of(object));
            assert!(!world.round(&mut b, second));
        }
        assert!(world.round(&mut b, 15));
    }

    #[test]
    fn released_lease_is_acquired_immediately() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        world.round(&mut a, 0);
        assert!(!world.round(&mut b, 1));
        assert_eq!(b.release(world.time(1)), None);
        world.lease = a.release(world.time(2));
        assert!(world.round(&mut b, 2));
    }

    #[test]
    fn deleted_lease_ends_leadership() {
        let mut world = World::new();
        let mut a = candidate("a");
        world.round(&mut a, 0);
        world.lease = None;
        assert!(matches!(world.observe(&mut a, 2), LeaseAction::Create(_)));
        assert_eq!(a.leads_until(world.at(2)), None);
    }

    #[test]
    fn refused_write_changes_nothing() {
        let mut world = World::new();
        let (mut a, mut b) = (candidate("a"), candidate("b"));
        assert!(matches!(world.observe(&mut a, 0), LeaseAction::Create(_)));
        world.round(&mut b, 0);
        assert_eq!(a.leads_until(world.at(0)), None);
        assert_eq!(world.observe(&mut a, 1), LeaseAction::Wait);
    }

    #[test]
    fn restarted_holder_must_renew_before_leading() {
        let mut world = World::new();
        world.round(&mut candidate("a"), 0);
        let mut again = candidate("a");
        assert!(matches!(world.observe(&mut again, 5), LeaseAction::Replace(_)));
        assert_eq!(again.leads_until(world.at(5)), None);
        assert!(world.round(&mut again, 5));
    }

    #[test]
    fn invalid_lease_duration_falls_back_to_default() {
        let mut world = World::new();
        for duration in [json!(null), json!(0), json!(-1), json!("15")] {
            let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": duration});
            world.lease = Some(Lease::of(json!({"spec": spec})));
            let mut a = candidate("a");
            assert_eq!((0..60).find(|second| world.round(&mut a, *second)), Some(15), "{duration}");
        }
    }
}
