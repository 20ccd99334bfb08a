//! The scenes of the demo in order.

use std::time::{Duration, Instant};

use policy::Kind;

use crate::demo::screen::{BAD, FAINT, GOOD, STRONG, Screen, millis};
use kit::agent_process::{AgentProcess, ProgramExit, ended, ringfence};
use kit::fake_api::FakeApi;
use kit::provider_process::Provider;
use kit::two_clusters::{DB, EastPod, PLACES, TwoClusters};

/// Deadline for a change of the other cluster to reach the kernel here.
const WITHIN: Duration = Duration::from_secs(1);

/// An unavailable provider is retried with a backoff of up to half a minute.
const AT_LAST: Duration = Duration::from_secs(60);

/// The clusters and processes. `None` once stopped.
pub(super) struct Scenes<'a> {
    screen: &'a Screen,
    clusters: &'a TwoClusters,
    east: Option<FakeApi>,
    provider: Option<Provider>,
    agent: Option<AgentProcess<'a>>,
    /// The pods of `east`.
    pods: Vec<EastPod>,
    faults: Vec<String>,
}

/// The lab with both clusters.
pub(super) fn two_clusters(screen: &Screen) -> TwoClusters {
    screen.heading(1, "Two clusters");
    let clusters = TwoClusters::new();
    let [db_4, db_6] = DB;
    screen.line(format_args!("   {STRONG}home{STRONG:#}  shop/db is at {db_4} and {db_6}, behind this policy:"));
    for line in [
        "- from:",
        "  - namespaceSelector:",
        "      matchLabels: {semaphore.uw.systems/cluster: east, semaphore.uw.systems/namespace: shop}",
        "    podSelector:",
        "      matchLabels: {semaphore.uw.systems/name: web}",
    ] {
        screen.line(format_args!("           {FAINT}{line}{FAINT:#}"));
    }
    clusters
}

