//! Whether a data directory may be served: not while the server that it has taken over from is in
//! use, and one for rehearsals only in a rehearsal.

use logcabin_config::Config;
use logcabin_ops::former::{self, Former, FormerError};
use logcabin_outside::{exits, outbound::Outbound};

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
    former.must_be_silent(outbound).await?;
    // Before anything can leave.
    exits::note_departure_in(former::departure_file(data_dir));
    Ok(())
}
