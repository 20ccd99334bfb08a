//! The policies' ruleset as the translator makes it, before it has a generation.

use std::sync::Arc;

use nft::{Operation, Ruleset, Table};

use super::dispatch::complete;
use super::generation::Generation;
use super::layout::{Layout, narrows};
use super::leave_out::leave_out;

/// The table of family `inet` without a generation: it lacks the rules that dispatch to the programs and that approve
/// flows, and cannot be committed. [`DraftRuleset::stamp`] adds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftRuleset {
    incomplete: Ruleset,
    layout: Arc<Layout>,
}

impl DraftRuleset {
    pub(super) fn new(incomplete: Ruleset, layout: Arc<Layout>) -> DraftRuleset {
        DraftRuleset { incomplete, layout }
    }

    /// The complete ruleset, which approves flows in this generation.
    pub fn stamp(&self, generation: Generation) -> Ruleset {
        complete(self.incomplete.clone(), &self.layout, generation)
    }

    /// The complete ruleset in the first generation, for uses other than a commit to a kernel that may have flows.
    pub fn in_first_generation(&self) -> Ruleset {
        self.stamp(self.layout.first_generation())
    }

    /// Removes what the refused operation of the complete ruleset would have added. Returns whether anything could be
    /// removed: as little as possible, and so that whatever depends on it is denied.
    pub fn leave_out(&mut self, refused: &Operation) -> bool {
        leave_out(&mut self.incomplete, refused)
    }

    /// Number of elements in all sets and maps, which a generation does not change.
    pub fn element_count(&self) -> usize {
        self.incomplete.element_count()
    }

    /// Family and name of the table.
    pub fn table(&self) -> &Table {
        &self.incomplete.table
    }

    /// The settings that it was made by.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether it may deny a flow that the ruleset in force allows, so that the generation must advance. A false
    /// positive only costs every flow another verdict.
    pub fn narrows(&self, in_force: &Ruleset) -> bool {
        narrows(in_force, &self.incomplete)
    }
}