impl<'a> Scenes<'a> {
    pub(super) fn begin(screen: &'a Screen, clusters: &'a TwoClusters) -> Scenes<'a> {
        let pods = vec![EastPod::web("web-0", 0), EastPod { offered_as: None, ..EastPod::web("batch", 1) }];
        for pod in &pods {
            let label = pod
                .offered_as
                .map_or("has no such label".into(), |name| format!("has the label semaphore.uw.systems/name={name}"));
            let cluster = if pod.place == 0 { "east" } else { "" };
            screen.line(format_args!(
                "   {STRONG}{cluster:4}{STRONG:#}  shop/{} is at {} and {}; it {label}",
                pod.name, PLACES[pod.place][0], PLACES[pod.place][1]
            ));
        }
        let mut scenes = Scenes { screen, clusters, east: None, provider: None, agent: None, pods, faults: Vec::new() };
        scenes.east_starts();
        scenes.provider_starts();
        scenes.agent_starts();
        screen.line(format_args!("   {FAINT}$ ringfence-context serve --remote-clusters remote.yaml ...{FAINT:#}"));
        screen.line(format_args!(
            "   {FAINT}$ ringfence agent --node-name home-1 --context-url http://127.0.0.1:9471 ...{FAINT:#}"
        ));
        scenes.until_in_kernel(&[0]);
        scenes.connections("at the beginning", &[0]);
        scenes
    }

    pub(super) fn a_pod_comes_and_goes(&mut self) {
        let web = EastPod::web("web-1", 2);
        self.change("shop/web-1 comes", web.clone(), &[0, 2]);
        self.connections("with web-1", &[0, 2]);
        self.change("shop/web-1 is now offered as 'api'", EastPod { offered_as: Some("api"), ..web.clone() }, &[0]);
        self.change("shop/web-1 is offered as 'web' again", web.clone(), &[0, 2]);
        self.change("shop/web-1 has finished", EastPod { phase: "Succeeded", ..web }, &[0]);
        self.connections("without web-1", &[0]);
    }

    pub(super) fn explained(&mut self) {
        self.verb(&["explain", "10.2.0.10", "shop/db", "5432"], 0, "remote east/shop/web");
        self.verb(&["explain", "10.2.0.11", "shop/db", "5432"], 1, "denied");
    }

    pub(super) fn outage(&mut self) {
        self.until_fresh(true);
        drop(self.east.take());
        self.until_fresh(false);
        self.screen.line("   The API server of east does not answer any more.");
        self.connections("without east", &[0]);
        if let Some(provider) = self.provider.take() {
            provider.kill();
        }
        self.provider_starts();
        self.screen.line("   The provider was killed and has started again, and knows what it knew.");
        self.connections("with a new provider", &[0]);
        drop(self.agent.take());
        self.agent_starts();
        self.screen.line("   The agent was killed and has started again, and knows what it knew.");
        self.connections("with a new agent", &[0]);
        self.verb(&["status"], 0, "east: 1 set, 2 addresses, stale for");
    }

    pub(super) fn recovery(&mut self) {
        self.pods = vec![EastPod::web("web-3", 3), EastPod { offered_as: None, ..EastPod::web("batch", 1) }];
        self.east_starts();
        let back = Instant::now();
        self.until_in_kernel(&[3]);
        self.screen.line(format_args!(
            "   East is back. shop/web-0 was deleted meanwhile, and shop/web-3 is new: known {} later.",
            millis(back.elapsed())
        ));
        self.connections("with east back", &[3]);
        self.until_fresh(true);
        self.verb(&["status"], 0, "east: 1 set, 2 addresses, fresh");
    }

    pub(super) fn into_faults(self) -> Vec<String> {
        self.faults
    }

    fn east_starts(&mut self) {
        self.east = Some(self.clusters.east(&self.pods));
    }

    fn provider_starts(&mut self) {
        let mut provider = self.clusters.provider(&[]);
        provider.until_ready();
        self.provider = Some(provider);
    }

    fn agent_starts(&mut self) {
        let mut agent = self.clusters.agent(&[]);
        agent.until_ready();
        self.agent = Some(agent);
    }

    /// Changes a pod of east, and waits until the kernel of home has the addresses of these places.
    fn change(&mut self, what: &str, pod: EastPod, places: &[usize]) {
        let Some(east) = &self.east else { return self.faults.push(format!("{what}: east is away")) };
        let changed = Instant::now();
        east.set(Kind::Pod, pod.object());
        self.until_in_kernel(places);
        let took = changed.elapsed();
        let (style, verdict) = if took <= WITHIN { (GOOD, "within") } else { (BAD, "NOT within") };
        self.screen.line(format_args!(
            "   {what}: in the kernel {STRONG}{}{STRONG:#} later, {style}{verdict} a second{style:#}",
            millis(took)
        ));
        if took > WITHIN {
            self.faults.push(format!("{what}: it took {}", millis(took)));
        }
    }

    fn until_in_kernel(&mut self, places: &[usize]) {
        let wanted: Vec<&str> = places.iter().flat_map(|place| PLACES[*place]).collect();
        let clusters = self.clusters;
        if let Some(agent) = &mut self.agent {
            agent.until_within(AT_LAST, "the kernel has what it should", |_| {
                (clusters.in_kernel() == wanted).then_some(())
            });
        }
    }

    fn until_fresh(&mut self, fresh: bool) {
        let clusters = self.clusters;
        if let Some(agent) = &mut self.agent {
            agent.until_within(AT_LAST, "the agent says how old it is", |_| {
                (clusters.agent_status()["remote"]["clusters"][0]["fresh"] == fresh).then_some(())
            });
        }
    }

    /// Tries a connection from every place in both families, and prints which succeeded.
    fn connections(&mut self, when: &str, expected: &[usize]) {
        let admitted = self.clusters.admitted();
        let name = |(place, [v4, v6]): (usize, &[bool; 2])| {
            let is_right = *v4 == expected.contains(&place) && v4 == v6;
            let style = if is_right { GOOD } else { BAD };
            let word = match (v4, v6) {
                (true, true) => "reaches db",
                (false, false) => "is denied",
                (true, false) | (false, true) => "is admitted in one family only",
            };
            (is_right, format!("{} {style}{word}{style:#}", PLACES[place][0]))
        };
        let shown: Vec<(bool, String)> = admitted.iter().enumerate().map(name).collect();
        let texts: Vec<&str> = shown.iter().map(|(_, text)| text.as_str()).collect();
        self.screen.line(format_args!("     {}", texts.join(", ")));
        for (_, text) in shown.iter().filter(|(is_right, _)| !is_right) {
            self.faults.push(format!("{when}: {text}"));
        }
    }

    /// Runs a subcommand of this agent, and prints what it reports about other clusters.
    fn verb(&mut self, words: &[&str], code: i32, mentions: &str) {
        let mut command = ringfence();
        command.args(words).arg("--run-dir").arg(self.clusters.run_dir());
        let ProgramExit { code: is, stdout, stderr } = ended(&mut command);
        let line = words.join(" ");
        self.screen.line(format_args!("   {FAINT}$ ringfence {line}{FAINT:#}"));
        let is_of_interest = |line: &&str| words[0] != "status" || line.contains("remote") || line.contains("east:");
        stdout.lines().chain(stderr.lines()).filter(is_of_interest).for_each(|line| {
            self.screen.line(format_args!("     {line}"));
        });
        if is != Some(code) || !stdout.contains(mentions) {
            self.faults.push(format!("`{line}` ended with {is:?} instead of {code}, or does not say {mentions:?}"));
        }
    }
}
