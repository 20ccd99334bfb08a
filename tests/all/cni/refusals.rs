use std::fs::File;
use std::io::{Seek, Write};
use std::process::Command;

use kit::agent_process::{ProgramExit, built, ended};
use kit::cni_runtime::{FakeAgent, Runtime};
use serde_json::{Value, json};

use super::{Place, Pod};

/// The variables of an ADD.
const VARIABLES: [(&str, &str); 5] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "4f1c"),
    ("CNI_NETNS", "/run/netns/pod"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=api-0"),
];

const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.7/24"}]}"#;

/// Runs the plugin on the node with the variables of an ADD, one of them replaced (an empty value removes it).
fn run(runtime: &Runtime, variable: (&str, &str), input: &str) -> ProgramExit {
    let mut command = Command::new(built("ringfence-cni"));
    command.env_clear().envs(VARIABLES).env(variable.0, variable.1);
    if variable.1.is_empty() {
        command.env_remove(variable.0);
    }
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(input.as_bytes()).unwrap();
    file.rewind().unwrap();
    command.stdin(file);
    runtime.on_node(|| ended(&mut command))
}

struct Refused {
    code: u64,
    message: String,
    details: String,
}

#[track_caller]
fn refused(ended: &ProgramExit) -> Refused {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let error: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let text = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("no {key}: {ended:?}")).to_owned();
    assert!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].contains(&text("cniVersion").as_str()), "{ended:?}");
    Refused { code: error["code"].as_u64().unwrap(), message: text("msg"), details: text("details") }
}

fn config(place: &Place, more: Value) -> String {
    let mut config = place.ours(json!({"cniVersion": "1.1.0", "name": "pods"}));
    config.as_object_mut().unwrap().insert("prevResult".into(), serde_json::from_str(RESULT).unwrap());
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config.to_string()
}

#[test]
fn each_bad_variable_has_its_sentence() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let cases = [
        ("CNI_COMMAND", "", "CNI_COMMAND is not set"),
        ("CNI_COMMAND", "add", "invalid CNI_COMMAND \"add\""),
        ("CNI_CONTAINERID", "", "CNI_CONTAINERID is not set"),
        ("CNI_CONTAINERID", "../../etc/passwd", "invalid container ID"),
        ("CNI_CONTAINERID", "a@b", "invalid container ID"),
        ("CNI_IFNAME", "", "CNI_IFNAME is not set"),
        ("CNI_IFNAME", "a/b", "invalid interface name"),
        ("CNI_IFNAME", "sixteen-bytes-xx", "invalid interface name"),
        ("CNI_NETNS", "", "CNI_NETNS is not set"),
        ("CNI_ARGS", "K8S_POD_NAME=api-0", "missing K8S_POD_NAMESPACE"),
        ("CNI_ARGS", "K8S_POD_NAME", "expected KEY=VALUE"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=a/b", "expected a Kubernetes name"),
    ];
    for (variable, value, sentence) in cases {
        let Refused { code, message, details } = refused(&run(&runtime, (variable, value), &config(&place, json!({}))));
        assert!(
            code == 4 && format!("{message}: {details}").contains(sentence),
            "{variable}={value}: {message}: {details}"
        );
    }
    assert_eq!(place.attachments(), []);
}

