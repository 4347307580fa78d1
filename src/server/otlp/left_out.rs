//! What stands in for the export in a program without it. No collector is configured: see
//! [`check`](super::check).

use std::sync::Arc;

use crate::ServerError;
use logcabin_base::shutdown::Shutdown;
use logcabin_config::Config;
use logcabin_service::observe::Observer;

pub(crate) const fn begin(_: &Config) -> Result<(), ServerError> {
    Ok(())
}

pub(crate) async fn end() {}

pub(crate) async fn send_metrics(_: Arc<Config>, _: Arc<Observer>, _: Shutdown) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::check;
    use logcabin_config::Effective;

    #[test]
    fn a_collector_is_refused() {
        assert!(check(&Config::default()).is_ok());
        let text = "[metrics]\nendpoint = \"http://127.0.0.1:4318\"\n";
        let given = Some(("logcabin.toml".into(), text.to_owned()));
        let config = Effective::load(given, [], &[]).unwrap().config;
        let error = check(&config).unwrap_err().to_string();
        assert!(error.contains("metrics.endpoint") && error.contains("`otlp`"), "{error}");
    }
}
