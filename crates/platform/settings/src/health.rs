//! Settings of what a node's daemon watches. They are read by mendd, from its own environment.

use crate::{Kind, Setting};

/// Whether it watches at all.
pub const HEALTH: Setting = Setting {
    name: "MEND_HEALTH",
    kind: Kind::Choice(&["on", "off"]),
    default: "on",
    meaning: "on: mendd watches its node, and ranks leave it before it fails (docs/health.md). off: it does not. The daemon that `mend run` starts on a single machine does not watch unless this is set: there is no other node.",
};
/// How often cheap sensors are read.
pub const HEALTH_INTERVAL: Setting = Setting {
    name: "MEND_HEALTH_INTERVAL_MS",
    kind: Kind::Number { min: 100, max: 3_600_000 },
    default: "2000",
    meaning: "Milliseconds from one reading of memory pressure, disks, hwmon and error counters to the next.",
};
/// What is too much.
pub const HEALTH_MARKS: Setting = Setting {
    name: "MEND_HEALTH_MARKS",
    kind: Kind::Text,
    default: "",
    meaning: "Low and high marks of sensors, SENSOR=LOW/HIGH or SENSOR=off, separated by commas: disk:/tmp=90/97,bmc:FAN=1500/900. SENSOR is the beginning of a name as `mend health` shows it; the longest that fits counts. Where small values are bad the high mark is the smaller number. Without a rule a sensor has its own marks (hwmon, BMC), or Mend's.",
};
/// How long a sick node must be well.
pub const HEALTH_CALM: Setting = Setting {
    name: "MEND_HEALTH_CALM_S",
    kind: Kind::Number { min: 0, max: 1_000_000 },
    default: "60",
    meaning: "Seconds that a sensor must be well on the good side of a mark before its node counts as better.",
};
/// What is about to happen.
pub const HEALTH_HORIZON: Setting = Setting {
    name: "MEND_HEALTH_HORIZON_S",
    kind: Kind::Number { min: 0, max: 100_000 },
    default: "30",
    meaning: "A sensor that is likely to pass its high mark within so many seconds counts as past its low one; 0: only what is measured counts.",
};
/// Which disks.
pub const HEALTH_DISKS: Setting = Setting {
    name: "MEND_HEALTH_DISKS",
    kind: Kind::Text,
    default: "",
    meaning: "Directories whose file systems are watched, separated by commas; default /dev/shm, TMPDIR (else /tmp), and the local directories in MEND_TIERS. Name none that all nodes share: no rank would be better off elsewhere.",
};
/// Another root.
pub const HEALTH_ROOT: Setting = Setting {
    name: "MEND_HEALTH_ROOT",
    kind: Kind::Path,
    default: "/",
    meaning: "Directory below which sys/class/hwmon, sys/devices/system/edac and proc/pressure are looked for: for containers that have the node's elsewhere, and for tests.",
};
/// Where plug-ins are.
pub const HEALTH_PLUGINS: Setting = Setting {
    name: "MEND_HEALTH_PLUGINS",
    kind: Kind::Path,
    default: "",
    meaning: "Directory of executables that mendd runs to learn more about its node (docs/health.md); default none. It and they must belong to root or to mendd's user, and nobody else may write to them.",
};
/// How often they run.
pub const HEALTH_PLUGIN_INTERVAL: Setting = Setting {
    name: "MEND_HEALTH_PLUGIN_INTERVAL_MS",
    kind: Kind::Number { min: 100, max: 86_400_000 },
    default: "60000",
    meaning: "Milliseconds from the end of one run of a health plug-in to its next. SMART is read ten times as seldom.",
};
/// How long they may take.
pub const HEALTH_PLUGIN_TIMEOUT: Setting = Setting {
    name: "MEND_HEALTH_PLUGIN_TIMEOUT_MS",
    kind: Kind::Number { min: 100, max: 3_600_000 },
    default: "10000",
    meaning: "Milliseconds that a health plug-in, the predictor, smartctl or an answer of the BMC may take; then it is killed with its process group, and named by `mend health`.",
};
/// Who predicts.
pub const HEALTH_PREDICTOR: Setting = Setting {
    name: "MEND_HEALTH_PREDICTOR",
    kind: Kind::Path,
    default: "",
    meaning: "Executable that says when a sensor will pass its high mark (docs/health.md); default a line through its last values. The same owners are wanted as of MEND_HEALTH_PLUGINS.",
};
/// Who reads SMART.
pub const HEALTH_SMARTCTL: Setting = Setting {
    name: "MEND_HEALTH_SMARTCTL",
    kind: Kind::Path,
    default: "",
    meaning: "smartctl of smartmontools 7 or later, by which disks' SMART is read where mendd may; default the one in PATH or /usr/sbin, `off`: none.",
};
/// Where the BMC is.
pub const BMC: Setting = Setting {
    name: "MEND_BMC",
    kind: Kind::Text,
    default: "",
    meaning: "The node's management controller (BMC), which ipmitool is asked about: HOST or HOST:PORT over the network, with {node} for the node's name; default /dev/ipmi0 where mendd may open it, `off`: none.",
};
/// Who asks it.
pub const BMC_USER: Setting = Setting {
    name: "MEND_BMC_USER",
    kind: Kind::Text,
    default: "",
    meaning: "User of the BMC in MEND_BMC; one with the privilege of USER will do.",
};
/// With which password.
pub const BMC_PASSWORD_FILE: Setting = Setting {
    name: "MEND_BMC_PASSWORD_FILE",
    kind: Kind::Path,
    default: "",
    meaning: "File with the password of that user, at most 20 bytes in its first line. Nobody but its owner may read it.",
};
/// How it is encrypted.
pub const BMC_CIPHER: Setting = Setting {
    name: "MEND_BMC_CIPHER",
    kind: Kind::Number { min: 0, max: 17 },
    default: "3",
    meaning: "Cipher suite of the session with the BMC: 3 (SHA-1, AES-128), which every one must have, or 17 (SHA-256), which newer ones want.",
};
/// How often it is asked.
pub const BMC_INTERVAL: Setting = Setting {
    name: "MEND_BMC_INTERVAL_MS",
    kind: Kind::Number { min: 200, max: 3_600_000 },
    default: "2000",
    meaning: "Milliseconds from one reading of the BMC's sensors to the next. A BMC takes some milliseconds for each sensor.",
};
