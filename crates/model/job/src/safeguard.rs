//! What keeps a job from harm, by name, so that the simulator can take one out and must find the harm. Outside of it all are in.

use serde::{Deserialize, Serialize};

mend_coordination::safeguards! {
    /// What a node says of a rank counts only if the rank is placed there.
    AtHome,
    /// What is said of an earlier process of a rank is not taken for its present one.
    EarlierProcessesAreIgnored,
    /// The copy that a migration left behind is killed when the other takes its place.
    SourceGoes,
    /// What a failed migration built on its target is killed.
    TargetGoes,
    /// A rank that is gone is waited for no more.
    LostRanksAreTold,
    /// An agent that does not answer in time counts as failed.
    SilenceIsFailure,
    /// A target node that is lost ends the migration.
    LostTargetsAreTold,
    /// Who waits when the job ends is told.
    NobodyIsLeftWaiting,
    /// All nodes are told when the job ends.
    NodesAreEnded,
    /// It is over only when every node has ended its ranks, or had its time.
    EndIsAwaited,
    /// What a failed checkpoint wrote is removed.
    UnfinishedGoes,
    /// An image that could not be written fails its checkpoint.
    WritesAreChecked,
    /// No number of a checkpoint is given twice.
    NumbersAreNew,
    /// A checkpoint builds only on one that is still good.
    BasesAreChecked,
    /// One operation at a time.
    OneAtATime,
    /// The end of standard input reaches a rank that was being copied when it came.
    EndOfInputMoves,
    /// Of several ranks that move, one at a time stands still.
    OneStopsAtATime,
    /// Checkpoints are not removed while they are being merged.
    RemovalWaits,
    /// Restored ranks go on only when all are complete.
    AllOrNone,
    /// Ranks that wait for lost messages do not wait for ever.
    LossesEndTheJob,
    /// A loss that mended itself since is none.
    OldLossesAreForgotten,
    /// A periodic checkpoint that fails because the job ends is not told as a failure.
    EndsAreNoFailures,
    /// A signal that is not obeyed ends the job.
    SignalsAreObeyed,
    /// A restart goes where the job ran last, not where its checkpoint was taken.
    LastRunComesFirst,
    /// A spare that is dead keeps no job from beginning.
    DeadSparesAreLeftOut,
    /// Hosts that were lost are not waited for when all others are there.
    LostHostsAreNotAwaited,
    /// Where a checkpoint proves unusable, an older one is taken.
    OlderOnesWillDo,
    /// Input comes back only from the process that moved away, not from one that was built in vain.
    OnlyTheSourceLeavesInput,
    /// Input that is lost with the node that a rank left is given to the rank again.
    LostInputIsGivenAgain,
    /// No image is taken of rank 0 before the node that it left has told what it was not given of standard input.
    LeftInputIsAwaited,
    /// A rank does not move to a node that has too little memory for it.
    RanksGoWhereTheyFit,
    /// A rank does not move to a node, or begin again on one, whose processor lacks what it may be using.
    ProcessorsAreCompared,
    /// A rank does not move to a node whose files or kernel are not those that it uses.
    FilesAreCompared,
    /// No rank goes to a node that ranks are to leave.
    UnfitNodesTakeNone,
    /// No rank that is to leave its node goes to one that is drained.
    DrainedNodesAreAvoided,
    /// A job begins on no host that ranks are to leave, unless it is named or there is no other.
    UnfitHostsAreLeftOut,
    /// Ranks that did not get away from a node are tried again.
    LeaversAreTriedAgain,
    /// A rank does not go back to where it went back from, nor again and again.
    NothingGoesToAndFro,
    /// What decides where a rank runs is durable before it runs there.
    MovesAreDurable,
    /// That a job is to end is durable before whoever wants that is told so.
    KillsAreDurable,
    /// What daemons may forget is durable.
    ForgottenIsDurable,
    /// A node that has had orders which are not known is lost.
    UnknownOrdersAreALoss,
    /// Checkpoints that can't be listed for a moment are kept.
    UnseenIsNotGone,
    /// When the time is up, no checkpoint builds on one that goes with the nodes.
    LastOneOutlivesNodes,
    /// Ranks stand still at the end of a life only if another one follows.
    PausesAreForALife,
}

/// Those that are in, for machines that are not the job's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    #[cfg(feature = "sabotage")]
    without: Option<Safeguard>,
}

impl Kept {
    /// All but this one.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn without(safeguard: Option<Safeguard>) -> Self {
        Self { without: safeguard }
    }

    /// True unless the simulator took it out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn keeps(self, safeguard: Safeguard) -> bool {
        self.without != Some(safeguard)
    }

    /// True: only the simulator takes safeguards out.
    #[cfg(not(feature = "sabotage"))]
    #[must_use]
    pub const fn keeps(self, _safeguard: Safeguard) -> bool {
        true
    }
}
