use serde_json::{Value, json};

use super::{PORT, exchange, records, serve, start, sum};
use crate::drops::{DB, WEB, stage};
use crate::stage::policy;

/// Policies that replace each other while connections begin.
const CHANGES: usize = 60;

#[test]
fn connections_keep_the_rule_of_their_moment() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    // Each policy allows the connection by its own name, alone; it is in force before the next connection begins.
    for round in 0..CHANGES {
        let allowing = policy(&format!("round-{round}"), "app=db", json!({"ingress": [{"ports": [{"port": PORT}]}]}));
        let commits = agent.metric("ringfence_commits_total");
        stage.write_objects("policies.json", &[allowing]);
        agent
            .until("the policy is in force", |agent| (agent.metric("ringfence_commits_total") > commits).then_some(()));
        exchange(&stage, WEB[0], DB[0], PORT, 10);
    }
    let found = agent.until("all connections", |_| {
        let found = records(&stage, "?protocol=tcp");
        (sum(&found, "/connections/started") == CHANGES as u64).then_some(found)
    });
    for round in 0..CHANGES {
        let name = format!("round-{round}");
        let of_round = |record: &&Value| record["ingress"]["enforced"][0]["name"] == name.as_str();
        let of_round: Vec<Value> = found.iter().filter(of_round).cloned().collect();
        assert_eq!(sum(&of_round, "/connections/started"), 1, "{name}");
    }
}
