//! What keeps ranks and their controller from harm on a node, by name, so that the simulator can take one out and must find the harm. Outside of
//! it all are in.

mend_coordination::safeguards! {
    /// The ranks end when the lease is over.
    LeasesEndRanks,
    /// What is said by or of an earlier process of a rank is not taken for its present one.
    EarlierProcessesAreIgnored,
    /// The process of a rank that is discarded is killed.
    DiscardedProcessesEnd,
}
