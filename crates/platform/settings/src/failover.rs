//! Settings of jobs whose controller is lost.

use crate::{Kind, Setting};

/// Whether a job outlives its controller.
pub const SUCCESSOR: Setting = Setting {
    name: "MEND_SUCCESSOR",
    kind: Kind::Choice(&["on", "off"]),
    default: "on",
    meaning: "Whether another process takes the controller's place when mend run is killed or its machine is lost (on), on one of the job's nodes that share the job's directory, or the job ends then (off). A job on this machine alone, or in a batch job, ends at any rate.",
};
