//! Reports about the cluster: denied packets, status, and the doctor.

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::Stage;
use crate::cluster::{at, wait_for};
use crate::lifecycle::agents;
use crate::policies::{IN_FORCE, client, web};

pub(crate) fn drops_status_and_doctor_match_the_cluster(stage: &Stage) -> anyhow::Result<String> {
    let cluster = stage.cluster;
    let target = at(&cluster.addresses(&web(2))?[0], 9090);
    // Denied by the policy of the previous step, so no answer is expected.
    let denied = cluster.exec(&client("stranger", 1), &["/test-cluster", "pod", "get", "tcp", &target]);
    ensure!(denied.is_err(), "a stranger reached {target}");
    wait_for("ringfence drops names the denied flow", IN_FORCE, || {
        let mut events = String::new();
        for agent in agents(cluster)? {
            events += &cluster.exec(&agent, &["ringfence", "drops"])?;
        }
        let named = events.lines().any(|line| {
            line.contains("shop/stranger-1")
                && line.contains("-> shop/web-2")
                && line.contains("9090/tcp")
                && line.contains("by shop/web")
        });
        ensure!(named, "{events}");
        Ok(Some(()))
    })?;
    let mut notes = Vec::new();
    for agent in agents(cluster)? {
        cluster.exec(&agent, &["ringfence", "status"])?;
        let findings = cluster.exec(&agent, &["ringfence", "doctor", "--no-self-test", "--output", "json"])?;
        let findings: Value = serde_json::from_str(&findings).context("the doctor printed invalid JSON")?;
        let findings = findings["findings"].as_array().context("the doctor printed no findings")?;
        for finding in findings.iter().filter(|finding| finding["severity"] != "ok") {
            let (id, severity) = (finding["id"].as_str().unwrap_or("?"), finding["severity"].as_str().unwrap_or("?"));
            ensure!(severity == "note", "{}: {severity} {id}: {}", agent.name, finding["finding"]);
            notes.push(id.to_owned());
        }
    }
    Ok(format!("doctor's notes: {}", notes.join(", ")))
}
