//! The scenes of the demo in order.

mod tables;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;

use super::feed_reader::{Delta, FeedReader};
use super::provider::{Provider, ProviderOutput};
use crate::demo::screen::{BAD, FAINT, GOOD, STRONG, Screen, millis};
use tables::{Addresses, EdgeDelta, IdentityDelta, Lines};

/// Deadline for a change to reach every subscriber.
const WITHIN: Duration = Duration::from_secs(1);

/// The pod that gets another address.
const MANIFEST: &str = "pods.yaml";
const BEFORE: &str = "10.1.0.2";
const AFTER: &str = "10.1.0.22";

const POLICY_FILE: &str = "let-debug-in.yaml";
const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: let-debug-in, namespace: data}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ops}}
      podSelector: {matchLabels: {app: debug}}
    ports: [{port: 5432}]
";
const NEW_EDGE: &str = "E ops/debug > data/db : 5432";

/// The scenes before there are subscribers.
pub(super) struct Scenes<'a> {
    screen: &'a Screen,
    provider: &'a Provider,
    faults: Vec<String>,
}

/// The scenes with subscribers, and their tables.
pub(super) struct FollowedScenes<'a> {
    scenes: Scenes<'a>,
    identities: FeedReader,
    addresses: Addresses,
    edges: FeedReader,
    lines: Lines,
}

impl<'a> Scenes<'a> {
    pub(super) fn new(screen: &'a Screen, provider: &'a Provider) -> Scenes<'a> {
        Scenes { screen, provider, faults: Vec::new() }
    }

    pub(super) fn baselines(&mut self) -> anyhow::Result<()> {
        for feed in ["identity", "policy-edges"] {
            let version: Value = serde_json::from_str(&self.provider.get(&format!("/{feed}/version"))?)?;
            let text = |key: &str| version[key].to_string().trim_matches('"').to_owned();
            self.screen.line(format_args!(
                "   {STRONG}{feed:13}{STRONG:#}{}: {} entries, {} bytes, as of delta {}",
                text("version"),
                text("count"),
                text("bytes"),
                text("seq")
            ));
        }
        Ok(())
    }

    /// Looks up two known addresses, and an unknown one.
    pub(super) fn lookups(&mut self) -> anyhow::Result<()> {
        self.run_verb(&["lookup", BEFORE], 0, "shop/web")?;
        self.run_verb(&["lookup", "fd00:2::5"], 0, "data/db")?;
        self.run_verb(&["lookup", "203.0.113.5"], 1, "not found")
    }

    /// Adds subscribers with their tables.
    pub(super) fn followed_by(self, identities: FeedReader, edges: FeedReader) -> anyhow::Result<FollowedScenes<'a>> {
        let addresses = Addresses::of(&identities.baseline)?;
        let lines = Lines::of(&edges.baseline)?;
        for (feed, followed, has) in [
            ("identity", &identities, format!("{} addresses", addresses.len())),
            ("policy-edges", &edges, format!("{} lines", lines.len())),
        ] {
            self.screen.line(format_args!(
                "   {FAINT}GET /{feed}/deltas{FAINT:#} is open, {FAINT}/{feed}/download{FAINT:#} is read: {has}, as of {}",
                followed.head.position
            ));
        }
        Ok(FollowedScenes { scenes: self, identities, addresses, edges, lines })
    }

    /// Runs a subcommand, and prints it with its output.
    fn run_verb(&mut self, verb: &[&str], code: i32, mentions: &str) -> anyhow::Result<()> {
        let ProviderOutput { code: is, text } = self.provider.run_verb(verb)?;
        let line = verb.join(" ");
        self.screen.line(format_args!("   {FAINT}$ ringfence-context {line}{FAINT:#}"));
        text.lines().for_each(|line| self.screen.line(format_args!("     {line}")));
        if is != Some(code) || !text.contains(mentions) {
            self.faults.push(format!("`{line}` ended with {is:?} instead of {code}, or does not say {mentions:?}"));
        }
        Ok(())
    }

    /// Prints the latency of a change.
    fn arrived(&mut self, what: &str, delta: &Delta, took: Duration) {
        let (style, verdict) = if took <= WITHIN { (GOOD, "within") } else { (BAD, "NOT within") };
        self.screen.line(format_args!(
            "   {STRONG}{}{STRONG:#} later, {style}{verdict} a second{style:#}, came delta {}:",
            millis(took),
            delta.position.seq
        ));
        self.screen.line(format_args!("     {}", delta.json));
        if took > WITHIN {
            self.faults.push(format!("{what}: the delta came after {}", millis(took)));
        }
    }
}

