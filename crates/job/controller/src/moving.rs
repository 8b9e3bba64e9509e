//! How the ranks of a job move, as the settings say.

use crate::error::RunError;
use mend_job::setup::Moving;
use mend_messages::chunks::{ChunkMode, ChunkSetup, Transport};
use mend_settings::SettingError;

/// How ranks are copied that run on.
pub(crate) fn moving(transport: &Transport) -> Result<Moving, SettingError> {
    let (threshold, rounds) = (mend_settings::PRECOPY_THRESHOLD.number()? << 10, mend_settings::PRECOPY_ROUNDS.number()?);
    Ok(Moving { threshold, rounds: rounds as u32, transport: transport.word() })
}

/// By what they go to other nodes.
pub(crate) fn transport(encrypt_data: bool) -> Result<Transport, RunError> {
    let word = mend_settings::MIGRATE_TRANSPORT.choice()?;
    let mode = match mend_settings::MIGRATE_OFI_MODE.choice()? {
        "write" => ChunkMode::Write,
        _ => ChunkMode::Read,
    };
    let (pool, chunk) = (mend_settings::MIGRATE_POOL.number()?, mend_settings::MIGRATE_CHUNK.number()?);
    if word != "ofi" {
        return Ok(Transport::Tcp);
    }
    if encrypt_data {
        return Err(RunError::UnencryptableMoves);
    }
    let setup = ChunkSetup { provider: mend_settings::OFI_PROVIDER.text(), mode, chunk_bytes: (chunk << 10) as u32, chunks: pool / chunk };
    if setup.is_sound() { Ok(Transport::Ofi(setup)) } else { Err(RunError::Chunks { pool, chunk }) }
}
