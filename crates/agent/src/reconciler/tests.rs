//! Tests of the reconciler without a kernel, a clock or a file: each test performs the actions by hand, at instants of
//! its own.

use policy::{Attachment, AttachmentId};
use serde_json::json;
use tokio::sync::oneshot;

use super::fixture::{dependencies, object, pod, shop, source_event};
use super::*;
use crate::attachments::AttachmentFolder;
use crate::dns::answer::DnsAnswer;
use crate::dns::{CopiedAnswer, DEFAULT_RESOLVER};
use crate::enforcer::{Commit, EnforceResult, Trouble};
use crate::flows::ClockReading;
use crate::gate::{Outcome, PendingAdd};
use jiff::Timestamp;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RESYNC: Duration = Duration::from_secs(30);

/// No resync or check interferes with the test's own events.
const RARELY: Duration = Duration::from_secs(3600);

/// More actions than any iteration has.
const MOST_ACTIONS: usize = 32;

/// An event loop whose I/O are the values of its fields.
struct Harness {
    reconciler: Reconciler,
    statuses: watch::Receiver<Arc<AgentStatus>>,
    now: Instant,
    /// The attachments in the folder, or why it cannot be read.
    folder: Result<Vec<Attachment>, String>,
    /// The enforcer fails.
    fails: bool,
    /// How long an attempt to commit or verify takes.
    attempt_takes: Duration,
    /// The plugin's tables cannot be changed.
    release_fails: bool,
    /// The kernel has the rules of the last commit.
    committed: bool,
}

impl Harness {
    fn new(resync: Duration, check_interval: Option<Duration>, folder: Result<Vec<Attachment>, String>) -> Harness {
        let (now, layout) = (Instant::now(), Layout::for_table("ringfence").unwrap());
        let status = AgentStatus { node: "node-a".into(), ..AgentStatus::default() };
        let dependencies = dependencies(layout, resync, check_interval);
        let (reconciler, statuses) = Reconciler::new(status, dependencies, Arc::new(Metrics::new()), now);
        let mut harness = Harness {
            reconciler,
            statuses,
            now,
            folder,
            fails: false,
            attempt_takes: Duration::ZERO,
            release_fails: false,
            committed: false,
        };
        harness.read_attachments();
        harness.reconciler.record_examination(Some(vec![]));
        harness
    }

    /// A harness whose rules are in force, and without an outstanding examination or adoption.
    fn enforcing(resync: Duration, check_interval: Option<Duration>) -> Harness {
        let mut harness = Harness::new(resync, check_interval, Ok(vec![]));
        harness.apply(shop());
        assert_eq!(harness.iterate(), ["Commit", "Examine"]);
        assert_eq!(harness.complete_examination(), ["Examine"]);
        assert_eq!(harness.complete_examination(), ["ReleaseIsolated"]);
        assert_eq!(harness.iterate(), NOTHING);
        harness.now += SECOND;
        harness
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.reconciler.apply_source(source_event(changes, self.now), self.now);
    }

    /// Performs an iteration without an event. Returns the names of its actions.
    fn iterate(&mut self) -> Vec<String> {
        self.reconciler.begin_iteration(self.now, Timestamp::default());
        let mut actions = Vec::new();
        while let Some(action) = self.reconciler.next_action(self.now) {
            let text = format!("{action:?}");
            actions.push(text.split([' ', '(']).next().unwrap_or_default().to_owned());
            assert!(actions.len() < MOST_ACTIONS, "an iteration without end: {actions:?}");
            self.perform(action);
        }
        self.reconciler.publish(std::iter::empty(), None, self.now);
        actions
    }

    fn iterate_after(&mut self, pause: Duration) -> Vec<String> {
        self.now += pause;
        self.iterate()
    }