impl FollowedScenes<'_> {
    pub(super) fn a_pod_moves(&mut self) -> anyhow::Result<()> {
        let file = self.scenes.provider.manifests().join(MANIFEST);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let moved = text.replacen(&format!("{{ip: {BEFORE}}}"), &format!("{{ip: {AFTER}}}"), 1);
        anyhow::ensure!(moved != text, "no pod of {} has the address {BEFORE}", file.display());
        self.scenes.screen.line(format_args!("   In {MANIFEST}, shop/web-1 gets {AFTER} instead of {BEFORE}."));
        let written = Instant::now();
        replace(&file, &moved)?;
        let delta = self.identities.delta()?;
        self.scenes.arrived("a pod moves", &delta, written.elapsed());
        let said: IdentityDelta = serde_json::from_str(&delta.json)?;
        if !said.is_move(BEFORE, AFTER, "shop/web") {
            self.scenes.faults.push(format!("a pod moves: the delta is {}", delta.json));
        }
        self.addresses.apply(&said);
        self.scenes.run_verb(&["lookup", AFTER], 0, "shop/web")?;
        self.scenes.run_verb(&["lookup", BEFORE], 1, "not found")?;
        self.scenes
            .screen
            .line("   Its identity is as before, and so are the declared edges: they are about workloads.");
        Ok(())
    }

    pub(super) fn a_policy_comes_and_goes(&mut self) -> anyhow::Result<()> {
        let file = self.scenes.provider.manifests().join(POLICY_FILE);
        self.scenes.run_verb(&["verdict", "ops/debug", "data/db", "5432"], 1, "VIOLATION")?;
        self.scenes.screen.line("");
        POLICY.lines().for_each(|line| self.scenes.screen.line(format_args!("     {FAINT}|{FAINT:#} {line}")));
        self.scenes.screen.line(format_args!("   {STRONG}Written{STRONG:#} to {POLICY_FILE}."));
        let written = Instant::now();
        replace(&file, POLICY)?;
        self.edges_change("a policy comes", written, &[NEW_EDGE], &[])?;
        self.scenes.run_verb(&["verdict", "ops/debug", "data/db", "5432"], 0, "DECLARED")?;
        self.scenes.screen.line(format_args!("\n   {STRONG}Removed{STRONG:#} again."));
        let removed = Instant::now();
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        self.edges_change("a policy goes", removed, &[], &[NEW_EDGE])
    }

    fn edges_change(&mut self, what: &str, since: Instant, adds: &[&str], removes: &[&str]) -> anyhow::Result<()> {
        let delta = self.edges.delta()?;
        self.scenes.arrived(what, &delta, since.elapsed());
        let said: EdgeDelta = serde_json::from_str(&delta.json)?;
        if said.adds != adds || said.removes != removes {
            self.scenes.faults.push(format!("{what}: the delta is {}", delta.json));
        }
        self.lines.apply(&said);
        Ok(())
    }

    /// Verdicts by name, and by the addresses of a packet.
    pub(super) fn verdicts(&mut self) -> anyhow::Result<()> {
        self.scenes.run_verb(&["verdict", "shop/web", "shop/api", "9090"], 0, "DECLARED")?;
        self.scenes.run_verb(&["verdict", AFTER, "10.1.0.5", "5432"], 1, "G data/db")?;
        self.scenes.run_verb(&["verdict", "ops/prometheus", "ops/debug", "8080"], 0, "NOT GOVERNED")?;
        self.scenes.screen.line(
            "   The second is a violation: a policy isolates data/db, and none of its rules names shop/web.\n   The last \
             is judged by no policy: nothing isolates the pods of ops.",
        );
        Ok(())
    }

    /// Compares the followed tables with those of a fresh start.
    pub(super) fn fresh_start(&mut self) -> anyhow::Result<()> {
        let ProviderOutput { code, text } = self.scenes.provider.build()?;
        anyhow::ensure!(code == Some(0), "`ringfence-context build`: {text}");
        self.scenes
            .screen
            .line(format_args!("   {FAINT}$ ringfence-context build --manifests shop --out out{FAINT:#}"));
        text.lines().for_each(|line| self.scenes.screen.line(format_args!("     {line}")));
        let out = self.scenes.provider.out();
        let addresses = Addresses::of(&newest(&out, "identity")?)?;
        let lines = Lines::of(&newest(&out, "policy-edges")?)?;
        for (feed, equal) in [("identity", addresses == self.addresses), ("policy-edges", lines == self.lines)] {
            let served: Value = serde_json::from_str(&self.scenes.provider.get(&format!("/{feed}/version"))?)?;
            let version = served["version"].as_str().context("a version is text")?;
            let (style, verdict) = if equal && text.contains(version) { (GOOD, "is") } else { (BAD, "IS NOT") };
            self.scenes.screen.line(format_args!(
                "   {STRONG}{feed:13}{STRONG:#}baseline and deltas together {style}{verdict}{style:#} what a fresh start gives; served is {version}"
            ));
            if !equal || !text.contains(version) {
                self.scenes.faults.push(format!("{feed}: what was followed differs from a fresh start"));
            }
        }
        Ok(())
    }

    pub(super) fn into_faults(self) -> Vec<String> {
        self.scenes.faults
    }
}

/// Replaces a file atomically, as editors do.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let hidden = file.with_extension("new");
    let written = fs::write(&hidden, text).and_then(|()| fs::rename(&hidden, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The newest baseline in a folder that `build` wrote.
fn newest(out: &Path, feed: &str) -> anyhow::Result<Vec<u8>> {
    let folder = out.join(feed);
    let latest: Value = serde_json::from_slice(&fs::read(folder.join("latest.json"))?)?;
    let object = latest["objects"][0]["object"].as_str().context("latest.json names its objects")?;
    Ok(fs::read(folder.join(object))?)
}
