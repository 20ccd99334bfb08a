//! Refusals of the kernel and of the validation: the refused operations are left out of the rules, denied, and
//! retried later.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nfnetlink::{CommitError, Refusal};
use nft::{Hook, InvalidPart, Match, Name, Operation, TableFamily};
use nix::net::if_::if_nametoindex;
use pacing::Backoff;
use policy::{Translation, Translator};

use super::Enforcer;

/// A transaction that exceeds the size limit loses at least this fraction per round (1 in 16), so that `MOST_ROUNDS`
/// suffices even for a transaction many times the limit.
const PART_LEFT_OUT: usize = 16;

/// Backoff until the parts that were left out are retried; doubles up to the second value, since a refused commit costs
/// the kernel more than a successful one.
pub(super) const FIRST_TRIAL: Duration = Duration::from_secs(30);
pub(super) const LAST_TRIAL: Duration = Duration::from_secs(1800);

/// Errors of a kernel that does not support tables of family `netdev` or `bridge`, or rules in them.
const UNSUPPORTED: [i32; 4] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::EINVAL];

/// Operations that the kernel or the validation refused, with their errors, and the time of the next retry.
#[derive(Default)]
pub(super) struct LeftOut {
    pub(super) parts: Vec<(Operation, String)>,
    pub(super) trial: Option<(Instant, Backoff)>,
}

impl Enforcer {
    /// Leaves out the refused parts; returns whether any can be left out.
    pub(super) fn leave_out(
        &mut self,
        translator: &mut Translator,
        translation: &mut Translation,
        error: &CommitError,
    ) -> bool {
        let CommitError::Refused { refusals, .. } = error else { return false };
        let mut any = false;
        for refusal in refusals {
            let Some(operation) = &refusal.operation else { continue };
            if refuses_edge(refusal) {
                self.fall_back(translator, translation, refusal);
                return true;
            }
            if refuses_route(refusal) {
                self.assume_hooks_of_bridge(translator, translation, refusal);
                return true;
            }
            if let Some(chain) = ended_port(translation, refusal) {
                self.ended_ports.insert(chain.clone());
                tracing::info!("the interface of chain {chain} was removed; its chain is left out: {refusal}");
                any = true;
                continue;
            }
            if is_needed(refusal) {
                continue;
            }
            if remove_refused(translation, operation) {
                any = true;
                tracing::error!("left out of the rules and denied: {refusal}");
                self.left_out.parts.push((operation.clone(), refusal.to_string()));
            }
        }
        if any {
            self.plan_trial();
        }
        any
    }

    /// Leaves out the invalid parts of the policies' table; returns whether any can be left out. As for refusals of a
    /// kernel that supports the family, the previous rules stay in force if another table is invalid.
    pub(super) fn leave_out_invalid(&mut self, translation: &mut Translation, invalid: &[InvalidPart]) -> bool {
        let mut any = false;
        for part in invalid.iter().filter(|part| part.operation.table().family == TableFamily::Inet) {
            if remove_refused(translation, &part.operation) {
                any = true;
                tracing::error!("left out of the rules and denied: {part}");
                self.left_out.parts.push((part.operation.clone(), part.to_string()));
            }
        }
        if any {
            self.plan_trial();
        }
        any
    }

    /// Moves the source checks to the prerouting hooks.
    fn fall_back(&mut self, translator: &mut Translator, translation: &mut Translation, refusal: &Refusal) {
        tracing::error!(
            "the kernel refused chains at the ingress hook of interfaces; falling back to the prerouting hooks, which \
             do not see ARP of routed pods: {refusal}"
        );
        translator.check_at_prerouting();
        *translation = self.translation(translator);
    }

    /// Omits the rules by which isolated pods exchange no packets that the hooks of IP have not seen.
    fn assume_hooks_of_bridge(
        &mut self,
        translator: &mut Translator,
        translation: &mut Translation,
        refusal: &Refusal,
    ) {
        tracing::error!(
            "the kernel cannot match packets without a route (CONFIG_IP_ROUTE_CLASSID); if a bridge stops calling the \
             hooks of IP (bridge-nf-call-iptables), its pods are not isolated from each other: {refusal}"
        );
        translator.assume_hooks_of_bridge();
        *translation = self.translation(translator);
    }

