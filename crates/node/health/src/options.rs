//! What is watched, and how often: the settings.

use crate::bmc::{self, Bmc};
use crate::program;
use mend_messages::health::Unread;
use mend_messages::tier::{Tier, TierSpec};
use mend_policy::health::marks::{MarkRules, RuleError};
use mend_policy::health::watch::Rules;
use mend_settings::SettingError;
use std::path::PathBuf;
use std::time::Duration;

/// Port of a BMC (RMCP).
const BMC_PORT: u16 = 623;
/// Values of a sensor by which its trend is judged, times the interval.
const TREND_VALUES: u64 = 16;
/// Readings that a sensor may miss before it is forgotten.
const MISSED: u64 = 10;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// One has a value that it may not have.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The marks.
    #[error("MEND_HEALTH_MARKS")]
    Marks(#[source] RuleError),
    /// The BMC's address.
    #[error("MEND_BMC={0}: expected HOST, HOST:PORT or `off`")]
    Bmc(String),
}

/// What is watched.
#[derive(Clone, Debug)]
pub struct Options {
    /// Root of the kernel's files.
    pub root: PathBuf,
    /// Directories whose file systems are watched.
    pub disks: Vec<PathBuf>,
    /// Between two readings of what the kernel has.
    pub interval: Duration,
    /// Directory of plug-ins.
    pub plugins: Option<PathBuf>,
    /// Between two runs of a plug-in.
    pub plugin_interval: Duration,
    /// How long a program may take.
    pub limit: Duration,
    /// Who predicts.
    pub predictor: Option<PathBuf>,
    /// The program that reads SMART.
    pub smartctl: Option<PathBuf>,
    /// The node's management controller.
    pub bmc: Option<Bmc>,
    /// Between two readings of it.
    pub bmc_interval: Duration,
    /// What sensors are judged by.
    pub rules: Rules,
    /// Their marks.
    pub marks: MarkRules,
    /// What is not watched, and why.
    pub absent: Vec<Unread>,
}

fn path(setting: &mend_settings::Setting) -> Option<PathBuf> {
    Some(setting.text()).filter(|text| !text.is_empty()).map(PathBuf::from)
}

impl Options {
    /// Those of the environment, for the node of this name; `None`: nothing is watched.
    ///
    /// # Errors
    /// See [`OptionsError`].
    pub fn read(node: &str) -> Result<Option<Self>, OptionsError> {
        if mend_settings::HEALTH.choice()? == "off" {
            return Ok(None);
        }
        let interval = mend_settings::HEALTH_INTERVAL.milliseconds()?;
        let (plugin_interval, bmc_interval) =
            (mend_settings::HEALTH_PLUGIN_INTERVAL.milliseconds()?, mend_settings::BMC_INTERVAL.milliseconds()?);
        let seconds = |setting: &mend_settings::Setting| setting.number().map(|seconds| seconds.saturating_mul(1_000_000));
        let micros = |duration: Duration| duration.as_micros() as u64;
        let slowest = micros(plugin_interval.max(bmc_interval).max(interval));
        let limit = mend_settings::HEALTH_PLUGIN_TIMEOUT.milliseconds()?;
        let rules = Rules {
            calm_us: seconds(&mend_settings::HEALTH_CALM)?,
            horizon_us: seconds(&mend_settings::HEALTH_HORIZON)?,
            window_us: micros(interval.max(bmc_interval)).saturating_mul(TREND_VALUES),
            // SMART is read ten times as seldom as plug-ins.
            stale_us: slowest.saturating_add(micros(limit)).saturating_mul(10 + MISSED),
        };
        let mut absent = Vec::new();
        let smartctl = match mend_settings::HEALTH_SMARTCTL.text().as_str() {
            "off" => None,
            "" => program::find("smartctl"),
            named => Some(PathBuf::from(named)),
        };
        if smartctl.is_none() && mend_settings::HEALTH_SMARTCTL.text() != "off" {
            absent.push(crate::unread(crate::smart::NAME, "smartctl is not installed", false));
        }
        let bmc = self::bmc(node)?;
        if bmc.is_none() && mend_settings::BMC.text() != "off" {
            let why = format!("no /dev/ipmi0 that mendd may open, and {} names none", mend_settings::BMC.name);
            absent.push(crate::unread(bmc::NAME, why, false));
        }
        Ok(Some(Self {
            root: PathBuf::from(mend_settings::HEALTH_ROOT.text()),
            disks: disks(),
            interval,
            plugins: path(&mend_settings::HEALTH_PLUGINS),
            plugin_interval,
            limit,
            predictor: path(&mend_settings::HEALTH_PREDICTOR),
            smartctl,
            bmc,
            bmc_interval,
            rules,
            marks: MarkRules::parse(&mend_settings::HEALTH_MARKS.text()).map_err(OptionsError::Marks)?,
            absent,
        }))
    }
}

/// The directories that Mend itself and most programs use on a node.
fn disks() -> Vec<PathBuf> {
    let named = mend_settings::HEALTH_DISKS.text();
    if !named.is_empty() {
        return named.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    }
    let temporary = std::env::var_os("TMPDIR").filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let mut disks = vec![PathBuf::from("/dev/shm")];
    disks.extend(Some(temporary).filter(|temporary| !crate::disks::is_shared(temporary)));
    let tiers = mend_settings::TIERS.text();
    // One that is none is told of where jobs begin.
    let named = tiers.split(',').filter_map(|tier| tier.trim().parse::<TierSpec>().ok());
    disks.extend(named.filter_map(|spec| match spec.tier {
        Tier::Local(directory) => Some(directory),
        _ => None,
    }));
    disks
}

fn bmc(node: &str) -> Result<Option<Bmc>, OptionsError> {
    let named = mend_settings::BMC.text().replace("{node}", node);
    let wrong = || OptionsError::Bmc(named.clone());
    let (host, port) = match named.as_str() {
        "off" => return Ok(None),
        "" => return Ok(bmc::is_local().then_some(Bmc::Local)),
        named => match named.rsplit_once(':') {
            // An address of version 6 has more of them.
            Some((host, port)) if !host.contains(':') => (host, port.parse().map_err(|_| wrong())?),
            _ => (named, BMC_PORT),
        },
    };
    if host.is_empty() || host.starts_with('-') {
        return Err(wrong());
    }
    let (user, password) = (mend_settings::BMC_USER.text(), path(&mend_settings::BMC_PASSWORD_FILE));
    Ok(Some(Bmc::Network { host: host.to_owned(), port, user, password, cipher: mend_settings::BMC_CIPHER.number()? }))
}
