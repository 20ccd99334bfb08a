//! Roles of chains and sets. A role has the fixed name of its chain or set, or the prefix of its names, and is parsed
//! from a name. Rules about chains and sets are matches on the role; no other module looks into a name.

mod chain;
mod set;

pub(super) use chain::{ChainRole, PortChain};
pub(super) use set::{DecidedKind, Effect, PortOwner, SetRole};

use nft::{Name, Ruleset};

/// The role of a chain or set whose name is being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRole {
    Chain(ChainRole),
    Set(SetRole),
}

impl NameRole {
    /// The part of the name before the first slash.
    pub(super) fn prefix(self) -> String {
        match self {
            NameRole::Chain(role) => role.prefix(),
            NameRole::Set(role) => role.prefix(),
        }
    }

    /// Whether the name parses to this role.
    pub(super) fn is_of(self, name: &Name) -> bool {
        match self {
            NameRole::Chain(role) => ChainRole::of(name) == role,
            NameRole::Set(role) => SetRole::of(name) == role,
        }
    }
}

impl From<ChainRole> for NameRole {
    fn from(role: ChainRole) -> NameRole {
        NameRole::Chain(role)
    }
}

impl From<SetRole> for NameRole {
    fn from(role: SetRole) -> NameRole {
        NameRole::Set(role)
    }
}

/// Names of chains and sets in the ruleset that have no role. Empty for every ruleset of the translator.
pub fn names_without_role(ruleset: &Ruleset) -> Vec<Name> {
    let chains = ruleset.chains.keys().filter(|name| ChainRole::of(name) == ChainRole::Foreign);
    let sets = ruleset.sets.keys().filter(|name| SetRole::of(name) == SetRole::Foreign);
    chains.chain(sets).cloned().collect()
}

/// The part of a name before its first slash.
fn head(name: &Name) -> Option<&str> {
    name.as_str().split_once('/').map(|(head, _)| head)
}