    /// Ends the running examination without a finding, and performs an iteration.
    fn complete_examination(&mut self) -> Vec<String> {
        self.reconciler.record_examination(Some(vec![]));
        self.iterate()
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::ReadAttachments => self.read_attachments(),
            Action::ReadOwnSubnets => self.reconciler.record_own_subnets(Ok(vec![]), self.now),
            Action::Commit => {
                let began = ClockReading { monotonic: self.now, wall: Timestamp::default() };
                let attempt = self.attempt(true);
                self.reconciler.record_commit(attempt, began, self.now);
            }
            Action::Verify => {
                let attempt = self.attempt(!self.committed);
                self.reconciler.record_verification(attempt, self.now);
            }
            Action::ReleaseIsolated => {
                let refused = || anyhow::anyhow!("the kernel refused");
                self.reconciler.record_release(if self.release_fails { Err(refused()) } else { Ok(false) });
            }
            Action::Compare(_) | Action::CopyRules(_) | Action::LookUpPod(_) => {}
            Action::Examine { .. } | Action::CheckTranslation | Action::SaveNames => {}
        }
    }

    fn read_attachments(&mut self) {
        let folder = self.folder.clone().map(|attachments| AttachmentFolder { attachments, ..Default::default() });
        self.reconciler.record_attachments(AttachmentReading { folder, interfaces: interfaces() }, self.now);
    }

    fn attempt(&mut self, commits: bool) -> CommitAttempt {
        self.now += self.attempt_takes;
        self.reconciler.translate();
        self.committed = !self.fails;
        let result = match (self.fails, commits) {
            (true, _) => Err(Trouble::Outrun),
            (false, false) => Ok(None),
            (false, true) => Ok(Some(EnforceResult {
                translation: self.reconciler.translator().translation(),
                left_out: vec![],
                commit: Some(Commit {
                    operations: 1,
                    weight: 1,
                    duration: self.attempt_takes,
                    repaired: None,
                    foreign_program: None,
                }),
            })),
        };
        CommitAttempt { result, policy_generation: 1, ended: Timestamp::default() }
    }

    /// Receives an ADD that its file confirms and that waits for ten seconds.
    fn add(&mut self, attachment: Attachment) -> oneshot::Receiver<Outcome> {
        self.add_confirmed_by(attachment, Ok(interfaces()))
    }

    fn add_confirmed_by(
        &mut self,
        attachment: Attachment,
        confirmed: Result<InterfaceReading, String>,
    ) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        let (since, deadline) = (self.now, self.now + 10 * SECOND);
        self.reconciler.add(PendingAdd { attachment, since, deadline, reply, unknown: None }, confirmed, self.now);
        answer
    }

    fn unready(&self) -> Option<String> {
        self.statuses.borrow().unready()
    }
}

const NOTHING: [&str; 0] = [];

fn interfaces() -> InterfaceReading {
    InterfaceReading { redirecting: Ok(BTreeSet::new()), bridge_ports: Ok(BTreeSet::new()) }
}

/// An attachment of a pod to a bridge.
fn attachment(pod: &str, address: &str) -> Attachment {
    Attachment {
        id: AttachmentId { container: pod.into(), interface: "eth0".into() },
        pod: ObjectName::new("shop", pod),
        uid: None,
        addresses: vec![address.parse().unwrap()],
        host_interface: Some("veth1".parse().unwrap()),
        bridged: true,
        input_interface: None,
        hardware_address: None,
        link_local: vec![],
        since: 1,
    }
}

fn web_2() -> Change {
    Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))
}

fn node() -> Change {
    let node = json!({
        "metadata": {"name": "node-a"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    Change::Replace(Kind::Node, vec![object(Kind::Node, &node)])
}

/// Allows all pods to connect to example.org only.
fn cluster_policy() -> Change {
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "names"},
        "spec": {
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [
                {"action": "Accept", "to": [{"domainNames": ["example.org"]}]},
                {"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]},
            ],
        },
    });
    Change::Set(object(Kind::ClusterNetworkPolicy, &policy))
}

#[test]
fn commits_are_debounced_after_the_first() {
    let mut harness = Harness::new(RARELY, None, Ok(vec![]));
    assert_eq!(harness.iterate(), NOTHING, "the initial sync is not complete");
    harness.apply(shop());
    harness.attempt_takes = 2 * MILLISECOND;
    assert_eq!(harness.iterate(), ["Commit", "Examine"], "the first commit is immediate");
    harness.apply([web_2()]);
    assert_eq!(harness.iterate(), NOTHING);
    let wake = harness.reconciler.wake_at(harness.now);
    assert_eq!(wake, harness.now + 8 * MILLISECOND, "four times the duration of the last attempt");
    assert_eq!(harness.iterate_after(7 * MILLISECOND), NOTHING);
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit"]);
}

#[test]
fn add_waits_for_commit_and_examination() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.apply([web_2()]);
    assert_eq!(harness.iterate(), ["Commit"]);
    let mut answer = harness.add(attachment("db", "10.1.0.1"));
    assert_eq!(harness.iterate(), ["Examine"], "the commit is debounced");
    assert!(answer.try_recv().is_err(), "the rules in force do not cover the attachment yet");
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit"]);
    assert!(answer.try_recv().is_err(), "the examination that the bridge requires has not completed");
    assert_eq!(harness.complete_examination(), NOTHING);
    assert_eq!(answer.try_recv(), Ok(Outcome::Enforced));
    // Without a bridge, only the commit is outstanding.
    let mut answer = harness.add(Attachment { bridged: false, ..attachment("db", "10.1.0.1") });
    assert_eq!(harness.iterate(), NOTHING);
    assert!(answer.try_recv().is_err(), "the commit is debounced");
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit"]);
    assert_eq!(answer.try_recv(), Ok(Outcome::Enforced));
}

