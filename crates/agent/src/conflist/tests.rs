use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::Map;

use super::*;

fn entry() -> ConflistEntry {
    ConflistEntry {
        agent_socket: "/run/ringfence/cni.sock".into(),
        state_dir: "/run/ringfence/cni".into(),
        timeout_seconds: 10,
        on_timeout: "fail",
        checksum_offload: None,
    }
}

fn cni_versions() -> Vec<String> {
    ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].map(String::from).into()
}

fn install(text: &str) -> Result<Option<String>, Unusable> {
    with_entry(text, &entry(), &cni_versions())
}

/// The entry is installed as expected, installing it again changes nothing, and removing it restores every byte.
#[track_caller]
fn check(text: &str, expected: &Expect) {
    let installed = install(text).unwrap().unwrap();
    expected.assert_eq(&installed);
    assert_eq!(install(&installed), Ok(None));
    assert_eq!(without_entry(&installed).unwrap().as_deref(), Some(text));
    assert_eq!(without_entry(text), Ok(None));
}

#[test]
fn flannel() {
    // The ConfigMap of kube-flannel.yml, which its init container copies.
    let text = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
"#;
    check(
        text,
        &expect![[r#"
            {
              "name": "cbr0",
              "cniVersion": "0.3.1",
              "plugins": [
                {
                  "type": "flannel",
                  "delegate": {
                    "hairpinMode": true,
                    "isDefaultGateway": true
                  }
                },
                {
                  "type": "portmap",
                  "capabilities": {
                    "portMappings": true
                  }
                },
                {
                  "type": "ringfence-cni",
                  "agentSocket": "/run/ringfence/cni.sock",
                  "stateDir": "/run/ringfence/cni",
                  "timeoutSeconds": 10,
                  "onTimeout": "fail"
                }
              ]
            }
        "#]],
    );
}

#[test]
fn k3s() {
    let text = r#"{
  "name":"cbr0",
  "cniVersion":"1.0.0",
  "plugins":[
    {
      "type":"flannel",
      "delegate":{
        "hairpinMode":true,
        "forceAddress":true,
        "isDefaultGateway":true
      }
    },
    {
      "type":"portmap",
      "capabilities":{
        "portMappings":true
      }
    },
    {
      "type":"bandwidth",
      "capabilities":{
        "bandwidth":true
      }
    }
  ]
}
"#;
    check(
        text,
        &expect![[r#"
            {
              "name":"cbr0",
              "cniVersion":"1.0.0",
              "plugins":[
                {
                  "type":"flannel",
                  "delegate":{
                    "hairpinMode":true,
                    "forceAddress":true,
                    "isDefaultGateway":true
                  }
                },
                {
                  "type":"portmap",
                  "capabilities":{
                    "portMappings":true
                  }
                },
                {
                  "type":"bandwidth",
                  "capabilities":{
                    "bandwidth":true
                  }
                },
                {
                  "type":"ringfence-cni",
                  "agentSocket":"/run/ringfence/cni.sock",
                  "stateDir":"/run/ringfence/cni",
                  "timeoutSeconds":10,
                  "onTimeout":"fail"
                }
              ]
            }
        "#]],
    );
}

#[test]
fn kind_with_ptp_and_portmap() {
    // kindnetd's template: tabs, a line before the object, a list that is not indented.
    let text = "\n{\n\t\"cniVersion\": \"0.3.1\",\n\t\"name\": \"kindnet\",\n\t\"plugins\": [\n\t{\n\t\t\"type\": \
        \"ptp\",\n\t\t\
                \"ipMasq\": false,\n\t\t\"ipam\": {\n\t\t\t\"type\": \"host-local\",\n\t\t\t\"dataDir\": \
                \"/run/cni-ipam-state\"\n\t\t}\n\t\t,\n\t\t\"mtu\": 1500\n\t\t\n\t},\n\t{\n\t\t\"type\": \
                \"portmap\",\n\t\t\
                \"capabilities\": {\n\t\t\t\"portMappings\": true\n\t\t}\n\t}\n\t]\n}\n";
    check(
        text,
        &expect![[r#"

            {
            	"cniVersion": "0.3.1",
            	"name": "kindnet",
            	"plugins": [
            	{
            		"type": "ptp",
            		"ipMasq": false,
            		"ipam": {
            			"type": "host-local",
            			"dataDir": "/run/cni-ipam-state"
            		}
            		,
            		"mtu": 1500
            		
            	},
            	{
            		"type": "portmap",
            		"capabilities": {
            			"portMappings": true
            		}
            	},
            	{
            		"type": "ringfence-cni",
            		"agentSocket": "/run/ringfence/cni.sock",
            		"stateDir": "/run/ringfence/cni",
            		"timeoutSeconds": 10,
            		"onTimeout": "fail"
            	}
            	]
            }
        "#]],
    );
}

#[test]
fn kube_router_after_it_wrote_the_subnet() {
    // Go's encoding/json: one line, sorted keys.
    let text = r#"{"cniVersion":"0.3.0","name":"mynet","plugins":[{"bridge":"kube-bridge","ipam":{"subnet":"10.242.0.0/24","type":"host-local"},"isDefaultGateway":true,"mtu":9001,"name":"kubernetes","type":"bridge"}]}"#;
    check(
        text,
        &expect![[
            r#"{"cniVersion":"0.3.0","name":"mynet","plugins":[{"bridge":"kube-bridge","ipam":{"subnet":"10.242.0.0/24","type":"host-local"},"isDefaultGateway":true,"mtu":9001,"name":"kubernetes","type":"bridge"},{"type":"ringfence-cni","agentSocket":"/run/ringfence/cni.sock","stateDir":"/run/ringfence/cni","timeoutSeconds":10,"onTimeout":"fail"}]}"#
        ]],
    );
}

#[test]
fn calico() {
    // The last plugin is on one line after its brace.
    let text = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "mtu": 1500,
      "ipam": {
          "type": "calico-ipam"
      },
      "kubernetes": {
          "kubeconfig": "/etc/cni/net.d/calico-kubeconfig"
      }
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    },
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}"#;
    check(
        text,
        &expect![[r#"
            {
              "name": "k8s-pod-network",
              "cniVersion": "0.3.1",
              "plugins": [
                {
                  "type": "calico",
                  "log_level": "info",
                  "mtu": 1500,
                  "ipam": {
                      "type": "calico-ipam"
                  },
                  "kubernetes": {
                      "kubeconfig": "/etc/cni/net.d/calico-kubeconfig"
                  }
                },
                {
                  "type": "portmap",
                  "snat": true,
                  "capabilities": {"portMappings": true}
                },
                {"type": "bandwidth", "capabilities": {"bandwidth": true}},
                {"type": "ringfence-cni", "agentSocket": "/run/ringfence/cni.sock", "stateDir": "/run/ringfence/cni", "timeoutSeconds": 10, "onTimeout": "fail"}
              ]
            }"#]],
    );
}

#[test]
fn entry_round_trips_in_list_with_crlf() {
    let text = "{\r\n \"cniVersion\": \"1.0.0\", \"name\": \"a\",\r\n \"plugins\": [ {\r\n  \"type\": \"ptp\"\r\n } \
        ]\r\n}\r\n";
    let installed = install(text).unwrap().unwrap();
    assert!(installed.contains(" }, {\r\n  \"type\": \"ringfence-cni\",\r\n  \"agentSocket\""), "{installed}");
    assert_eq!(without_entry(&installed).unwrap().as_deref(), Some(text));
}

#[test]
fn conf_becomes_conflist_with_entry_and_source() {
    let conf = "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"net\",\n  \"type\": \"bridge\",\n  \"mtu\": 1.50e3\n}\n";
    let list = from_conf(conf, "10-bridge.conf", &entry(), &cni_versions()).unwrap();
    expect![[r#"
        {
          "cniVersion": "0.4.0",
          "name": "net",
          "ringfenceSource": "10-bridge.conf",
          "plugins": [
            {
          "cniVersion": "0.4.0",
          "name": "net",
          "type": "bridge",
          "mtu": 1.50e3
        },
            {
          "type": "ringfence-cni",
          "agentSocket": "/run/ringfence/cni.sock",
          "stateDir": "/run/ringfence/cni",
          "timeoutSeconds": 10,
          "onTimeout": "fail"
        }
          ]
        }
    "#]]
    .assert_eq(&list);
    assert_eq!(source(&list).as_deref(), Some("10-bridge.conf"));
    assert_eq!(source(conf), None);
    assert_eq!(install(&list), Ok(None));
}

#[test]
fn changed_settings_are_replaced_in_place() {
    let before = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"},{"type":"ringfence-cni","x":1},{"type":"istio-cni"}]}"#;
    let after = install(before).unwrap().unwrap();
    let kinds: Vec<String> =
        Document::parse(&after).unwrap().plugins().unwrap().into_iter().map(|plugin| plugin.kind).collect();
    assert_eq!(kinds, ["ptp", "ringfence-cni", "istio-cni"]);
    assert!(after.contains(r#""onTimeout":"fail"}"#) && !after.contains(r#""x""#), "{after}");
    assert_eq!(install(&after), Ok(None));
    let isolate = ConflistEntry { on_timeout: "isolate", ..entry() };
    let other = with_entry(&after, &isolate, &cni_versions()).unwrap().unwrap();
    assert_eq!(other, after.replace("fail", "isolate"));
    let without_offload = ConflistEntry { checksum_offload: Some("off"), ..entry() };
    let other = with_entry(&after, &without_offload, &cni_versions()).unwrap().unwrap();
    assert!(other.contains(r#""onTimeout":"fail","txChecksumOffload":"off"}"#), "{other}");
}

#[test]
fn install_moves_early_entry_last_and_removes_duplicates() {
    let wanted = install(r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"}]}"#).unwrap().unwrap();
    for before in [
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ringfence-cni"},{"type":"ptp"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"},{"type":"ringfence-cni"},{"type":"ringfence-cni"}]}"#,
    ] {
        assert_eq!(install(before).unwrap().as_ref(), Some(&wanted), "{before}");
    }
}

#[test]
fn invalid_conflist_is_refused_with_reason() {
    for (text, reason) in [
        ("", "invalid JSON"),
        (r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}"#, "invalid JSON"),
        ("[]", "invalid JSON"),
        (r#"{"cniVersion":"1.0.0"}"#, "missing list 'plugins'"),
        (r#"{"cniVersion":"1.0.0","plugins":{}}"#, "'plugins' is not a list"),
        (r#"{"cniVersion":"1.0.0","plugins":[]}"#, "the list of plugins is empty"),
        (r#"{"cniVersion":"1.0.0","plugins":[{"type":"ringfence-cni"}]}"#, "the list of plugins is empty"),
        (r#"{"cniVersion":"1.0.0","plugins":[1]}"#, "a plugin is not an object"),
        (r#"{"cniVersion":"1.0.0","plugins":[{"name":"a"}]}"#, "a plugin has no 'type'"),
        (r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}],"plugins":[]}"#, "duplicate key"),
        (r#"{"cniVersion":"0.2.0","plugins":[{"type":"a"}]}"#, "unsupported cniVersion 0.2.0"),
        (r#"{"plugins":[{"type":"a"}]}"#, "unsupported cniVersion 0.1.0"),
        (r#"{"cniVersions":["2.0.0"],"plugins":[{"type":"a"}]}"#, "unsupported cniVersion 2.0.0"),
    ] {
        let refusal = install(text).unwrap_err().to_string();
        assert!(refusal.contains(reason), "{text}: {refusal}");
    }
    assert!(install(r#"{"cniVersions":["2.0.0","1.1.0"],"plugins":[{"type":"a"}]}"#).is_ok());
    for text in [r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#, r#"{"cniVersion":"1.0.0"}"#] {
        assert!(from_conf(text, "a.conf", &entry(), &cni_versions()).is_err(), "{text}");
    }
}

/// JSON with white space in every permitted position.
fn json_text(depth: u32) -> BoxedStrategy<String> {
    let space = || prop_oneof![Just(""), Just(" "), Just("\n"), Just("\r\n\t"), Just("\n    ")];
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("1.50e+3".to_owned()),
        Just("-0".to_owned()),
        Just("123456789012345678901234567890".to_owned()),
        "[a-z\"\\\\\u{e9}\u{1f600},\\]\\[{}:]{0,6}".prop_map(|text| json!(text).to_string()),
    ];
    scalar
        .prop_recursive(depth, 24, 3, move |inner| {
            let item = (space(), inner, space()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
            let field =
                (space(), "[a-z]{1,4}", item.clone()).prop_map(|(a, key, value)| format!("{a}\"x-{key}\":{value}"));
            prop_oneof![
                proptest::collection::vec(item, 0..3).prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::vec(field, 0..3).prop_map(|fields| format!("{{{}}}", fields.join(","))),
            ]
        })
        .boxed()
}

fn list_text() -> impl Strategy<Value = String> {
    let space = || prop_oneof![Just(""), Just(" "), Just("\n"), Just("\r\n  "), Just("\n\t")];
    let plugin = (space(), space(), json_text(2), space(), space())
        .prop_map(|(a, b, value, c, d)| format!("{a}{{{b}\"type\":{c}\"ptp\",\"conf\": {value}{c}}}{d}"));
    (proptest::collection::vec(plugin, 1..4), json_text(2), space(), space()).prop_map(|(plugins, other, a, b)| {
        let plugins = plugins.join(",");
        format!("{a}{{{b}\"other\":{other},{a}\"plugins\":{b}[{plugins}]{a},\"cniVersion\" : \"1.0.0\"}}{b}")
    })
}

proptest! {
    #[test]
    fn removing_installed_entry_restores_any_list_bytewise(text in list_text()) {
        let installed = install(&text).unwrap().expect("it had no entry");
        let mut wanted: Value = serde_json::from_str(&text).unwrap();
        wanted["plugins"].as_array_mut().unwrap().push(entry().value());
        prop_assert_eq!(&serde_json::from_str::<Value>(&installed).unwrap(), &wanted);
        prop_assert_eq!(install(&installed).unwrap(), None);
        prop_assert_eq!(without_entry(&installed).unwrap(), Some(text));
    }

    #[test]
    fn conf_is_embedded_unchanged_in_generated_list(value in json_text(3)) {
        let conf = format!("{{\"type\":\"ptp\",\"cniVersion\":\"1.0.0\",\"conf\":{value}}}");
        let list = from_conf(&conf, "a.conf", &entry(), &cni_versions()).unwrap();
        prop_assert!(list.contains(&conf));
        let parsed: Map<String, Value> = serde_json::from_str(&list).unwrap();
        prop_assert_eq!(parsed["plugins"].as_array().unwrap().len(), 2);
    }
}
