//! `ringfence-cni`, the last plugin of a node's CNI chain, and the interface between it and the agent: the attachment
//! store ([`store`]) and the socket protocol ([`protocol`]).
//!
//! A pod starts only after its rules are in force: ADD blocks until the agent confirms that. The plugin starts within a
//! millisecond and runs only for one command; it uses neither policies nor the Kubernetes API. User documentation is in
//! docs/cni.md.

mod attachment;
pub mod isolation;
pub mod plugin;
pub mod protocol;
pub mod store;

pub use attachment::{AttachmentKey, AttachmentRecord, FormatVersion, IdError, UnsupportedVersion, VERSION};