#[test]
fn unknown_pod_is_looked_up_until_its_deadline() {
    let mut harness = Harness::enforcing(RARELY, None);
    let mut isolated = harness.add(attachment("new", "10.1.0.2"));
    assert_eq!(harness.iterate(), ["LookUpPod", "Examine", "Commit"]);
    assert_eq!(harness.complete_examination(), NOTHING);
    harness.reconciler.record_pod_lookup(&ObjectName::new("shop", "new"), Err("not found (404)".into()), harness.now);
    assert_eq!(harness.reconciler.wake_at(harness.now), harness.now + 10 * SECOND);
    assert_eq!(harness.iterate_after(10 * SECOND), NOTHING);
    assert_eq!(isolated.try_recv(), Ok(Outcome::Isolated("pod shop/new not found: not found (404)".into())));

    let mut enforced = harness.add(attachment("next", "10.1.0.3"));
    assert_eq!(harness.iterate(), ["LookUpPod", "Examine", "Commit"]);
    harness.complete_examination();
    let next = pod("next", "db", "node-a", "10.1.0.3");
    harness.reconciler.record_pod_lookup(&ObjectName::new("shop", "next"), Ok(next), harness.now + MILLISECOND);
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit"]);
    assert_eq!(enforced.try_recv(), Ok(Outcome::Enforced));
}

#[test]
fn add_without_its_file_is_refused() {
    let mut harness = Harness::enforcing(RARELY, None);
    let mut answer = harness.add_confirmed_by(attachment("db", "10.1.0.1"), Err("no file".into()));
    assert_eq!(answer.try_recv(), Ok(Outcome::Failed("no file".into())));
    assert_eq!(harness.reconciler.state().attachments().count(), 0);
    assert_eq!(harness.iterate(), ["Examine"], "the plugin may isolate the pod now");
    assert_eq!(harness.complete_examination(), ["ReleaseIsolated"]);
}

#[test]
fn failed_commit_is_retried_with_backoff() {
    let mut harness = Harness::new(RARELY, None, Ok(vec![]));
    harness.apply(shop());
    harness.fails = true;
    let mut answer = harness.add(attachment("db", "10.1.0.1"));
    assert_eq!(harness.iterate(), ["Examine", "Commit"]);
    for backoff in [250, 500, 1000] {
        let trouble = harness.unready().unwrap();
        assert!(trouble.contains("transactions in a row were outdated"), "{trouble}");
        harness.iterate_after((backoff - 1) * MILLISECOND);
        assert_eq!(harness.iterate_after(MILLISECOND), ["Verify"], "after {backoff} ms");
    }
    assert!(answer.try_recv().is_err(), "the rules are not in force");
    harness.fails = false;
    assert_eq!(harness.iterate_after(2 * SECOND), ["Verify"]);
    assert_eq!(harness.unready(), None);
    harness.complete_examination();
    harness.complete_examination();
    assert_eq!(answer.try_recv(), Ok(Outcome::Enforced));
}

