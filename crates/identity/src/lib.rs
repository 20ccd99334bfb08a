//! Security identities: their labels, text and number (docs/identity.md); and the workload of a pod ([`Workload`]).
//!
//! An identity is a function of a pod's labels, the labels of its namespace and the name of the cluster. The context
//! provider and every agent compute it with this crate, so that all of them agree without communication. All functions
//! here are pure: no clock, no I/O and no state.
//!
//! ```
//! use identity::{LabelFilter, Sid, Space};
//! use policy::Labels;
//!
//! let labels = |pairs: &[(&str, &str)]| -> Labels {
//!     pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
//! };
//! let filter = LabelFilter::default();
//! let pod = labels(&[("app", "web"), ("pod-template-hash", "5d8f")]);
//! let relevant: Labels =
//!     pod.iter().filter(|(key, _)| filter.includes(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
//! assert_eq!(relevant, labels(&[("app", "web")]));
//!
//! let namespace = labels(&[("kubernetes.io/metadata.name", "shop")]);
//! let sid = Sid::of("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "shop", &relevant, &namespace);
//! assert_eq!(sid.to_string(), "rdsrexpux6y4o");
//! assert_eq!("rdsrexpux6y4o".parse(), Ok(sid));
//! assert_eq!(Space::STANDARD.home(sid), 213_703);
//! ```

mod cluster_scheme;
mod control_plane;
mod end;
mod filter;
mod reserved;
mod scheme;
mod service;
mod sid;
mod space;
#[cfg(test)]
mod testing;
mod workload;

pub use cluster_scheme::{ClusterName, ClusterScheme};
pub use control_plane::{API_SERVER, Component, hosts_control_plane};
pub use end::{EndIdentity, identities_of_flow};
pub use filter::{CHURN, Exclusion, InvalidLabelKeyPattern, LabelFilter, LabelKeyPattern};
pub use reserved::{ReservedIdentity, UNNUMBERED};
pub use scheme::{Basis, CLUSTER_NAMESPACE, ExcludedLabel, LabelledObject, Scheme, cluster_uid};
pub use service::{SERVICE_LABEL, service_identity};
pub use sid::{ParseSidError, Sid, canonical};
pub use space::Space;
pub use workload::{Workload, app_name};
