//! Grants: which user or group may read which scope.

use std::collections::BTreeMap;

use super::Principal;

/// A unit of authorization: a feed with all its resources, the metrics, the status. Several
/// adjacent scopes may share a name; they are granted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantScope {
    /// Name in `--allow`.
    pub name: &'static str,
    /// The first segment of its paths.
    pub segment: &'static str,
}

impl GrantScope {
    /// The scope of a path; `None` if the path has no route.
    pub(super) fn of_path(scopes: &[GrantScope], path: &str) -> Option<GrantScope> {
        let first = path.strip_prefix('/')?.split('/').next()?;
        scopes.iter().copied().find(|scope| scope.segment == first)
    }

    /// Whether the path is that of a health probe, which needs no authentication.
    pub(super) fn is_open(path: &str) -> bool {
        matches!(path, "/healthz" | "/readyz")
    }
}

/// Holder of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantSubject {
    User(String),
    Group(String),
}

impl GrantSubject {
    fn is(&self, principal: &Principal) -> bool {
        match self {
            GrantSubject::User(name) => *name == principal.user,
            GrantSubject::Group(name) => principal.groups.contains(name),
        }
    }
}

/// A parsed `SCOPE=user:NAME` or `SCOPE=group:NAME`; the scope `*` means all scopes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    scopes: Vec<GrantScope>,
    subject: GrantSubject,
}

impl Grant {
    /// Parses a grant of one of these scopes.
    ///
    /// # Errors
    /// If the text is not a valid grant; the message has the expected format.
    pub fn parse(text: &str, scopes: &[GrantScope]) -> Result<Grant, String> {
        let expected = "expected SCOPE=user:NAME or SCOPE=group:NAME";
        let (scope, subject) = text.split_once('=').ok_or(expected)?;
        let named: Vec<GrantScope> = match scope {
            "*" => scopes.to_vec(),
            name => scopes.iter().copied().filter(|scope| scope.name == name).collect(),
        };
        if named.is_empty() {
            let mut names: Vec<&str> = scopes.iter().map(|scope| scope.name).collect();
            names.dedup();
            return Err(format!("unknown scope '{scope}': expected one of {}, or *", names.join(", ")));
        }
        let subject = match subject.split_once(':') {
            Some(("user", name)) if !name.is_empty() => GrantSubject::User(name.to_owned()),
            Some(("group", name)) if !name.is_empty() => GrantSubject::Group(name.to_owned()),
            Some(_) | None => return Err(expected.to_owned()),
        };
        Ok(Grant { scopes: named, subject })
    }
}

/// All grants, by scope. A scope without a configured grant is granted to a default subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants(BTreeMap<GrantScope, Vec<GrantSubject>>);

impl Grants {
    /// The grants of all scopes.
    pub fn new(given: &[Grant], scopes: &[GrantScope], default: GrantSubject) -> Grants {
        let of_scope = |scope: GrantScope| {
            let granted = given.iter().filter(|grant| grant.scopes.contains(&scope));
            let mut subjects: Vec<GrantSubject> = granted.map(|grant| grant.subject.clone()).collect();
            if subjects.is_empty() {
                subjects.push(default.clone());
            }
            (scope, subjects)
        };
        Grants(scopes.iter().copied().map(of_scope).collect())
    }

    /// Whether a scope is granted to a client.
    pub fn allows(&self, scope: GrantScope, principal: &Principal) -> bool {
        self.0.get(&scope).is_some_and(|subjects| subjects.iter().any(|subject| subject.is(principal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn scope(name: &'static str) -> GrantScope {
        GrantScope { name, segment: name }
    }

    const SCOPES: &[GrantScope] =
        &[scope("identity"), scope("policy-edges"), scope("remote-sets"), scope("metrics"), scope("status")];

    fn principal(user: &str, groups: &[&str]) -> Principal {
        Principal { user: user.into(), groups: groups.iter().map(|group| (*group).to_owned()).collect(), node: None }
    }

    fn grants(given: &[&str]) -> Grants {
        let given: Vec<Grant> = given.iter().map(|grant| Grant::parse(grant, SCOPES).unwrap()).collect();
        Grants::new(&given, SCOPES, GrantSubject::Group("default".into()))
    }

    #[test]
    fn grant_replaces_the_default_of_its_scope() {
        let grants = grants(&["remote-sets=user:system:serviceaccount:ringfence:ringfence", "metrics=group:scrapers"]);
        let agent = principal("system:serviceaccount:ringfence:ringfence", &["default"]);
        let other = principal("other", &["default", "scrapers"]);
        for (of, allows_agent, allows_other) in [
            (scope("remote-sets"), true, false),
            (scope("metrics"), false, true),
            (scope("identity"), true, true),
            (scope("policy-edges"), true, true),
            (scope("status"), true, true),
        ] {
            let allowed = (grants.allows(of, &agent), grants.allows(of, &other));
            assert_eq!(allowed, (allows_agent, allows_other), "{}", of.name);
        }
    }

    #[test]
    fn star_grants_every_scope() {
        let grants = grants(&["*=user:admin", "metrics=user:scraper"]);
        let (admin, scraper) = (principal("admin", &[]), principal("scraper", &["default"]));
        assert!(SCOPES.iter().copied().all(|scope| grants.allows(scope, &admin)));
        let of_scraper: Vec<GrantScope> =
            SCOPES.iter().copied().filter(|scope| grants.allows(*scope, &scraper)).collect();
        assert_eq!(of_scraper, [scope("metrics")]);
    }

    #[test]
    fn user_is_not_a_group_of_its_name() {
        let grants = grants(&["metrics=group:a", "status=user:b"]);
        assert!(!grants.allows(scope("metrics"), &principal("a", &[])));
        assert!(!grants.allows(scope("status"), &principal("x", &["b"])));
    }

    #[test]
    fn invalid_grants_are_refused() {
        for bad in ["", "metrics", "metrics=", "metrics=user:", "metrics=x:y", "metric=user:x", "=user:x"] {
            assert!(Grant::parse(bad, SCOPES).is_err(), "{bad}");
        }
        assert!(Grant::parse("metric=user:x", SCOPES).unwrap_err().contains("remote-sets"));
    }

    #[test]
    fn scope_follows_from_the_first_segment() {
        assert_eq!(GrantScope::of_path(SCOPES, "/identity/download"), Some(scope("identity")));
        assert_eq!(GrantScope::of_path(SCOPES, "/metrics"), Some(scope("metrics")));
        for none in ["/", "", "/identityx/download", "//identity/download", "/healthz/x"] {
            assert_eq!(GrantScope::of_path(SCOPES, none), None, "{none}");
        }
        assert!(GrantScope::is_open("/readyz") && !GrantScope::is_open("/readyz/") && !GrantScope::is_open("/status"));
    }

    #[test]
    fn scopes_of_one_name_are_granted_together() {
        let scopes =
            &[scope("push"), GrantScope { name: "api", segment: "a" }, GrantScope { name: "api", segment: "b" }];
        let grant = Grant::parse("api=user:x", scopes).unwrap();
        let grants = Grants::new(&[grant], scopes, GrantSubject::Group("default".into()));
        let x = principal("x", &[]);
        assert_eq!(scopes.map(|scope| grants.allows(scope, &x)), [false, true, true]);
        let unknown = Grant::parse("other=user:x", scopes).unwrap_err();
        assert_eq!(unknown, "unknown scope 'other': expected one of push, api, or *");
    }
}
