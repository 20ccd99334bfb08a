//! `ringfence-cni`, the last plugin of a node's CNI chain, and what it and the agent share: the attachments that it
//! keeps in a folder ([`store`]) and the socket that it asks on ([`protocol`]).
//!
//! A pod is started only after its rules are in force: ADD is answered when the agent says so. The plugin blocks,
//! starts in a millisecond and ends; it knows no policies and no Kubernetes API. docs/cni.md is for its user.

mod attachment;
pub mod isolation;
pub mod plugin;
pub mod protocol;
pub mod store;

pub use attachment::{Attachment, AttachmentId, FormatVersion, IdError, UnsupportedVersion, VERSION};
