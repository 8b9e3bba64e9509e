//! How a space is found by its name: its description, the user's secret, and its targets, of which one must answer.

use super::names::Client;
use crate::descriptor;
use mend_messages::job::Secret;
use std::sync::Arc;
use std::time::Duration;

/// A space whose targets were heard. Standard error has those that are lost.
///
/// # Errors
/// Why it cannot be seen, and what to do.
pub fn find(name: &str) -> Result<Arc<Client>, (String, String)> {
    find_with(name, |client, hedge| client.hedged_after(hedge))
}

/// The same, by which nothing is under way when nobody waits for it.
///
/// # Errors
/// As of [`find`].
pub fn find_unhedged(name: &str) -> Result<Arc<Client>, (String, String)> {
    find_with(name, |client, _| client.unhedged())
}

fn find_with(name: &str, hedged: impl FnOnce(Client, Duration) -> Client) -> Result<Arc<Client>, (String, String)> {
    let space = descriptor::usable(name).map_err(|error| (mend_report::with_causes(&error), error.hint().to_owned()))?;
    let plain = |error: &dyn std::error::Error| (mend_report::with_causes(error), String::new());
    let (secret, patience) = secret_and_patience()?;
    let hedge = mend_settings::SPACE_HEDGE.milliseconds().map_err(|error| plain(&error))?;
    let client = Arc::new(hedged(Client::new(space, &secret, patience, false), hedge));
    let lost = client.refresh();
    if lost.len() == client.targets()
        && let Some((_, fault)) = lost.first()
    {
        return Err((fault.to_string(), fault.hint().to_owned()));
    }
    for (_, fault) in lost {
        mend_report::tell!("mend data: {name}: {fault}");
    }
    Ok(client)
}

/// The user's secret, and how long a target may be silent.
pub(super) fn secret_and_patience() -> Result<(Secret, Duration), (String, String)> {
    let plain = |error: &dyn std::error::Error| (mend_report::with_causes(error), String::new());
    let path = mend_settings::secret_file().map_err(|error| plain(&error))?;
    let secret = mend_wire::secret::load(&path).map_err(|error| (mend_report::with_causes(&error), error.hint()))?;
    let patience = mend_settings::SPACE_TIMEOUT.milliseconds().map_err(|error| plain(&error))?;
    Ok((secret, patience))
}
