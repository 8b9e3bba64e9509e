//! What keeps ranks and their controller from harm on a node, by name, so that the simulator can take one out and must find the harm. Outside of
//! it all are in.

mend_coordination::safeguards! {
    /// The ranks end when the lease is over.
    LeasesEndRanks,
    /// What is said by or of an earlier process of a rank is not taken for its present one.
    EarlierProcessesAreIgnored,
    /// The process of a rank that is discarded is killed.
    DiscardedProcessesEnd,
    /// A rank whose process stands still here goes back in place: no other one is begun beside it.
    StandingRanksGoBack,
    /// A rank that cannot go back in place is restored anew.
    RefusersBeginAnew,
    /// What the agent of a process says that could not go back is not about the rank's next process.
    RefusalsAreOfOneProcess,
    /// When the connection to the controller is closed a successor is started.
    LostControllersAreSucceeded,
    /// When the controller was silent for half of the lease a successor is started.
    SilentControllersAreSucceeded,
    /// Once a successor was started ranks have all of their lease.
    SuccessorsHaveTheLease,
}
