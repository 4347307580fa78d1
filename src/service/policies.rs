//! Policies of other folders, as the configuration sets them.

use std::{sync::Arc, time::Duration};

use logcabin_config::{self as config, Config, EraseAfter};
use logcabin_decide::{
    quota::{Exempt, Quotas},
    retention::{Retention, SweepPolicy},
};
use logcabin_read::invites::Strangers;
use logcabin_snapshot as snapshot;

/// What sweeps erase, and how often.
pub fn sweep_policy(config: &Config) -> SweepPolicy {
    let erasure = &config.erasure;
    SweepPolicy {
        redacted_after: seconds(&erasure.redacted_after_seconds).map(Duration::from_secs),
        retention: Arc::new(retention(&config.retention)),
        media_after: seconds(&config.media.lifetime_seconds).map(Duration::from_secs),
        every: Duration::from_secs(erasure.sweep_seconds),
    }
}

/// How long events are kept.
pub fn retention(of: &config::Retention) -> Retention {
    let ms = |seconds: u64| seconds.saturating_mul(1000);
    Retention {
        default_ms: seconds(&of.default_seconds).map(ms),
        rooms_say: of.rooms_say,
        lowest_ms: ms(of.lowest_seconds),
        highest_ms: seconds(&of.highest_seconds).map(ms),
        rules: of.rules.iter().cloned().collect(),
    }
}

fn seconds(after: &EraseAfter) -> Option<u64> {
    match after {
        EraseAfter::Off => None,
        EraseAfter::Seconds(seconds) => Some(u64::from(*seconds)),
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

/// Who may invite users with whom they share no room.
pub const fn strangers(of: &config::Invites) -> Strangers {
    match of.strangers {
        config::StrangersInvite::Allow => Strangers::Allowed,
        config::StrangersInvite::Local => Strangers::OfThisServer,
        config::StrangersInvite::Refuse => Strangers::Refused,
    }
}

/// When snapshots are written and compared, and how many are kept.
pub fn snapshot_policy(of: &config::Snapshots) -> snapshot::Policy {
    let config::Snapshots { every_records, keep, scrub_hours } = *of;
    let scrub_every = (scrub_hours > 0).then(|| Duration::from_secs(scrub_hours * 3600));
    snapshot::Policy { every: every_records, keep, scrub_every }
}