#[test]
fn each_bad_configuration_has_its_sentence() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let with = |more: Value| config(&place, more);
    let cases = [
        (String::new(), 6, "is not valid JSON"),
        ("{\"cniVersion\":\"1.1.0\",".into(), 6, "is not valid JSON"),
        ("7".into(), 7, "the configuration is invalid"),
        (with(json!({"cniVersion": null})), 1, "cniVersion \"\" is not supported"),
        (with(json!({"cniVersion": "0.2.0"})), 1, "cniVersion \"0.2.0\" is not supported"),
        (with(json!({"cniVersion": "2.0.0"})), 1, "supports 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"),
        (with(json!({"name": ""})), 7, "missing name"),
        (with(json!({"onTimeout": "allow"})), 7, "invalid onTimeout \"allow\": expected \"fail\" or \"isolate\""),
        (with(json!({"timeoutSeconds": 0})), 7, "invalid timeoutSeconds 0: expected 1 to 300"),
        (with(json!({"timeoutSeconds": 301})), 7, "invalid timeoutSeconds 301: expected 1 to 300"),
        (with(json!({"timeoutSeconds": "10"})), 7, "the configuration is invalid"),
        (with(json!({"agentSocket": "cni.sock"})), 7, "invalid agentSocket \"cni.sock\": expected an absolute path"),
        (with(json!({"stateDir": "cni"})), 7, "invalid stateDir \"cni\": expected an absolute path"),
        (with(json!({"prevResult": null})), 7, "missing prevResult"),
        (with(json!({"prevResult": []})), 7, "invalid prevResult: expected a CNI result"),
        (with(json!({"prevResult": {}})), 7, "missing address of the pod in prevResult"),
        (
            with(json!({"prevResult": {"ips": [{"address": "10.1.0.7"}]}})),
            7,
            "expected an address with a prefix length",
        ),
        (
            with(json!({"prevResult": {"ips": vec![json!({"address": "10.1.0.7/8"}); 257]}})),
            7,
            "too many addresses in prevResult: 257",
        ),
        (with(json!({"stateDir": "/proc/none/cni"})), 5, "cannot write the attachment file to /proc/none/cni"),
        (" ".repeat(5 << 20), 5, "cannot read the configuration"),
    ];
    for (input, number, sentence) in cases {
        let Refused { code, message, details } = refused(&run(&runtime, ("CNI_COMMAND", "ADD"), &input));
        let (shown, said) = (&input[..input.len().min(300)], format!("{message}: {details}"));
        assert!(code == number && said.contains(sentence), "{shown}: {code}: {said}");
    }
    assert_eq!(place.attachments(), []);
}

#[test]
fn gc_without_valid_attachments_removes_nothing() {
    let place = Place::new();
    let _agent = FakeAgent::enforcing(&place.socket());
    let runtime = place.runtime("1.1.0", &[place.stub(RESULT), place.ours(json!({}))]);
    let pod = Pod::new("api-0");
    runtime.add(&pod.container).unwrap();
    let doubtful = [json!({}), json!({"cni.dev/valid-attachments": [{"containerID": "/", "ifname": "eth0"}]})];
    for more in doubtful {
        let Refused { code, message, .. } = refused(&run(&runtime, ("CNI_COMMAND", "GC"), &config(&place, more)));
        assert!(code == 7 && message.contains("nothing is removed"), "{message}");
    }
    assert_eq!(place.attachments().len(), 1);
}

#[test]
fn deleting_succeeds_whatever_it_is_given() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let fine = config(&place, json!({}));
    let delete = |variable: (&str, &str), input: &str| {
        let mut command = Command::new(built("ringfence-cni"));
        command.env_clear().envs(VARIABLES).env("CNI_COMMAND", "DEL").env(variable.0, variable.1);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(input.as_bytes()).unwrap();
        file.rewind().unwrap();
        command.stdin(file);
        runtime.on_node(|| ended(&mut command))
    };
    let cases = [
        (("CNI_IFNAME", "a/b"), fine.as_str(), "invalid interface name"),
        (("CNI_CONTAINERID", ""), &fine, "CNI_CONTAINERID is not set"),
        (("CNI_NETNS", ""), &fine, "cannot connect to the agent"),
        (("CNI_ARGS", "nonsense"), &fine, "cannot connect to the agent"),
        (("CNI_NETNS", ""), &config(&place, json!({"prevResult": []})), "cannot connect to the agent"),
        (("CNI_NETNS", ""), &config(&place, json!({"onTimeout": 7})), "DEL continues with the defaults"),
        (("CNI_NETNS", ""), "{", "DEL continues with the defaults"),
    ];
    for (variable, input, said) in cases {
        let ended = delete(variable, input);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{input}");
        assert!(ended.stderr.contains(said), "{input}: {}", ended.stderr);
    }
}

#[test]
fn version_command_answers_in_requested_cni_version() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    for (input, version) in
        [("", "1.1.0"), (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"), (r#"{"cniVersion":"9.9.9"}"#, "1.1.0")]
    {
        let ended = run(&runtime, ("CNI_COMMAND", "VERSION"), input);
        let expected =
            json!({"cniVersion": version, "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]});
        assert_eq!(ended.code, Some(0));
        assert_eq!(serde_json::from_str::<Value>(&ended.stdout).unwrap(), expected);
    }
}
