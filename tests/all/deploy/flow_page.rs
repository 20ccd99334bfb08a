use serde_json::{Value, json};

use super::chart::rendered;
use super::manifests::of_kind;
use super::{at, documents, list, read};

fn patch() -> Value {
    documents(&read("deploy/components/flow-page/page.yaml")).remove(0)
}

#[test]
fn page_is_on_the_loopback_of_the_pod() {
    let patch = patch();
    let [variable] = list(&patch, "spec.template.spec.containers.0.env") else { panic!("one variable") };
    let address: std::net::SocketAddr = at(variable, "value").as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback(), "{address}");
    let docs = read("docs/flows-page.md");
    for words in [
        at(variable, "name").as_str().unwrap(),
        &format!("port-forward deployment/ringfence-flow-server {}", address.port()),
    ] {
        assert!(docs.contains(words), "{words}");
    }
}

#[test]
fn page_of_chart_is_that_of_component() {
    let with_page = |is_enabled: bool| {
        rendered(|values| {
            assert_eq!(at(values, "flows.server.ui"), &json!(false), "off by default");
            values["flows"]["enabled"] = json!(true);
            values["flows"]["server"]["enabled"] = json!(true);
            values["flows"]["server"]["tls"]["generate"] = json!(false);
            values["flows"]["server"]["ui"] = json!(is_enabled);
        })
    };
    let (without, all) = (with_page(false), with_page(true));
    assert_eq!(all.iter().filter(|object| !without.contains(object)).count(), 1, "only the Deployment differs");
    let mut patched = of_kind(&without, "Deployment").clone();
    let patch = patch();
    let more = list(&patch, "spec.template.spec.containers.0.env").to_vec();
    patched["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut().unwrap().extend(more);
    assert_eq!(of_kind(&all, "Deployment"), &patched);
}
