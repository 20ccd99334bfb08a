//! Applies a change as the agent does, without the agent: from the state to the kernel, in a private namespace.

use std::time::{Duration, Instant};

use nfnetlink::Kernel;
use nft::{Operation, Ruleset, create, difference};
use policy::{Change, ClusterState, Generation, Layout, Translator};

use generator::cluster::NODE;
use kit::netns::in_new_namespace;

/// Arbitrary; the group has no listener here.
const LOG_GROUP: u16 = 5;

pub(super) struct Committer {
    state: ClusterState,
    translator: Translator,
    approving: Generation,
    live: Ruleset,
    kernel: Kernel,
    generation: u32,
}

/// The outcome of a change.
pub(super) struct ChangeOutcome {
    /// From the change to the kernel's acknowledgement, or until it is clear that no commit is needed.
    pub(super) took: Duration,
    /// The commit in it; `None` if no rule changed.
    pub(super) commit: Option<Duration>,
    pub(super) operations: Vec<Operation>,
}

impl Committer {
    /// Commits the rules of the state to the kernel.
    pub(super) fn new(state: ClusterState) -> Committer {
        let layout = Layout::for_table("ringfence").expect("a name").logging_to(Some(LOG_GROUP));
        let approving = layout.first_generation();
        let mut translator = Translator::new(NODE, layout);
        translator.begin(&state);
        let live = translator.translation().ruleset.in_first_generation();
        let (kernel, generation) = table_of(&live);
        Committer { state, translator, approving, live, kernel, generation }
    }

    pub(super) fn take(&mut self, change: Change) -> ChangeOutcome {
        let begun = Instant::now();
        let changed = self.state.apply(change);
        self.translator.update(&self.state, &changed);
        let draft = self.translator.translation().ruleset;
        if draft.narrows(&self.live) {
            self.approving = self.approving.next();
        }
        let wanted = draft.stamp(self.approving);
        let operations = difference(&self.live, &wanted);
        if operations.is_empty() {
            return ChangeOutcome { took: begun.elapsed(), commit: None, operations };
        }
        let translated = begun.elapsed();
        self.generation = self.kernel.commit(&operations, self.generation).expect("the kernel takes it").generation;
        let took = begun.elapsed();
        self.live = wanted;
        ChangeOutcome { took, commit: Some(took - translated), operations }
    }

    pub(super) fn elements(&self) -> usize {
        self.live.element_count()
    }
}

/// The same table in another namespace, to which the bare operations are committed.
pub(super) struct Floor {
    kernel: Kernel,
    generation: u32,
}

impl Floor {
    pub(super) fn like(committer: &Committer) -> Floor {
        let (kernel, generation) = table_of(&committer.live);
        Floor { kernel, generation }
    }

    pub(super) fn commit(&mut self, operations: &[Operation]) -> Duration {
        let begun = Instant::now();
        self.generation = self.kernel.commit(operations, self.generation).expect("the kernel takes it").generation;
        begun.elapsed()
    }
}

/// The table in a new namespace, which lives as long as the socket.
fn table_of(ruleset: &Ruleset) -> (Kernel, u32) {
    in_new_namespace(|| {
        let mut kernel = Kernel::open().expect("nf_tables, as root");
        let generation = kernel.generation().expect("the generation");
        let generation = kernel.commit(&create(ruleset), generation).expect("the first commit").generation;
        (kernel, generation)
    })
}
