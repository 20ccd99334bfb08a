//! `make test-cluster`: the highest rung of the test ladder, a real Kubernetes cluster on this machine.
//!
//! The steps run in order on one cluster of `scripts/cluster`, and later ones build on earlier ones: the first failure
//! ends the run. The pods run this program too (`pod.rs`).

mod cluster;
mod images;
mod leaks;
mod lifecycle;
mod objects;
mod pod;
mod policies;
mod provider;
mod reports;
mod upstream;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use cluster::Cluster;
use images::Images;

/// Parameters of every step.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) images: Images,
    /// Number of pods that each test of pod starts creates, in a namespace that denies everything.
    pub(crate) pod_starts: usize,
}

type Step = fn(&Stage) -> anyhow::Result<String>;

const STEPS: [(&str, Step); 12] = [
    ("pods_reach_each_other_before_install", policies::pods_reach_each_other_before_install),
    ("install_yaml_rolls_out_on_every_node", lifecycle::install_yaml_rolls_out_on_every_node),
    ("policy_holds_for_pods_services_and_node_ports", policies::policy_holds_for_pods_services_and_node_ports),
    ("drops_status_and_doctor_match_the_cluster", reports::drops_status_and_doctor_match_the_cluster),
    ("starting_pods_leak_nothing", leaks::starting_pods_leak_nothing),
    ("starting_pods_leak_nothing_during_rollout", leaks::starting_pods_leak_nothing_during_rollout),
    ("starting_pods_leak_nothing_when_agents_die", leaks::starting_pods_leak_nothing_when_agents_die),
    ("restarted_pods_leak_nothing_after_reboot", leaks::restarted_pods_leak_nothing_after_reboot),
    ("provider_admits_pods_of_another_cluster", provider::provider_admits_pods_of_another_cluster),
    ("upgrade_keeps_denials_and_allowed_flows", lifecycle::upgrade_keeps_denials_and_allowed_flows),
    ("upstream_network_policy_suite_passes", upstream::upstream_network_policy_suite_passes),
    ("uninstall_leaves_nothing_and_pods_start", lifecycle::uninstall_leaves_nothing_and_pods_start),
];

const HELP: &str = "\
Tests on a real Kubernetes cluster of two nodes on this machine. Run as root, from 'make test-cluster'.

usage: test-cluster [--keep] [--reuse] [STEP...]      all steps, or those whose names contain one of these texts

environment:
  KUBE_BIN, ETCD, KUBE_PROXY_MODE, CLUSTER_DIR, CNI_PLUGINS   as for scripts/cluster
  IMAGE_PROFILE      release (default) or dev: profile of the tested programs
  PREVIOUS_REVISION  commit from which the upgrade starts (default: HEAD~1)
  POD_STARTS         pods that start in each test of pod starts (default: 100)
  E2E_TEST           the Kubernetes test binary e2e.test; without it the upstream suite is skipped
  AGNHOST            docker archive of the agnhost image for the upstream suite

--keep leaves the cluster up, and --reuse runs on one that was left up; 'scripts/cluster down' removes it.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The program of a test pod comes before all other work: a sender has to send from the start of its process.
    let ended = match arguments.split_first() {
        Some((first, rest)) if first == "pod" => pod::run(rest),
        _ if arguments.iter().any(|word| word == "--help") => {
            print!("{HELP}");
            Ok(ExitCode::SUCCESS)
        }
        _ => run(&arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("test-cluster: {error:#}");
        ExitCode::from(2)
    })
}

fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let (options, filters): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| !["--keep", "--reuse"].contains(option)) {
        bail!("unknown option '{unknown}' (see --help)");
    }
    let (keep, reuse) = (options.contains(&"--keep"), options.contains(&"--reuse"));
    let chosen: Vec<_> = STEPS
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|filter| name.contains(filter)))
        .collect();

    let images = Images::in_work_folder();
    let stage = Stage { cluster: Cluster { number: 1 }, images, pod_starts: number_from("POD_STARTS", 100)? };
    if !reuse {
        stage.images.build()?;
    }
    let steps = run_steps(&stage, &chosen, reuse);
    if !matches!(steps, Ok((_, 0)))
        && let Err(error) = lifecycle::save_diagnostics(&stage)
    {
        println!("cannot save diagnostics: {error:#}");
    }
    if keep {
        println!("the cluster is left up: scripts/cluster down removes it");
    } else {
        provider::other_cluster().down()?;
        let begun = Instant::now();
        stage.cluster.down()?;
        println!("cluster down in {:.1} s", begun.elapsed().as_secs_f64());
    }
    let (passed, failed) = steps?;
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the cluster and runs the steps; returns how many passed and failed.
fn run_steps(stage: &Stage, steps: &[&(&str, Step)], reuse: bool) -> anyhow::Result<(usize, usize)> {
    if !reuse {
        // An earlier run may have left its cluster up.
        stage.cluster.down()?;
        let begun = Instant::now();
        stage.cluster.up()?;
        println!("cluster up in {:.1} s", begun.elapsed().as_secs_f64());
        stage.images.load(stage.cluster)?;
    }
    let mut passed = 0;
    for (name, step) in steps {
        print!("test {name} ... ");
        std::io::stdout().flush()?;
        let begun = Instant::now();
        match step(stage) {
            Ok(measured) => {
                passed += 1;
                println!("ok ({:.1} s) {measured}", begun.elapsed().as_secs_f64());
            }
            Err(error) => {
                println!("FAILED ({:.1} s)\n{error:#}", begun.elapsed().as_secs_f64());
                return Ok((passed, 1));
            }
        }
    }
    Ok((passed, 0))
}

fn number_from(variable: &str, default: usize) -> anyhow::Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("invalid {variable} '{text}': expected a number")),
        Err(_) => Ok(default),
    }
}
