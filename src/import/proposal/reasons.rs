//! Why settings have no equivalent, and what follows from that.

use super::draft::From;

/// Settings of parts that this server does not have, or that the import reads.
pub(super) const NEEDLESS: [&str; 59] = [
    "args",
    "background_updates",
    "bcrypt_rounds",
    "caches",
    "cleanup_extremities_with_dummy_events",
    "daemonize",
    "database",
    "database_path",
    "databases",
    "dummy_events_threshold",
    "dynamic_thumbnails",
    "enable_local_media_storage",
    "enable_media_repo",
    "event_cache_size",
    "federation_rc_concurrent",
    "federation_rc_reject_limit",
    "federation_rc_sleep_delay",
    "federation_rc_sleep_limit",
    "federation_rc_window_size",
    "form_secret",
    "form_secret_path",
    "gc_min_interval",
    "gc_thresholds",
    "instance_map",
    "key_refresh_interval",
    "log_config",
    "log_file",
    "max_spider_size",
    "media_instance_running_background_jobs",
    "media_store_path",
    "no_redirect_stdio",
    "no_tls",
    "old_signing_keys",
    "pid_file",
    "print_pidfile",
    "redis",
    "replication_torture_level",
    "report_stats",
    "report_stats_endpoint",
    "run_background_tasks_on",
    "server_context",
    "signing_key",
    "signing_key_path",
    "soft_file_limit",
    "stats",
    "stream_writers",
    "suppress_key_server_warning",
    "task_scheduler",
    "thumbnail_sizes",
    "track_appservice_user_ips",
    "use_frozen_dicts",
    "user_ips_max_age",
    "worker_app",
    "worker_daemonize",
    "worker_listeners",
    "worker_log_config",
    "worker_name",
    "worker_pid_file",
    "worker_replication_secret",
];

/// Settings that mean something, and what is different without them.
const LEFT: [(&str, &str); 80] = [
    ("account_threepid_delegates", "text messages are sent by a gateway: see [sms]"),
    ("account_validity", "accounts do not expire"),
    ("alias_creation_rules", "every user may create as many aliases as quotas.aliases says"),
    ("allow_device_name_lookup_over_federation", "other homeservers never learn device names"),
    ("allow_per_room_profiles", "users may have another name in a room"),
    ("allow_profile_lookup_over_federation", "other homeservers may look up profiles"),
    ("allow_public_rooms_over_federation", "other homeservers may see the directory of rooms"),
    ("allow_public_rooms_without_auth", "the directory needs a login"),
    ("allow_underscore_prefixed_localpart", "new names may not begin with an underscore"),
    ("allowed_avatar_mimetypes", "avatars may be of any type"),
    ("allowed_local_3pids", "see threepids.allow, whose patterns are other ones"),
    ("auto_accept_invites", "users accept invites themselves"),
    ("auto_join_rooms", "new users join no room by themselves"),
    ("auto_join_rooms_for_guests", "guests join no room by themselves"),
    ("backup_media_store_path", "backups contain the files: see docs/backup.md"),
    ("block_non_admin_invites", "every user may invite"),
    ("cas_config", "there is no CAS: use a provider of OpenID Connect; CAS users cannot log in"),
    ("default_power_level_content_override", "new rooms have the usual power levels"),
    ("delete_stale_devices_after", "devices stay until they are logged out"),
    ("dont_notify_new_devices_for", "users are always told of new devices"),
    ("enable_3pid_lookup", "look-ups are between clients and identity servers"),
    ("enable_authenticated_media", "files need a login: see media.unauthenticated"),
    ("enable_ephemeral_messages", "messages do not destroy themselves"),
    ("enable_registration_token_3pid_bypass", "a token does not replace an address"),
    ("enable_room_list_search", "the directory can always be searched"),
    ("enable_search", "search is on unless the program was built without it"),
    ("encryption_enabled_by_default_for_room_type", "clients decide whether rooms are encrypted"),
    ("exclude_rooms_from_presence", "presence is told in all rooms"),
    ("exclude_rooms_from_sync", "all rooms are in syncs"),
    ("experimental_features", "see docs/configuration.md for what there is"),
    ("extra_well_known_client_content", "only rtc.service_urls is told besides the addresses"),
    ("federation_certificate_verification_whitelist", "certificates are always verified"),
    ("federation_client_minimum_tls_version", "TLS 1.2 and 1.3 are spoken"),
    ("federation_ip_range_blacklist", "all addresses but public ones are refused"),
    ("federation_metrics_domains", "see docs/monitoring.md for what is measured"),
    ("federation_rr_transactions_per_room_per_second", "receipts of a moment are gathered"),
    ("federation_verify_certificates", "certificates are always verified: see federation.ca"),
    ("federation_whitelist_endpoint_enabled", "clients are not told of federation.allow"),
    ("filter_timeline_limit", "see sync.max_timeline_limit"),
    ("forgotten_room_retention_period", "rooms that all have forgotten stay until they are purged"),
    ("gzip_responses", "see http.compression"),
    ("hs_disabled", "the server cannot be disabled by a setting"),
    ("http_proxy", "see outbound.proxy"),
    ("https_proxy", "see outbound.proxy"),
    ("include_profile_data_on_invite", "invites show the inviter's profile"),
    ("ip_range_blacklist", "all addresses but public ones are refused"),
    ("jwt_config", "there is no login by JWT"),
    ("ldap_config", "there is no LDAP: use a provider of OpenID Connect in front of it"),
    ("limit_profile_requests_to_users_who_share_rooms", "users may look up every profile"),
    ("limit_remote_rooms", "rooms of any size can be joined"),
    ("limit_usage_by_mau", "see registration.max_accounts"),
    ("macaroon_secret_key", "guests are logged out: their tokens are computed from it"),
    ("macaroon_secret_key_path", "guests are logged out: their tokens are computed from it"),
    ("manhole_settings", "see the console"),
    ("max_avatar_size", "an avatar may be as large as any file"),
    ("max_image_pixels", "see docs/limits.md"),
    ("max_mau_value", "see registration.max_accounts"),
    ("media_storage_providers", "files are on the disk: fetch them before the move"),
    ("media_upload_limits", "see media.user_quota_bytes"),
    ("modules", "there are no modules: what they did, nobody does"),
    ("oembed", "previews use what pages say themselves"),
    ("opentracing", "see [traces]"),
    ("outbound_federation_restricted_to", "every node sends"),
    ("password_providers", "there are no modules: users of such providers cannot log in"),
    ("prevent_media_downloads_from", "see federation.deny"),
    ("push", "notifications always name the room and the sender"),
    ("push_rules", "the default rules are those of the specification"),
    ("require_auth_for_profile_requests", "profiles can be looked up without a login"),
    ("require_membership_for_aliases", "a member with enough power may create aliases"),
    ("restrict_public_rooms_to_local_users", "the directory needs a login"),
    ("room_list_publication_rules", "every member with enough power may publish a room"),
    ("room_prejoin_state", "invites show what the specification says"),
    ("saml2_config", "there is no SAML: use OpenID Connect; SAML users cannot log in"),
    ("sentry", "errors are in the log"),
    ("spam_checker", "there are no modules: what they did, nobody does"),
    ("sso", "see docs/sso.md for the pages"),
    ("templates", "pages and mails have the texts of this server"),
    ("third_party_event_rules", "there are no modules: what they did, nobody does"),
    ("ui_auth", "each act is authenticated by itself"),
    ("user_consent", "see registration.terms, whose file is another one"),
];

