//! Sources of Kubernetes objects: the API server, or a folder of manifests.
//!
//! Both sources send [`SourceEvent`]s that carry [`policy::Change`]s, and when they were received. [`watch_cluster`] follows
//! the API server and is the only Kubernetes client; [`watch_folder`] follows a folder, which is then the only source;
//! [`read_folder`] reads one once. This crate does not depend on the meaning of a policy: the consumer lowers objects
//! as they arrive ([`Watchable`]), and an object that cannot be decoded is lowered to one that denies. [`watch_labelled`]
//! follows objects of another cluster, whose credential files are reread when they change ([`connect_to`]).
//! [`ServiceObject`]s only name flows and classify addresses, for provider and agents alike. [`review_token`]
//! authenticates a bearer token; [`Credentials`] keeps certificates in Secrets.

mod burst;
mod connection;
mod credentials;
mod event;
mod folder;
pub mod lease;
pub mod manifest;
pub mod network_sets;
mod reader;
mod services;
mod token_review;
mod watch;
mod watched;

pub use burst::{BurstLimits, burst_end};
pub use connection::{ApiClient, ClusterAccess, ConnectError, RequestTiming, connect, connect_to};
pub use credentials::{CredentialKind, Credentials, CredentialsWriteError, StoredCredential};
pub use event::{Problem, SourceEvent, Sync, TimedChange};
pub use folder::{Folder, FolderError, LocatedObject, Origin, follow::watch_folder, read_folder, read_text};
pub use reader::ObjectReader;
pub use services::{
    AddressSource, EndpointSlice, Service, ServiceAddress, ServiceKind, ServiceObject, ServicePortSpec,
};
pub use token_review::{ReviewedUser, TokenReview, review_token};
pub use watch::{
    LabelledEvent, lean_json::read_lean, lookup::cluster_uid, lookup::look_up_pod, watch_cluster, watch_labelled,
};
pub use watched::{
    Keep, Manifests, MissingName, NODE_ANNOTATIONS, Need, OWNER_REFERENCES, POD_SPEC, Resource, Watchable,
};