/// Rules without the attachments would replace those of an earlier agent that check the pods' interfaces.
#[test]
fn unreadable_attachment_folder_delays_first_commit() {
    let mut harness = Harness::new(RESYNC, None, Err("not a folder".into()));
    harness.apply(shop());
    assert_eq!(harness.iterate(), NOTHING);
    let reason = harness.unready().unwrap();
    assert!(reason.contains("until the attachments can be read: not a folder"), "{reason}");
    harness.folder = Ok(vec![]);
    assert_eq!(harness.iterate_after(RESYNC), ["ReadAttachments", "ReadOwnSubnets", "Examine", "Verify"]);
    assert_eq!(harness.unready(), None);
    // A later failure does not remove the known attachments.
    harness.folder = Err("not a folder".into());
    harness.apply([web_2()]);
    assert!(harness.iterate_after(RESYNC).contains(&"Commit".to_owned()));
}

#[test]
fn cluster_policy_waits_for_list_of_nodes() {
    let mut harness = Harness::new(RARELY, None, Ok(vec![]));
    let problem = cluster::Problem { origin: "nodes watch".into(), message: "forbidden".into() };
    harness.reconciler.apply_source(SourceEvent::Problems(vec![problem]), harness.now);
    harness.apply(shop().into_iter().chain([cluster_policy()]));
    assert_eq!(harness.iterate(), NOTHING);
    let reason = harness.unready().unwrap();
    assert!(reason.contains("until the nodes are listed") && reason.ends_with(": forbidden"), "{reason}");
    harness.apply([node()]);
    assert_eq!(harness.iterate(), ["Commit", "Examine"]);
    assert_eq!(harness.unready(), None);
}

#[test]
fn expired_name_is_committed_in_same_iteration() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.apply([node(), cluster_policy()]);
    assert_eq!(harness.iterate(), ["Commit"]);
    let elements = harness.statuses.borrow().elements;
    harness.now += SECOND;
    let answer = DnsAnswer { name: "example.org".into(), addresses: vec![("198.51.100.1".parse().unwrap(), 60)] };
    let copied = CopiedAnswer { resolver: DEFAULT_RESOLVER.parse().unwrap(), answer, at: harness.now };
    harness.reconciler.learn(vec![copied], harness.now);
    assert_eq!(harness.iterate(), ["Commit"]);
    assert_eq!(harness.statuses.borrow().elements, elements + 1);
    assert_eq!(harness.reconciler.wake_at(harness.now), harness.now + SECOND);
    assert_eq!(harness.iterate_after(SECOND), ["SaveNames"]);
    assert_eq!(harness.iterate_after(58 * SECOND), NOTHING);
    assert_eq!(harness.reconciler.learned_names().names(), 1);
    assert_eq!(harness.iterate_after(SECOND), ["Commit"]);
    assert_eq!(harness.statuses.borrow().elements, elements);
    assert_eq!(harness.reconciler.learned_names().names(), 0);
    assert_eq!(harness.iterate_after(SECOND), ["SaveNames"]);
}

#[test]
fn name_without_policy_is_committed_in_same_iteration() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.apply([node(), cluster_policy()]);
    harness.iterate();
    let answer = DnsAnswer { name: "example.org".into(), addresses: vec![("198.51.100.1".parse().unwrap(), 60)] };
    let copied = CopiedAnswer { resolver: DEFAULT_RESOLVER.parse().unwrap(), answer, at: harness.now };
    harness.reconciler.learn(vec![copied], harness.now);
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit"]);
    harness.now += MILLISECOND;
    harness.apply([Change::Remove(Kind::ClusterNetworkPolicy, ObjectName::new("", "names"))]);
    assert_eq!(harness.iterate(), ["Commit"]);
    assert_eq!(harness.reconciler.learned_names().names(), 0);
}

#[test]
fn foreign_commits_are_verified_ten_times_per_second() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.reconciler.record_foreign_commit("nft", false, harness.now);
    assert_eq!(harness.iterate(), NOTHING, "the commit has not touched the tables");
    let mut verifications = 0;
    for _ in 0..1000 {
        harness.reconciler.record_foreign_commit("nft", true, harness.now);
        verifications += harness.iterate().iter().filter(|action| *action == "Verify").count();
        harness.now += MILLISECOND;
    }
    assert_eq!(verifications, 10);
}

#[test]
fn lost_notifications_require_read_and_verification() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.reconciler.record_lost_notifications(harness.now);
    assert_eq!(harness.iterate(), ["ReadAttachments", "Verify", "Examine"]);
    assert_eq!(harness.complete_examination(), ["ReleaseIsolated"]);
}

