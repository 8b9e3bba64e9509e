//! An allocation as it is written down for a successor of the controller, which is on another node of it and has not the environment of the batch script.

use crate::record::BatchRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a controller's successor, on another node, has to know of the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchLife {
    /// The batch system's name.
    pub(crate) system: String,
    /// By which its commands know the batch job.
    pub(crate) variables: BTreeMap<String, String>,
    /// Name, address and slots of each node.
    pub(crate) nodes: Vec<(String, String, u32)>,
    /// Of the daemons, by node.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Where the job stands in the batch job.
    pub(crate) place: BatchRecord,
}
