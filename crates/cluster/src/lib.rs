//! Where the facts come from: the API server, or a folder of manifests.
//!
//! Both sources say the same thing in the same words: [`Event`]s that carry [`policy::Change`]s, and when they came. [`watch_cluster`]
//! follows the API server and is the only Kubernetes client there is; [`watch_folder`] follows a folder, which is
//! then the whole truth; [`read_folder`] reads one once. Nothing here knows what a policy means: objects are lowered
//! by their consumer as they arrive ([`Watched`]), and one that cannot be decoded arrives as one that denies.
//! [`watch_labelled`] follows objects of another cluster, whose credentials are read again as their files change
//! ([`connect_elsewhere`]). [`ServiceObject`]s only name flows and classify addresses, for provider and agents alike. [`review_token`] asks whose a bearer token is; [`Credentials`] keeps certificates in Secrets.

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

pub use connection::{ConnectError, Connection, Elsewhere, Timing, connect, connect_elsewhere};
pub use credentials::{CredentialKind, Credentials, StoredCredential, WriteError};
pub use event::{Event, Problem, Sync, Told};
pub use folder::{Folder, FolderError, Found, Origin, follow::watch_folder, read_folder};
pub use reader::ObjectReader;
pub use services::{AddressSource, EndpointSlice, Service, ServiceAddress, ServiceKind, ServiceObject, ServicePort};
pub use token_review::{ReviewedUser, TokenReview, review_token};
pub use watch::{Followed, lean::read_lean, lookup::cluster_uid, lookup::look_up_pod, watch_cluster, watch_labelled};
pub use watched::{Keep, Manifests, NODE_ANNOTATIONS, Nameless, Need, OWNER_REFERENCES, POD_SPEC, Resource, Watched};
