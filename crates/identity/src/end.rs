//! The identity of an end of a flow.

use std::fmt;

use policy::plain;
use serde::{Deserialize, Serialize};

use crate::{ReservedIdentity, Sid, Space};

/// The identity of an end of a flow, as in events, explanations and flow records. Exactly one of `sid` and `state` is
/// set.
///
/// ```
/// use identity::{EndIdentity, ReservedIdentity};
///
/// let web = EndIdentity::of_sid("rdsrexpux6y4o".parse()?, "shop".into());
/// assert_eq!((web.num, web.to_string().as_str()), (213_703, "shop rdsrexpux6y4o"));
/// let world = EndIdentity::reserved(ReservedIdentity::World, None);
/// assert_eq!((world.num, world.to_string().as_str()), (2, "world"));
/// # Ok::<(), identity::ParseSidError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndIdentity {
    /// The service identity; `None` for ends that are not pods of this cluster.
    pub service: Option<String>,
    /// The security identity; `None` if there is a reserved identity instead.
    pub sid: Option<Sid>,
    /// Number of the reserved identity, or the home number of the security identity. The context provider assigns
    /// another number to the few identities whose home number is taken: `sid` is unique, `num` is not.
    pub num: u32,
    /// The reserved identity; `None` if there is a security identity.
    pub state: Option<ReservedIdentity>,
}

impl EndIdentity {
    pub fn of_sid(sid: Sid, service: String) -> EndIdentity {
        EndIdentity { service: Some(service), sid: Some(sid), num: Space::STANDARD.home(sid), state: None }
    }

    pub fn reserved(state: ReservedIdentity, service: Option<String>) -> EndIdentity {
        EndIdentity { service, sid: None, num: state.num(), state: Some(state) }
    }

    /// The text of the security identity, or the name of the reserved identity.
    pub fn text(&self) -> String {
        match (self.sid, self.state) {
            (Some(sid), _) => sid.to_string(),
            (None, Some(state)) => state.text().to_owned(),
            (None, None) => self.num.to_string(),
        }
    }
}

/// The service identity, if any, and the security identity.
impl fmt::Display for EndIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(service) = &self.service {
            write!(f, "{} ", plain(service))?;
        }
        f.write_str(&self.text())
    }
}

/// The identities of both ends of a flow, as `explain` and `drops` print them; `None` if neither is known.
///
/// ```
/// use identity::{EndIdentity, ReservedIdentity, identities_of_flow};
///
/// let world = EndIdentity::reserved(ReservedIdentity::World, None);
/// assert_eq!(identities_of_flow(Some(&world), None).as_deref(), Some("identities: world -> unknown"));
/// assert_eq!(identities_of_flow(None, None), None);
/// ```
pub fn identities_of_flow(source: Option<&EndIdentity>, destination: Option<&EndIdentity>) -> Option<String> {
    let word = |identity: Option<&EndIdentity>| identity.map_or("unknown".into(), EndIdentity::to_string);
    let is_any_known = source.is_some() || destination.is_some();
    is_any_known.then(|| format!("identities: {} -> {}", word(source), word(destination)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_identity_has_these_bytes() {
        let sid = EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop/front".into());
        let init = EndIdentity::reserved(ReservedIdentity::Init, Some("shop".into()));
        for (identity, json, text) in [
            (
                sid,
                r#"{"service":"shop/front","sid":"rdsrexpux6y4o","num":213703,"state":null}"#,
                "shop/front rdsrexpux6y4o",
            ),
            (init, r#"{"service":"shop","sid":null,"num":5,"state":"init"}"#, "shop init"),
        ] {
            assert_eq!(serde_json::to_string(&identity).unwrap(), json);
            assert_eq!(serde_json::from_str::<EndIdentity>(json).unwrap(), identity);
            assert_eq!(identity.to_string(), text);
        }
    }
}
