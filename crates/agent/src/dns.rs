//! Learns the addresses of domain names from the DNS answers that the node forwards to pods whose cluster policies have
//! domain names.
//!
//! A thread receives the copied answers (`AnswerReader`), follows TCP connections (`connections`, `stream`) and decodes
//! answers (`answer`). The event loop publishes for which pods the committed rules copy (`DnsClients`), decides which
//! resolvers are trusted (`Resolvers`) and keeps the addresses until they expire (`LearnedTable`). Nothing here decides
//! about a packet: rules about names match learned addresses only.

pub mod answer;
mod clients;
pub mod connections;
mod reader;
mod resolvers;
mod saved;
pub mod stream;
mod table;

pub(crate) use clients::DnsClients;
pub(crate) use reader::{AnswerReader, CopiedAnswer};
pub(crate) use resolvers::{DEFAULT_PODS, DEFAULT_RESOLVER, ResolverPods, Resolvers};
pub(crate) use saved::{SAVES_APART, SavedNames};
pub(crate) use table::{
    LearnOutcome, LearnedTable, Lifetimes, MOST_ADDRESSES, MOST_ADDRESSES_BELOW_WILDCARDS, MOST_ADDRESSES_OF_NAME,
    NameMatch,
};
