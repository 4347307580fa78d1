//! The settings of what users do: their logins, accounts, rooms, files and devices. They are the
//! last part of the list.

/// Gives the sections to a macro, after those that are there already.
macro_rules! usage_settings {
    ($settings:ident { $($before:tt)* }) => {
        $settings! { $($before)*
    /// The lifetime of logins.
    tokens: Tokens {
        /// The lifetime of access tokens of clients that can refresh them, in seconds.
        access_lifetime_seconds: u64 = 3600, in 1..=31_536_000;
        /// The lifetime of access tokens of other clients, in seconds; afterwards, they must log in
        /// again.
        unrefreshable_lifetime_seconds: Lifetime = Lifetime::Never;
        /// Seconds without a refresh after which a client that can refresh must log in again.
        refresh_lifetime_seconds: Lifetime = Lifetime::Never;
        /// Seconds after which every client must log in again, even if it refreshes.
        session_lifetime_seconds: Lifetime = Lifetime::Never;
    }

    /// What users may change about their accounts. Clients are told, and the server enforces it.
    accounts: Accounts {
        /// The password.
        change_password: bool = true;
        /// The display name.
        set_displayname: bool = true;
        /// The avatar.
        set_avatar_url: bool = true;
        /// Other fields of the profile.
        profile_fields: bool = true;
        /// E-mail addresses and phone numbers.
        third_party_ids: bool = true;
        /// Whether leaving a room also forgets it.
        forget_on_leave: bool = false;
    }

    /// Rooms.
    rooms: Rooms {
        /// The version of new rooms if the request names none. Server notices and shut-down rooms
        /// use "10".
        default_version: RoomVersion = RoomVersion(DEFAULT_ROOM_VERSION);
    }

    /// Application services: bridges and bots that are part of the server.
    appservices: Appservices {
        /// Their registration files, in YAML, as bridges write them. They are read at start.
        files: List<FilePath> = List::default();
        /// Whether the server's token is also sent in the query of each request, as the
        /// specification required before v1.4. The services' logs may then contain it.
        token_in_query: bool = false;
        /// Seconds in which a service must answer a transaction.
        delivery_timeout_seconds: u64 = 60, in 1..=3600;
    }

    /// The user directory.
    user_directory: UserDirectory {
        /// Whether it finds every user of this server. Otherwise users find those who share a room
        /// with them or are in public rooms.
        all_users: bool = false;
    }

    /// Pushers: notifications for sleeping devices, through the gateways of their apps, and mail
    /// about missed messages for users who want it (only with `email.host`).
    push: Push {
        /// Addresses of your own networks that gateways may have. Other addresses that are not
        /// public are refused, even through names, because users choose the gateway.
        allowed_networks: List<Range> = List::default();
        /// Whether gateways may be reached over http. Anyone on the way can then read the
        /// notifications.
        allow_http: bool = false;
        /// Seconds for which a notification is retried while its gateway does not accept it.
        give_up_seconds: u64 = 3600, in 1..=604_800;
        /// Seconds after which an unread message causes a mail, which lists everything unread.
        email_delay_seconds: u64 = 600, in 0..=604_800;
        /// The minimum pause between two mails to one user, in seconds. It doubles with each mail
        /// after which the user reads nothing.
        email_interval_seconds: u64 = 600, in 1..=604_800;
        /// The maximum of that pause, in seconds.
        email_max_interval_seconds: u64 = 86_400, in 1..=2_592_000;
    }

    /// Synchronisation.
    sync: Sync {
        /// The longest time that a sync waits, in seconds; longer requests are shortened.
        max_timeout_seconds: u64 = 300, in 0..=3600;
        /// Events of each room in a sync whose filter sets no limit.
        timeline_limit: u32 = 10, in 1..=1000;
        /// The most events of each room that a filter can request.
        max_timeline_limit: u32 = 1000, in 1..=10_000;
    }

    /// Presence: who is online.
    presence: Presence {
        /// Whether presence is on. Otherwise everyone counts as offline.
        enabled: bool = true;
        /// Seconds of inactivity after which a connected user counts as idle.
        idle_seconds: u64 = 300, in 1..=86_400;
        /// Seconds after its last sync after which a device counts as offline.
        offline_seconds: u64 = 30, in 1..=3600;
    }

    /// Uploaded files, and previews of pages.
    media: Media {
        /// The directory of the uploaded files. The nodes of a cluster need one that all of them
        /// can reach. "auto" is the directory `media` in the data directory.
        dir: MediaDir = MediaDir::Auto;
        /// The largest file that can be uploaded, in bytes.
        max_upload_bytes: u64 = 100 * 1024 * 1024, in 1..=1_099_511_627_776;
        /// The total size of one user's files, in bytes.
        user_quota_bytes: u64 = 10 * 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// How many media ids one user may have reserved for later uploads.
        unused_ids: usize = 20, in 0..=100_000;
        /// Seconds after which such an id expires if nothing is uploaded.
        unused_seconds: u64 = 24 * 3600, in 1..=31_536_000;
        /// What the old paths (/_matrix/media) serve without an access token to anyone who knows
        /// the address: "none", "all", or files that were uploaded before a moment. Clients that
        /// support Matrix 1.11 do not need them.
        unauthenticated: Unauthenticated = Unauthenticated::None;
        /// Seconds after which an uploaded file is deleted unless it is the avatar of a user or
        /// room; "off" keeps files.
        lifetime_seconds: EraseAfter = EraseAfter::Off;
        /// The total size of thumbnails, in bytes. The oldest are deleted, and computed again on
        /// request. Thumbnails of files of other homeservers may have as much again.
        thumbnail_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// The largest file of another homeserver that is fetched for users, in bytes.
        remote_file_bytes: u64 = 100 * 1024 * 1024, in 1..=1_099_511_627_776;
        /// The total size of the copies of such files, in bytes. Those that were not used for
        /// longest are deleted, and fetched again on request. A larger file is not fetched.
        remote_cache_bytes: u64 = 10 * 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds that another homeserver may take to begin with such a file, besides the time
        /// that the client gives, and then as many to send it, and one more for each 32 KiB.
        remote_wait_seconds: u64 = 30, in 1..=600;
        /// Seconds after which an unreferenced file is deleted: one whose upload was interrupted by
        /// a crash, or whose record was lost in a restore.
        orphan_seconds: u64 = 24 * 3600, in 0..=31_536_000;
        /// Whether the server fetches pages for previews. Users then see what a link leads to, and
        /// the site sees this server's address instead of theirs.
        url_previews: bool = true;
        /// Addresses of your own networks from which previews may be fetched. Other addresses that
        /// are not public are refused, even through names.
        preview_allowed_ranges: List<Range> = List::default();
        /// Pages without previews.
        preview_denied_urls: List<UrlPattern> = List::default();
        /// The largest picture of a page that is fetched, in bytes; 0 for none.
        preview_image_bytes: u64 = 5 * 1024 * 1024, in 0..=268_435_456;
        /// The total size of pictures of pages, in bytes. Beyond that, previews have none.
        preview_store_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds for which a preview is cached.
        preview_cache_seconds: u64 = 3600, in 1..=31_536_000;
    }

    /// Server notices: messages of the administrators to users, each in a room of the user's own
    /// (`logcabin notice`).
    server_notices: ServerNotices {
        /// The localpart of the user who sends them. Nobody else can have the name; if somebody
        /// already has it, notices are refused until another one is configured. "off" for no
        /// notices.
        localpart: Option<Localpart> = Some(Localpart::new("notices"));
        /// That user's display name.
        display_name: String = "Server Notices".to_owned();
        /// That user's avatar: the address of an uploaded file, or "off" for none.
        avatar_url: Option<MxcAddress> = None;
        /// The name of the rooms.
        room_name: String = "Server Notices".to_owned();
    }

    /// Data about users' devices.
    devices: Devices {
        /// The minimum pause, in seconds, between two records of when and from where a device was
        /// last used, which is thus known after a restart. With 0 it is known only while the server
        /// runs.
        note_last_seen_seconds: u64 = 3600, in 0..=31_536_000;
    }

    /// The TURN server that connects calls through firewalls, if there is one.
    turn: Turn {
        /// Its addresses, such as "turn:turn.example.org:3478?transport=udp".
        uris: List<TurnUri> = List::default();
        /// The secret that it shares with this server (`static-auth-secret` of coturn). Best set in
        /// the environment.
        shared_secret: Option<SharedSecret> = None;
        /// Seconds after which a user's credentials expire.
        ttl_seconds: u64 = 86_400, in 60..=31_536_000;
    }

    /// Calls of many people (MatrixRTC) by a LiveKit server. See docs/calls.md.
    rtc: Rtc {
        /// The address at which clients reach the LiveKit server, such as
        /// "wss://livekit.example.org". With it, this server itself lets users into its calls.
        livekit_url: Option<SocketUrl> = None;
        /// The address at which this server reaches LiveKit, if it is another one, such as
        /// "http://127.0.0.1:7880".
        livekit_api_url: Option<WebUrl> = None;
        /// A file with the API keys of LiveKit, one on each line, as "key: secret". The first one
        /// is used. It is read again when the configuration is.
        livekit_keys_file: Option<SecretFile> = None;
        /// Seconds in which a client must connect to LiveKit after it was let in.
        token_seconds: u64 = 600, in 60..=86_400;
        /// Other homeservers whose users may begin calls on the LiveKit server, too, and not only
        /// join those that a user of this server began.
        may_begin: List<ServerPattern> = List::default();
        /// The addresses of services that let users into calls in the place of this server.
        service_urls: List<WebUrl> = List::default();
    }

    /// Rendezvous: a logged-in device signs another one in by a QR code.
    rendezvous: Rendezvous {
        /// Whether the endpoints exist.
        enabled: bool = true;
        /// Whether devices without a login may start a session, such as a new device that shows the
        /// code. Strangers could exchange short texts that way. Without it, the endpoints of an
        /// earlier version (MSC4108), which have no authentication, are closed.
        for_anyone: bool = false;
    }

    /// Scheduled events (MSC4140).
    delayed_events: DelayedEvents {
        /// The longest delay, in seconds; 0 for no scheduled events.
        max_delay_seconds: u64 = 86_400, in 0..=31_536_000;
        /// How many events one user may have scheduled at a time.
        max_per_user: usize = 100, in 0..=100_000;
    }
        }
    };
}
pub(super) use usage_settings;
