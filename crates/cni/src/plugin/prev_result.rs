//! The result of the previous plugins: interfaces and addresses (CNI specification, "Add Success").

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::plugin::{Code, Failure};

/// Maximum number of addresses. A pod has one, or one of each family; no plugin assigns this many by design.
const ADDRESSES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PrevResult {
    /// Addresses of the pod, without those of host interfaces.
    pub(super) addresses: Vec<IpAddr>,
    /// Names of the host interfaces.
    pub(super) host_interfaces: Vec<String>,
}

#[derive(Deserialize)]
struct PrevResultFields {
    interfaces: Option<Vec<Interface>>,
    ips: Option<Vec<Address>>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    sandbox: Option<String>,
}

impl Interface {
    fn is_on_host(&self) -> bool {
        self.sandbox.as_deref().is_none_or(str::is_empty)
    }
}

#[derive(Deserialize)]
struct Address {
    address: String,
    /// Index of the address's interface in `interfaces`.
    interface: Option<i64>,
}

impl PrevResult {
    pub(super) fn parse(result: &RawValue) -> Result<PrevResult, Failure> {
        let fields: PrevResultFields = serde_json::from_str(result.get())
            .map_err(|error| invalid("invalid prevResult: expected a CNI result").because(error))?;
        let interfaces = fields.interfaces.unwrap_or_default();
        let mut addresses = Vec::new();
        for Address { address, interface } in fields.ips.unwrap_or_default() {
            let on = interface.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
            if on.is_some_and(Interface::is_on_host) {
                continue;
            }
            let Some(parsed) = parse_address(&address) else {
                return Err(invalid(format!(
                    "invalid address {address:?} in prevResult: expected an address with a prefix length"
                )));
            };
            addresses.push(parsed);
        }
        match addresses.len() {
            0 => Err(invalid("missing address of the pod in prevResult").because(
                "ringfence-cni is a chained plugin: add it after the plugin that assigns the pod's addresses",
            )),
            1..=ADDRESSES => {
                let on_host = interfaces.into_iter().filter(Interface::is_on_host);
                Ok(PrevResult { addresses, host_interfaces: on_host.map(|interface| interface.name).collect() })
            }
            more => Err(invalid(format!("too many addresses in prevResult: {more}, at most {ADDRESSES}"))),
        }
    }
}

/// Parses `10.1.0.7/24`.
fn parse_address(text: &str) -> Option<IpAddr> {
    let (address, length) = text.split_once('/')?;
    let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (length <= bits).then(|| address.to_canonical())
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Configuration, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PrevResult, Failure> {
        PrevResult::parse(&RawValue::from_string(text.into()).unwrap())
    }

    #[test]
    fn pod_addresses_exclude_those_on_host_interfaces() {
        let result = parse(
            r#"{"cniVersion":"1.0.0","dns":{},
                "interfaces":[{"name":"cni0","mac":"02:00:00:00:00:01"},{"name":"veth1","sandbox":""},
                              {"name":"eth0","sandbox":"/run/netns/pod"}],
                "ips":[{"version":"4","address":"10.1.0.7/24","gateway":"10.1.0.1","interface":2},
                       {"address":"10.1.0.1/24","interface":0},{"address":"fd00::7/64"},
                       {"address":"::ffff:10.1.0.8/128","interface":9}]}"#,
        );
        let addresses = ["10.1.0.7", "fd00::7", "10.1.0.8"].map(|a| a.parse().unwrap()).to_vec();
        assert_eq!(result, Ok(PrevResult { addresses, host_interfaces: vec!["cni0".into(), "veth1".into()] }));
    }

    #[test]
    fn prev_result_without_valid_pod_address_is_refused() {
        let no_address = [r#"{}"#, r#"{"ips":null}"#, r#"{"ips":[]}"#];
        let on_host = r#"{"interfaces":[{"name":"a"}],"ips":[{"address":"10.0.0.1/8","interface":0}]}"#;
        for text in no_address.into_iter().chain([on_host]) {
            assert!(parse(text).unwrap_err().to_string().contains("missing address of the pod"), "{text}");
        }
        for address in ["10.1.0.7", "10.1.0.7/33", "fd00::7/129", "10.1.0/24", "", "/24", "10.1.0.7/x"] {
            let refusal = parse(&format!(r#"{{"ips":[{{"address":"{address}"}}]}}"#)).unwrap_err();
            assert!(refusal.to_string().contains("expected an address with a prefix length"), "{address}");
        }
        for text in ["[]", "7", r#"{"ips":[{}]}"#, r#"{"ips":7}"#, r#"{"interfaces":[{}]}"#] {
            assert!(parse(text).unwrap_err().to_string().contains("expected a CNI result"), "{text}");
        }
    }
}
