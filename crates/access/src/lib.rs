//! Access control of an HTTP or gRPC port: the serving certificate, authentication of clients by certificate or bearer
//! token, grants per scope, and their metrics.
//!
//! The crate knows neither the routes of a port nor its scopes.

mod arguments;
mod figures;
mod guard;
mod port;

pub use arguments::PortArguments;
pub use figures::AccessFigures;
pub use guard::{
    ClientCredentials, Denial, Grant, GrantScope, GrantSubject, Grants, Guard, Principal, Session, TokenAuthenticator,
    TokenSettings, check, recheck_interval,
};
pub use port::{PortReport, PortSecurity, PortSettings, Risks};
