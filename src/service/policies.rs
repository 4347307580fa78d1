//! Policies of other folders, as the configuration sets them.

use std::{sync::Arc, time::Duration};

use logcabin_config::{self as config, Config, EraseAfter};
use logcabin_decide::{
    quota::{Exempt, Quotas},
    retention::{Retention, SweepPolicy},
};
use logcabin_snapshot as snapshot;

/// What sweeps erase, and how often.
pub fn sweep_policy(config: &Config) -> SweepPolicy {
    let redacted_after = match config.erasure.redacted_after_seconds {
        EraseAfter::Off => None,
        EraseAfter::Seconds(seconds) => Some(Duration::from_secs(seconds.into())),
    };
    let retention = &config.retention;
    let ms = |seconds: u64| seconds.saturating_mul(1000);
    let seconds = |after: &EraseAfter| match after {
        EraseAfter::Off => None,
        EraseAfter::Seconds(seconds) => Some(u64::from(*seconds)),
    };
    let retention = Retention {
        default_ms: seconds(&retention.default_seconds).map(ms),
        rooms_say: retention.rooms_say,
        lowest_ms: ms(retention.lowest_seconds),
        highest_ms: seconds(&retention.highest_seconds).map(ms),
        rules: retention.rules.iter().cloned().collect(),
    };
    SweepPolicy {
        redacted_after,
        retention: Arc::new(retention),
        media_after: seconds(&config.media.lifetime_seconds).map(Duration::from_secs),
        every: Duration::from_secs(config.erasure.sweep_seconds),
    }
}

/// The quotas, without exemptions.
pub fn quotas(of: &config::Quotas) -> Quotas {
    let config::Quotas {
        account_data_types,
        account_data_bytes,
        filters,
        filter_bytes,
        devices,
        aliases,
        rooms,
        invites,
        invites_by_one,
        to_device,
        to_device_by_one,
        key_backups,
        room_keys,
        room_key_bytes,
        reports,
    } = *of;
    Quotas {
        account_data_types,
        account_data_bytes,
        filters,
        filter_bytes,
        devices,
        aliases,
        rooms,
        invites,
        invites_by_one,
        to_device,
        to_device_by_one,
        key_backups,
        room_keys,
        room_key_bytes,
        reports,
        exempt: Exempt::default(),
    }
}

/// When snapshots are written and compared, and how many are kept.
pub fn snapshot_policy(of: &config::Snapshots) -> snapshot::Policy {
    let config::Snapshots { every_records, keep, scrub_hours } = *of;
    let scrub_every = (scrub_hours > 0).then(|| Duration::from_secs(scrub_hours * 3600));
    snapshot::Policy { every: every_records, keep, scrub_every }
}
