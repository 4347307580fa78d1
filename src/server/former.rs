//! Whether a data directory may be served: not while the server that it has taken over from is in
//! use, and one for rehearsals only in a rehearsal.

use logcabin_config::Config;
use logcabin_engine::Engine;
use logcabin_ops::former::{self, Former, FormerError};
use logcabin_outside::outbound::Outbound;
use logcabin_record::{Command, command::ImportSource};

/// # Errors
/// When it may not; the text says what to do.
pub(super) async fn admit(config: &Config, outbound: &Outbound) -> Result<(), FormerError> {
    let data_dir = &config.server.data_dir;
    if config.outbound.rehearsal {
        tracing::warn!("this is a rehearsal: nothing leaves the server");
        return former::must_be_for_rehearsals(data_dir);
    }
    former::must_not_be_rehearsed(data_dir)?;
    let Some(former) = Former::read(data_dir)? else { return Ok(()) };
    former.must_be_over(data_dir)?;
    former.must_be_silent(data_dir, outbound).await?;
    // Before anything can leave.
    former::note_departures(data_dir)
}

/// The same for its log, which may be here without the note: that of a restored backup, or of a
/// further node of a cluster.
///
/// # Errors
/// When it may not be served.
pub(super) async fn admit_log(
    config: &Config,
    engine: &Engine,
    outbound: &Outbound,
) -> Result<(), FormerError> {
    let (data_dir, state) = (&config.server.data_dir, engine.state());
    if config.outbound.rehearsal {
        return Ok(());
    }
    if state.imports.unfinished() {
        return Err(FormerError::Unfinished(data_dir.clone()));
    }
    let import = state.imports.newest(ImportSource::Synapse);
    let (Some(end), Some(own)) = (import.and_then(|import| import.ended), state.server()) else {
        return Ok(());
    };
    // The mark of the directory does not go with a copy of its log. What is unreadable here is
    // unreadable for whatever the server does next.
    let is_rehearsed = matches!(
        engine.events().command(end),
        Ok(Some(Command::ImportEnd(ended))) if ended.rehearsal
    );
    if is_rehearsed {
        return Err(FormerError::Rehearsed(data_dir.clone()));
    }
    if Former::read(data_dir)?.is_some() {
        return Ok(());
    }
    let keys = [(own.key_id.clone(), own.public_key.clone())].into();
    let former = Former::of_log(&own.server_name, keys, end.get());
    former.must_be_silent(data_dir, outbound).await
}
