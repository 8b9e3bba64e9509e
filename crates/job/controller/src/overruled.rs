//! Settings of a restart's environment that have no effect: its ranks have them from their program's environment, which is in the checkpoint.

use mend_settings::{MIGRATE_TRANSPORT, OF_PROGRAM, OFI_PROVIDER, Setting};

/// Whether a setting of this environment has no effect on a job that is restarted.
pub(crate) fn is_of_checkpoint(setting: &Setting) -> bool {
    // Moves have their provider from here.
    let moves = setting.name == OFI_PROVIDER.name && MIGRATE_TRANSPORT.choice().is_ok_and(|word| word == "ofi");
    !moves && OF_PROGRAM.iter().any(|other| other.name == setting.name)
}

/// The settings among `here` (their values in this environment) that are another one's in the environment of the checkpoint's program, for people.
fn overruled(here: &[(&Setting, String)], program: &[(String, String)]) -> Vec<String> {
    let kept = |setting: &Setting| setting.of(program).unwrap_or(setting.default).to_owned();
    let other = here.iter().filter(|(setting, value)| *value != kept(setting));
    other
        .map(|(setting, value)| {
            let kept = kept(setting);
            let kept = if kept.is_empty() { "none".to_owned() } else { kept };
            format!("{}={value} has no effect on a restart: the job goes on with what its checkpoint has, {kept}", setting.name)
        })
        .collect()
}

/// Says what of this environment has no effect on a job whose program has this one.
pub(crate) fn tell(program: &[(String, String)]) {
    let here: Vec<(&Setting, String)> = OF_PROGRAM
        .iter()
        .filter(|setting| is_of_checkpoint(setting) && setting.is_set())
        .map(|setting| (setting, setting.text()))
        .collect();
    overruled(&here, program).iter().for_each(|what| mend_report::tell!("mend: {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_settings::{CHANNELS, OFFLOAD, TRACKING};

    #[test]
    fn only_what_differs_is_told() {
        let program = [(CHANNELS.name.to_owned(), "tcp".to_owned())];
        let here = [(&CHANNELS, "shm".to_owned()), (&TRACKING, "auto".to_owned()), (&OFFLOAD, "out=file:///x".to_owned())];
        assert_eq!(
            overruled(&here, &program),
            [
                "MEND_CHANNELS=shm has no effect on a restart: the job goes on with what its checkpoint has, tcp",
                "MEND_OFFLOAD=out=file:///x has no effect on a restart: the job goes on with what its checkpoint has, none"
            ]
        );
        assert_eq!(overruled(&here[..1], &[(CHANNELS.name.to_owned(), "shm".to_owned())]), [""; 0]);
    }

    #[test]
    fn what_a_restart_decides_is_not_of_the_checkpoint() {
        assert!(is_of_checkpoint(&CHANNELS) && is_of_checkpoint(&TRACKING));
        assert!(!is_of_checkpoint(&mend_settings::LEASE) && !is_of_checkpoint(&mend_settings::SPACE_CACHE));
    }
}