#[test]
fn verification_follows_pending_commit() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.apply([web_2()]);
    assert_eq!(harness.iterate(), ["Commit"]);
    harness.apply([Change::Remove(Kind::Pod, ObjectName::new("shop", "web-2"))]);
    harness.reconciler.record_foreign_commit("nft", true, harness.now);
    assert_eq!(harness.iterate(), ["Commit", "Verify"], "the commit does not wait for its debounce delay");
}

#[test]
fn isolated_pods_are_adopted_after_examination() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.folder = Ok(vec![attachment("db", "10.1.0.1")]);
    harness.apply([web_2()]);
    assert_eq!(harness.iterate(), ["Commit"]);
    harness.reconciler.record_foreign_commit(PLUGIN, false, harness.now);
    assert_eq!(harness.iterate(), ["ReadAttachments"], "the commit of the attachment is pending");
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit", "Examine"]);
    harness.apply([Change::Remove(Kind::Pod, ObjectName::new("shop", "web-2"))]);
    assert_eq!(harness.complete_examination(), NOTHING, "another commit is pending");
    assert_eq!(harness.iterate_after(MILLISECOND), ["Commit", "ReleaseIsolated"]);
}

#[test]
fn failed_adoption_is_retried_in_later_iteration() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.release_fails = true;
    harness.reconciler.record_foreign_commit(PLUGIN, false, harness.now);
    assert_eq!(harness.iterate(), ["ReadAttachments", "Examine"]);
    assert_eq!(harness.complete_examination(), ["ReleaseIsolated"]);
    harness.release_fails = false;
    assert_eq!(harness.iterate(), ["Examine"]);
    assert_eq!(harness.complete_examination(), ["ReleaseIsolated"]);
    assert_eq!(harness.iterate(), NOTHING);
}

#[test]
fn findings_refuse_adds_and_adoptions() {
    let mut harness = Harness::enforcing(RARELY, None);
    harness.reconciler.record_foreign_commit(PLUGIN, false, harness.now);
    assert_eq!(harness.iterate(), ["ReadAttachments", "Examine"]);
    harness.reconciler.record_examination(Some(vec!["packets bypass the rules".into()]));
    assert_eq!(harness.iterate(), NOTHING);
    let (reply, mut answer) = oneshot::channel();
    harness.reconciler.report_add_obstacle(reply);
    assert_eq!(answer.try_recv().unwrap().as_deref(), Some("packets bypass the rules"));
}

#[test]
fn resync_reads_attachments_commits_and_verifies() {
    let mut harness = Harness::enforcing(RESYNC, None);
    harness.folder = Ok(vec![attachment("db", "10.1.0.1")]);
    let actions = harness.iterate_after(RESYNC);
    assert_eq!(actions, ["ReadAttachments", "ReadOwnSubnets", "Examine", "Commit", "Verify"]);
    assert_eq!(harness.reconciler.state().attachments().count(), 1);
    assert_eq!(harness.complete_examination(), NOTHING);
}

#[test]
fn slow_actions_do_not_extend_iteration() {
    let mut harness = Harness::enforcing(RESYNC, None);
    harness.attempt_takes = 2 * RESYNC;
    let actions = harness.iterate_after(RESYNC);
    assert_eq!(actions, ["ReadAttachments", "ReadOwnSubnets", "Examine", "Verify"]);
    assert!(harness.reconciler.wake_at(harness.now) <= harness.now, "the next resync is already due");
}

#[test]
fn translation_difference_is_committed_in_same_iteration() {
    let mut harness = Harness::enforcing(RARELY, Some(60 * SECOND));
    assert_eq!(harness.iterate_after(43 * SECOND), NOTHING);
    assert_eq!(harness.iterate_after(31 * SECOND), ["CheckTranslation"], "at the latest after 75 s");
    assert_eq!(harness.iterate_after(80 * SECOND), NOTHING, "one check runs at a time");
    harness.reconciler.record_check(Some(vec!["add element".into()]), harness.now);
    let actions = harness.iterate();
    assert_eq!(actions.first().map(String::as_str), Some("Commit"), "{actions:?}");
    let notes = harness.statuses.borrow().notes();
    assert!(notes.len() == 1 && notes[0].ends_with(": add element"), "{notes:?}");
}