    /// Leaves out the largest sets and chains of a transaction that exceeds the limit; returns whether any can be left
    /// out.
    pub(super) fn leave_out_largest(&mut self, translation: &mut Translation, operations: &[Operation]) -> bool {
        let total: usize = operations.iter().map(Operation::weight).sum();
        let mut left_out = 0;
        for (weight, part) in parts_by_weight(operations) {
            if left_out * PART_LEFT_OUT >= total && left_out > 0 {
                break;
            }
            if remove_refused(translation, &part) {
                left_out += weight;
                let reason = format!("the transaction exceeds the size limit, and `{part}` is among its largest parts");
                tracing::error!(weight, "left out of the rules and denied: {reason}");
                self.left_out.parts.push((part, reason));
            }
        }
        if left_out > 0 {
            self.plan_trial();
        }
        left_out > 0
    }

    fn plan_trial(&mut self) {
        let first = || Backoff::new(FIRST_TRIAL, LAST_TRIAL);
        let mut backoff = self.left_out.trial.take().map_or_else(first, |(_, backoff)| backoff);
        self.left_out.trial = Some((Instant::now() + backoff.wait_exactly(), backoff));
    }
}

/// Removes the refused part from the translation; returns whether that is possible. Without the table of family
/// `bridge` a node still enforces every policy, but not the source addresses of bridged pods.
pub(super) fn remove_refused(translation: &mut Translation, refused: &Operation) -> bool {
    match refused.table().family {
        TableFamily::Inet => translation.ruleset.leave_out(refused),
        TableFamily::Bridge => translation.bridge.take().is_some(),
        TableFamily::Netdev => false,
    }
}

/// Whether the operation is of the table of family `bridge`, which the kernel supports: without the table, isolated pods
/// would receive frames that are not sent to their addresses. The previous rules stay in force instead.
fn is_needed(Refusal { operation, errno, .. }: &Refusal) -> bool {
    // Without the family or its chain type, the parts of the table are not found.
    let lacks_bridges = *errno == libc::ENOENT || UNSUPPORTED.contains(errno);
    operation.as_ref().is_some_and(|operation| operation.table().family == TableFamily::Bridge) && !lacks_bridges
}

/// Whether the kernel lacks chains at interfaces altogether, rather than refusing this one chain.
fn refuses_edge(refusal: &Refusal) -> bool {
    let Some(operation) = refusal.operation.as_ref().filter(|o| o.table().family == TableFamily::Netdev) else {
        return false;
    };
    match operation {
        // A kernel without this chain type returns the same error as for a missing interface.
        Operation::AddChain { hook: Some(Hook::Ingress(interface)), .. } if refusal.errno == libc::ENOENT => {
            if_nametoindex(interface.as_str()).is_ok()
        }
        _ => UNSUPPORTED.contains(&refusal.errno),
    }
}

/// Whether the kernel lacks the match on packets with a route.
fn refuses_route(refusal: &Refusal) -> bool {
    let Some(Operation::AddRule { rule, .. }) = &refusal.operation else { return false };
    rule.matches.contains(&Match::HasRoute) && UNSUPPORTED.contains(&refusal.errno)
}

/// Removes the chain of an interface that no longer exists, and returns its name.
fn ended_port(translation: &mut Translation, refusal: &Refusal) -> Option<Name> {
    let Some(Operation::AddChain { table, chain, hook: Some(Hook::Ingress(_)) }) = &refusal.operation else {
        return None;
    };
    let edge = translation.edge.as_mut().filter(|edge| edge.table == *table && refusal.errno == libc::ENOENT)?;
    edge.chains.remove(chain).map(|_| chain.clone())
}

/// The sets and chains of the `inet` table that these operations fill, as the operations that would create them, the
/// largest first.
fn parts_by_weight(operations: &[Operation]) -> Vec<(usize, Operation)> {
    let mut parts: BTreeMap<(bool, &Name), (usize, Operation)> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.table().family == TableFamily::Inet) {
        let (key, create) = match operation {
            Operation::AddElements { table, name, set, elements: _ } => {
                let (table, set) = (table.clone(), set.clone());
                ((true, name), Operation::AddSet { table, name: name.clone(), set })
            }
            Operation::AddRule { table, chain, rule: _ } => {
                ((false, chain), Operation::AddChain { table: table.clone(), chain: chain.clone(), hook: None })
            }
            Operation::AddTable { .. }
            | Operation::DeleteTable { .. }
            | Operation::AddChain { .. }
            | Operation::FlushChain { .. }
            | Operation::DeleteChain { .. }
            | Operation::AddSet { .. }
            | Operation::DeleteSet { .. }
            | Operation::DeleteElements { .. } => continue,
        };
        parts.entry(key).or_insert((0, create)).0 += operation.weight();
    }
    let mut parts: Vec<(usize, Operation)> = parts.into_values().collect();
    // The sort is stable: parts of equal weight stay sorted by name.
    parts.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    parts
}
