//! Grants: which user or group may read which scope.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::Principal;
use crate::{declared, identity, remote};

/// What can be granted: a feed with all its resources, the metrics, the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    Identity,
    PolicyEdges,
    RemoteSets,
    Metrics,
    Status,
}

impl Scope {
    pub(crate) const ALL: [Scope; 5] =
        [Scope::Identity, Scope::PolicyEdges, Scope::RemoteSets, Scope::Metrics, Scope::Status];

    /// As in `--allow`, which is also the first segment of its paths.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Scope::Identity => identity::FEED,
            Scope::PolicyEdges => declared::FEED,
            Scope::RemoteSets => remote::FEED,
            Scope::Metrics => "metrics",
            Scope::Status => "status",
        }
    }

    /// The scope of a path; `None` if nothing is served there.
    pub(super) fn of_path(path: &str) -> Option<Scope> {
        let first = path.strip_prefix('/')?.split('/').next()?;
        Scope::ALL.into_iter().find(|scope| scope.name() == first)
    }

    /// Whether the path is for probes, which everyone may send.
    pub(super) fn is_open(path: &str) -> bool {
        matches!(path, "/healthz" | "/readyz")
    }
}

/// Who may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    User(String),
    Group(String),
}

impl Subject {
    fn is(&self, principal: &Principal) -> bool {
        match self {
            Subject::User(name) => *name == principal.user,
            Subject::Group(name) => principal.groups.contains(name),
        }
    }
}

/// `SCOPE=user:NAME` or `SCOPE=group:NAME`; the scope `*` stands for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    scopes: Vec<Scope>,
    subject: Subject,
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Grant, String> {
        let expected = "expected SCOPE=user:NAME or SCOPE=group:NAME";
        let (scope, subject) = text.split_once('=').ok_or(expected)?;
        let scopes = match scope {
            "*" => Scope::ALL.to_vec(),
            name => match Scope::ALL.into_iter().find(|scope| scope.name() == name) {
                Some(scope) => vec![scope],
                None => {
                    let names = Scope::ALL.map(Scope::name).join(", ");
                    return Err(format!("unknown scope '{name}': expected one of {names}, or *"));
                }
            },
        };
        let subject = match subject.split_once(':') {
            Some(("user", name)) if !name.is_empty() => Subject::User(name.to_owned()),
            Some(("group", name)) if !name.is_empty() => Subject::Group(name.to_owned()),
            Some(_) | None => return Err(expected.to_owned()),
        };
        Ok(Grant { scopes, subject })
    }
}

/// All grants, by scope. A scope for which none is given is granted to a default subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grants(BTreeMap<Scope, Vec<Subject>>);

impl Grants {
    pub(crate) fn new(given: &[Grant], default: Subject) -> Grants {
        let of_scope = |scope: Scope| {
            let granted = given.iter().filter(|grant| grant.scopes.contains(&scope));
            let mut subjects: Vec<Subject> = granted.map(|grant| grant.subject.clone()).collect();
            if subjects.is_empty() {
                subjects.push(default.clone());
            }
            (scope, subjects)
        };
        Grants(Scope::ALL.into_iter().map(of_scope).collect())
    }

    pub(crate) fn allows(&self, scope: Scope, principal: &Principal) -> bool {
        self.0.get(&scope).is_some_and(|subjects| subjects.iter().any(|subject| subject.is(principal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(user: &str, groups: &[&str]) -> Principal {
        Principal { user: user.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect() }
    }

    fn grants(given: &[&str]) -> Grants {
        let given: Vec<Grant> = given.iter().map(|grant| grant.parse().unwrap()).collect();
        Grants::new(&given, Subject::Group("default".into()))
    }

    #[test]
    fn grant_replaces_the_default_of_its_scope() {
        let grants = grants(&["remote-sets=user:system:serviceaccount:ringfence:ringfence", "metrics=group:scrapers"]);
        let agent = principal("system:serviceaccount:ringfence:ringfence", &["default"]);
        let other = principal("other", &["default", "scrapers"]);
        for (scope, allows_agent, allows_other) in [
            (Scope::RemoteSets, true, false),
            (Scope::Metrics, false, true),
            (Scope::Identity, true, true),
            (Scope::PolicyEdges, true, true),
            (Scope::Status, true, true),
        ] {
            let allowed = (grants.allows(scope, &agent), grants.allows(scope, &other));
            assert_eq!(allowed, (allows_agent, allows_other), "{}", scope.name());
        }
    }

    #[test]
    fn star_grants_every_scope() {
        let grants = grants(&["*=user:admin", "metrics=user:scraper"]);
        let (admin, scraper) = (principal("admin", &[]), principal("scraper", &["default"]));
        assert!(Scope::ALL.into_iter().all(|scope| grants.allows(scope, &admin)));
        let of_scraper: Vec<Scope> = Scope::ALL.into_iter().filter(|scope| grants.allows(*scope, &scraper)).collect();
        assert_eq!(of_scraper, [Scope::Metrics]);
    }

    #[test]
    fn user_is_not_a_group_of_its_name() {
        let grants = grants(&["metrics=group:a", "status=user:b"]);
        assert!(!grants.allows(Scope::Metrics, &principal("a", &[])));
        assert!(!grants.allows(Scope::Status, &principal("x", &["b"])));
    }

    #[test]
    fn invalid_grants_are_refused() {
        for bad in ["", "metrics", "metrics=", "metrics=user:", "metrics=x:y", "metric=user:x", "=user:x"] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
        assert!("metric=user:x".parse::<Grant>().unwrap_err().contains("remote-sets"));
    }

    #[test]
    fn scope_follows_from_the_first_segment() {
        assert_eq!(Scope::of_path("/identity/download"), Some(Scope::Identity));
        assert_eq!(Scope::of_path("/metrics"), Some(Scope::Metrics));
        for none in ["/", "", "/identityx/download", "//identity/download", "/healthz/x"] {
            assert_eq!(Scope::of_path(none), None, "{none}");
        }
        assert!(Scope::is_open("/readyz") && !Scope::is_open("/readyz/") && !Scope::is_open("/status"));
    }
}
