//! The tables of each section.

mod account;
mod keys;
mod media;
mod peer;
mod personal;
mod room;

use super::context::Context;
use crate::{facts::Section, sql::plan::Plan};

/// The tables of a section, one after the other. Events are read by [`super::events`], and the
/// server's own keys are no rows.
pub(super) const fn plans(section: Section) -> &'static [Plan<Context>] {
    match section {
        Section::Server | Section::Outliers | Section::Events | Section::Backfilled => &[],
        // Synapse leaves these to others.
        Section::OauthClients | Section::OauthGrants => &[],
        Section::RegistrationTokens => account::REGISTRATION_TOKENS,
        Section::Accounts => account::ACCOUNTS,
        Section::Profiles => account::PROFILES,
        Section::Threepids => account::THREEPIDS,
        Section::ThreepidBindings => account::THREEPID_BINDINGS,
        Section::ExternalIds => account::EXTERNAL_IDS,
        Section::Devices => account::DEVICES,
        Section::AccessTokens => account::ACCESS_TOKENS,
        Section::RefreshTokens => account::REFRESH_TOKENS,
        Section::DeviceKeys => keys::DEVICE_KEYS,
        Section::OneTimeKeys => keys::ONE_TIME_KEYS,
        Section::FallbackKeys => keys::FALLBACK_KEYS,
        Section::CrossSigningKeys => keys::CROSS_SIGNING_KEYS,
        Section::KeySignatures => keys::KEY_SIGNATURES,
        Section::DehydratedDevices => keys::DEHYDRATED_DEVICES,
        Section::KeyBackups => keys::KEY_BACKUPS,
        Section::BackedUpKeys => keys::BACKED_UP_KEYS,
        Section::PeerKeys => peer::PEER_KEYS,
        Section::Rooms => room::ROOMS,
        Section::BackwardExtremities => room::BACKWARD_EXTREMITIES,
        Section::TimelineGaps => room::TIMELINE_GAPS,
        Section::Redactions => room::REDACTIONS,
        Section::ForwardExtremities => room::FORWARD_EXTREMITIES,
        Section::CurrentState => room::CURRENT_STATE,
        Section::Memberships => room::MEMBERSHIPS,
        Section::Aliases => room::ALIASES,
        Section::Directory => room::DIRECTORY,
        Section::RoomBlocks => room::ROOM_BLOCKS,
        Section::RoomRetention => room::ROOM_RETENTION,
        Section::AccountData => personal::ACCOUNT_DATA,
        Section::Tags => personal::TAGS,
        Section::PushRules => personal::PUSH_RULES,
        Section::PushRuleChanges => personal::PUSH_RULE_CHANGES,
        Section::Pushers => personal::PUSHERS,
        Section::Receipts => personal::RECEIPTS,
        Section::Filters => personal::FILTERS,
        Section::ThreadSubscriptions => personal::THREAD_SUBSCRIPTIONS,
        Section::Presence => personal::PRESENCE,
        Section::Transactions => personal::TRANSACTIONS,
        Section::DelayedEvents => personal::DELAYED_EVENTS,
        Section::Reports => personal::REPORTS,
        Section::Media => media::MEDIA,
        Section::RemoteMedia => media::REMOTE_MEDIA,
        Section::PeerDevices => peer::PEER_DEVICES,
        Section::PeerCrossSigningKeys => peer::PEER_CROSS_SIGNING_KEYS,
        Section::PeerDeviceLists => peer::PEER_DEVICE_LISTS,
        Section::Destinations => peer::DESTINATIONS,
        Section::DestinationRooms => peer::DESTINATION_ROOMS,
        Section::DeviceChanges => peer::DEVICE_CHANGES,
        Section::AppServices => peer::APP_SERVICES,
        Section::AppServiceTransactions => peer::APP_SERVICE_TRANSACTIONS,
        Section::ToDevice => keys::TO_DEVICE,
        Section::ToPeerDevice => keys::TO_PEER_DEVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::plans;
    use crate::facts::Section;

    #[test]
    fn every_section_has_tables_and_every_plan_a_key() {
        for section in Section::ALL {
            let plans = plans(section);
            let other = matches!(
                section,
                Section::Server
                    | Section::Outliers
                    | Section::Events
                    | Section::Backfilled
                    | Section::OauthClients
                    | Section::OauthGrants
            );
            assert_eq!(plans.is_empty(), other, "{section:?}");
            for plan in plans {
                assert!(plan.keys > 0 && plan.keys <= plan.columns.len(), "{section:?}");
                assert!(plan.shown <= plan.keys, "{section:?}");
            }
        }
    }
}