/// The same of matrix-authentication-service.
const MAS_NEEDLESS: [&str; 6] =
    ["database", "http.listeners", "http.trusted_proxies", "matrix", "secrets", "telemetry"];

/// Settings of matrix-authentication-service, and what is different without them.
const MAS_LEFT: [(&str, &str); 16] = [
    ("account", "see registration and accounts"),
    ("branding", "pages have the texts of this server; see registration.terms for documents"),
    ("captcha", "see [captcha]"),
    ("clients", "programs that act for themselves have no place here"),
    ("email", "see [email]"),
    ("experimental.access_token_ttl", "set tokens.access_lifetime_seconds"),
    ("experimental.compat_token_ttl", "set tokens.access_lifetime_seconds"),
    ("experimental.inactive_session_expiration", "set tokens.refresh_lifetime_seconds"),
    ("experimental.session_limit", "see quotas.devices"),
    ("experimental", "there is no such setting here"),
    (
        "http",
        "clients must find this server at the former addresses: see docs/moving-from-synapse.md",
    ),
    ("oauth", "devices without a browser are linked by the code that they show"),
    ("passwords", "see [passwords]"),
    ("policy", "there are no policies of that kind: see registration and rate_limits"),
    ("rate_limiting", "rate limits are counted in another way: see [rate_limits]"),
    ("templates", "pages and mails have the texts of this server"),
];

/// What is needed by nobody here.
pub(super) const fn needless(from: From) -> &'static [&'static str] {
    match from {
        From::Synapse => &NEEDLESS,
        From::Mas => &MAS_NEEDLESS,
    }
}

pub(super) fn mas_why_left(path: &str) -> &'static str {
    let of = |name: &str| MAS_LEFT.iter().find(|(known, _)| *known == name).map(|(_, why)| *why);
    let group = path.split('.').next().unwrap_or_default();
    of(path).or_else(|| of(group)).unwrap_or("there is no such setting here")
}

/// What is different without a setting.
pub(super) fn why_left(path: &str) -> &'static str {
    let of = |name: &str| LEFT.iter().find(|(known, _)| *known == name).map(|(_, why)| *why);
    let group = path.split('.').next().unwrap_or_default();
    if let Some(why) = of(path).or_else(|| of(group)) {
        return why;
    }
    if path.starts_with("rc_") || path.starts_with("remote_media_download_") {
        return "rate limits are counted in another way: see [rate_limits]";
    }
    if path.starts_with("worker_") {
        return "one process uses all processors: see docs/cluster.md for several";
    }
    "there is no such setting here"
}
