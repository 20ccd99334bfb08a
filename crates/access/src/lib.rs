//! Who may use an HTTP or gRPC port of ours: authentication of clients by certificate or bearer token, grants per scope, the
//! certificate that is served, and what is counted about all of it.
//!
//! What is served, and which scopes there are, is not known here.

mod figures;
mod guard;
mod port;

pub use figures::AccessFigures;
pub use guard::{
    ClientCredentials, Denial, Grant, Grants, Guard, Principal, Scope, Session, Subject, TokenAuthenticator,
    TokenSettings, check, recheck_interval,
};
pub use port::{PortReport, PortSecurity, PortSettings, Risks};
