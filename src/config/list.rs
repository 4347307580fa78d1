//! Every setting: its key, documentation, type, default and bounds. The structs, the parser and the
//! output of `logcabin config` are generated from this list.

mod usage;

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use usage::usage_settings;

use super::{
    cluster::{MediaDir, NatsServer, NodeName, StreamName},
    entry::{Entry, settings},
    federation::ServerPattern,
    monitor::{AccessFormat, AccessLogTo, ListenAddress},
    value::*,
};
use logcabin_base::{lifetime::Rule, network::Range, rate::Rate};
use logcabin_record::{address::Pattern, room_version::DEFAULT_ROOM_VERSION};

/// The addresses of this machine alone.
fn loopback() -> List<Range> {
    ["127.0.0.0/8", "::1"]
        .into_iter()
        .filter_map(|range| range.parse().ok())
        .collect::<Vec<_>>()
        .into()
}

usage_settings! { settings {
    /// Listening addresses, the server's name, and its data.
    server: Server {
        /// The addresses to listen on without TLS: for this machine, or a reverse proxy. A Unix
        /// socket ("unix:PATH") is for the user and the group that the server runs as.
        bind: Vec<Bind> = vec![Bind::Tcp(SocketAddr::from(([127, 0, 0, 1], 8008)))];
        /// The name in every user id (@ann:NAME) and room id. It is written to the log at the first
        /// start and cannot be changed afterwards.
        name: ruma::OwnedServerName = ruma::owned_server_name!("localhost");
        /// The directory of the log and all other data.
        data_dir: PathBuf = PathBuf::from("./data");
        /// The prefix of the API's paths.
        prefixes: Vec<PathPrefix> = vec![PathPrefix::new("/_svc"), PathPrefix::new("/_matrix")];
        /// The address at which clients reach this server, which /.well-known/matrix/client tells
        /// them. "auto" is, with HTTPS of its own, the first of `acme.domains`, or else the
        /// server's name; without, it is the first address of `bind`, with http, or nothing if that
        /// does not work on other machines (0.0.0.0, or a loopback address behind a proxy).
        public_url: PublicUrl = PublicUrl::Auto;
        /// Whether /.well-known/matrix/client and login responses tell clients how to reach this
        /// server. Otherwise the former returns 404, and the latter leave it out.
        discovery: bool = true;
        /// The identity server that clients are told with this server's address; "off" for none.
        identity_server: Option<BaseUrl> = None;
        /// How to contact the administrators. Shown at /.well-known/matrix/support and to users at
        /// a limit of the server. With "none", users are referred to the domain's postmaster.
        admin_contact: AdminContact = AdminContact::None;
        /// If this server's name is that of a policy server: its public ed25519 key, in unpadded
        /// base64. Shown at /.well-known/matrix/policy_server.
        policy_server_key: PublicKey = PublicKey::None;
        /// Trust the last address in the header X-Forwarded-For. Only behind a proxy that sets it:
        /// otherwise anyone could forge addresses. It never holds at addresses with TLS of this
        /// server's own. Without it, all who come by a Unix socket count as one address.
        trust_forwarded_for: bool = false;
        /// Whether connections to `bind` begin with a PROXY header of version 2, as HAProxy writes
        /// it with `send-proxy-v2`: the address in it is the client's, and X-Forwarded-For does not
        /// count. Connections without one, or not from `http.proxy_protocol_from`, are closed.
        proxy_protocol: bool = false;
        /// The memory that the server should use, in bytes. Its caches are sized accordingly.
        memory_bytes: u64 = 128 * 1024 * 1024, in 67_108_864..=1_099_511_627_776;
        /// What is printed, in the syntax of RUST_LOG; the variable LOGCABIN_LOG replaces it.
        log_filter: String = "info".to_owned();
    }

    /// HTTPS by the server itself: with a certificate from these files, or by `[acme]`.
    tls: Tls {
        /// The addresses to listen on with HTTPS, if there is a certificate.
        bind: Vec<SocketAddr> = vec![SocketAddr::from(([0, 0, 0, 0], 443))];
        /// Whether connections to `bind` begin with a PROXY header, before TLS (see
        /// `server.proxy_protocol`).
        proxy_protocol: bool = false;
        /// A file with the certificate for the name of `server.public_url` and those between it and
        /// a known authority (PEM). It is read again when it changes. "off" if `acme.enabled`.
        certificate: Option<FilePath> = None;
        /// A file with the private key of the certificate (PEM).
        certificate_key: Option<FilePath> = None;
        /// The addresses that redirect to HTTPS, such as "0.0.0.0:80", and answer "http-01".
        redirect_bind: List<SocketAddr> = List::default();
    }

    /// A certificate from an authority such as Let's Encrypt, by ACME, renewed in time.
    acme: Acme {
        /// Whether to get a certificate. With this you agree to the authority's terms of service.
        enabled: bool = false;
        /// The names of the certificate, that for clients first; none means the server's name.
        domains: List<HostName> = List::default();
        /// Mail addresses at which the authority may reach you.
        contact: List<String> = List::default();
        /// The authority; the host `acme-staging-v02.api.letsencrypt.org` is for tries.
        directory: WebUrl = WebUrl::new("https://acme-v02.api.letsencrypt.org/directory");
        /// A file with certificates (PEM) that are trusted for `directory`, too; "off" for none.
        ca: Option<FilePath> = None;
        /// How the names are shown to be this server's: "http-01" needs port 80 of each of them at
        /// `tls.redirect_bind`, "tls-alpn-01" port 443 at `tls.bind`.
        challenge: AcmeChallenge = AcmeChallenge::Http01;
        /// For an authority with customers only (external account binding): the id of your key.
        eab_key_id: Option<String> = None;
        /// A file with that key (HMAC), in base64url, as the authority gave it.
        eab_key_file: Option<SecretFile> = None;
    }

    /// Who may create an account.
    registration: Registration {
        /// Whether anyone may register. "auto" means only while every address of `server.bind` is a
        /// loopback address and none of `server.public_url`, `server.trust_forwarded_for` and
        /// `server.proxy_protocol` indicates a proxy, so that nobody opens a server to the public
        /// by accident.
        open: OpenRegistration = OpenRegistration::Auto;
        /// The maximum number of accounts, including guests and deactivated accounts; 0 means any
        /// number. Simultaneous registrations may exceed it slightly.
        max_accounts: usize = 0, in 0..=1_000_000_000;
        /// A secret with which tools create accounts, including administrators, even while
        /// registration is closed (`register_new_matrix_user`, at /_synapse/admin/v1/register).
        /// Best set in the environment. The server warns of one with fewer than 16 characters.
        shared_secret: Option<SharedSecret> = None;
        /// The stages of registration, in order: "dummy" (nothing), "token" (a registration token),
        /// "captcha", "terms" (agreement to the documents of `terms`), "email" and "msisdn"
        /// (confirmation of an e-mail address or a phone number). "email|msisdn" offers a choice,
        /// "email|dummy" makes a stage optional.
        require: Vec<Requirement> = vec![Requirement::default()];
        /// Whether accounts that people register for themselves wait until an administrator has
        /// approved them (`logcabin user approve`). Accounts of application services and guests do
        /// not, nor do those that administrators make.
        approval: bool = false;
        /// What newcomers are asked while `approval` is on; "off" for nothing. Administrators see
        /// the answer.
        question: Option<String> = None;
        /// Whether guests may register, without any of these stages.
        guests: bool = false;
        /// A TOML file with the documents that users agree to, "off" for none: a table for each,
        /// under any name, with its `version` and, for each language, `{ name = "…", url =
        /// "https://…" }`, as in `[privacy_policy]`, `version = "1.0"`, `en = { name = "Privacy",
        /// url = "https://…" }`.
        terms: Option<FilePath> = None;
    }

    /// The captcha of registration: reCAPTCHA 2 with the checkbox, or a compatible service.
    captcha: Captcha {
        /// The site key, which clients and the captcha's page get; "off" for no captcha.
        public_key: Option<String> = None;
        /// A file with the secret key and nothing else; "off" for none.
        secret_key_file: Option<SecretFile> = None;
        /// The address that verifies responses.
        verify_url: WebUrl = WebUrl::new("https://www.google.com/recaptcha/api/siteverify");
        /// The script of the captcha. It may load more from its own origin (and Google's from other
        /// Google hosts).
        script_url: WebUrl = WebUrl::new("https://www.google.com/recaptcha/api.js");
    }

    /// Logging in.
    login: Login {
        /// Whether clients can log in and register by the API alone, as all could before OAuth 2.0.
        /// Without it, only application services can, and those who know
        /// `registration.shared_secret`.
        legacy: bool = true;
        /// Whether users can log in with a password.
        password: bool = true;
        /// Whether a logged-in device can get a token with which another device logs in.
        get_token: bool = true;
        /// The lifetime of such a token, in seconds.
        get_token_seconds: u64 = 300, in 1..=3600;
    }

    /// OAuth 2.0: users log in and register on this server's own pages, and allow clients what
    /// these ask for. Browsers must reach the server at `server.public_url`.
    oauth: Oauth {
        /// Whether clients can log in this way.
        enabled: bool = true;
        /// Whether clients can register themselves, as those of Matrix do. Otherwise only those of
        /// `clients` can log in.
        registration: bool = true;
        /// Clients that need not register, such as other services to which users log in with their
        /// account here: each in a TOML file of its own (see docs/oauth.md).
        clients: List<FilePath> = List::default();
        /// Seconds after which a registered client that no user has granted anything is removed.
        unused_client_seconds: u64 = 86_400, in 3600..=31_536_000;
        /// Seconds for which a browser stays signed in to the server's pages.
        browser_seconds: u64 = 86_400, in 300..=2_592_000;
        /// Seconds after which the key that signs ID tokens is replaced.
        rotation_seconds: u64 = 90 * 86_400, in 86_400..=315_360_000;
    }

    /// Single sign-on: logging in through another service.
    sso: Sso {
        /// The providers, each described in a TOML file of its own (see docs/sso.md).
        providers: List<FilePath> = List::default();
        /// The addresses to which browsers are sent after a login without confirmation. For other
        /// addresses, a page asks the user first and names the host, so that following a link does
        /// not give an account away.
        redirects: List<RedirectPrefix> = List::default();
        /// Whether other addresses are allowed at all.
        other_redirects: bool = true;
        /// The lifetime of the token that a browser brings back, in seconds.
        token_seconds: u64 = 120, in 1..=3600;
    }

    /// Rate limits for what writes or is expensive, unless the specification exempts it.
    rate_limits: RateLimits {
        /// Whether rate limits apply.
        enabled: bool = true;
        /// All limited requests without a login from one address. (For IPv6, an address here is a
        /// /64.)
        address: Rate = Rate::per_second(5, 50);
        /// All limited requests of one user, on all devices.
        user: Rate = Rate::per_second(50, 500);
        /// All limited requests of one device.
        device: Rate = Rate::per_second(30, 300);
        /// Kilobytes of request bodies from one user, or from one address without a login. This
        /// limits how fast one user can make the log grow. Uploaded files do not count (see
        /// `media.user_quota_bytes`).
        written_kilobytes: Rate = Rate::per_minute(15_360, 65_536);
        /// The same over days: 512 MiB a day, and once as much after a pause.
        daily_kilobytes: Rate = Rate::per_hour(21_845, 524_288);
        /// Users with a limit of their own instead of all others, or "off" for none: bots,
        /// bridges.
        users: List<UserRate> = List::default();
        /// Logging in; like all that follow, for one user, or for one address without a login.
        login: Rate = Rate::per_second(1, 20);
        /// Exchanging refresh tokens.
        refresh: Rate = Rate::per_second(5, 100);
        /// Registering: an account takes at least two requests.
        registration: Rate = Rate::per_second(1, 30);
        /// Registering OAuth clients, and asking that a device be logged in from elsewhere.
        clients: Rate = Rate::per_minute(30, 60);
        /// Changing the password, adding addresses, deactivating the account, renaming and removing
        /// devices.
        account: Rate = Rate::per_second(1, 20);
        /// Creating and upgrading rooms.
        rooms: Rate = Rate::per_second(1, 30);
        /// Joining rooms and knocking.
        joins: Rate = Rate::per_second(2, 50);
        /// Getting into calls.
        calls: Rate = Rate::per_second(1, 30);
        /// Inviting.
        invites: Rate = Rate::per_second(2, 50);
        /// Sending messages and other events, including kicks, bans and leaves.
        messages: Rate = Rate::per_second(10, 100);
        /// Receipts, typing notifications, presence, to-device messages.
        ephemeral: Rate = Rate::per_second(20, 300);
        /// Uploading, querying and claiming encryption keys.
        keys: Rate = Rate::per_second(20, 200);
        /// Writing to room key backups. A client that starts a backup sends hundreds of requests.
        key_backups: Rate = Rate::per_second(20, 400);
        /// Changing a profile. Each change is sent to every room of the user.
        profile: Rate = Rate::per_minute(10, 30);
        /// Setting account data, tags, push rules and pushers. A login sets about twenty.
        settings: Rate = Rate::per_second(10, 300);
        /// Creating and removing aliases, and publishing rooms in the directory.
        directory: Rate = Rate::per_second(1, 50);
        /// Searching for messages, users, rooms and spaces.
        search: Rate = Rate::per_second(5, 50);
        /// Reading history, members and state of rooms.
        reads: Rate = Rate::per_second(20, 200);
        /// Uploading and downloading files.
        media: Rate = Rate::per_second(20, 200);
        /// The share of one processor, in percent, that one user's long reads may take over time:
        /// initial syncs, searches, long pages. After a pause, they may take ten seconds at once.
        processor_percent: u32 = 25, in 1..=10_000;
        /// Reporting events, rooms and users.
        reports: Rate = Rate::per_minute(6, 20);
        /// Administration over HTTP.
        admin: Rate = Rate::per_second(10, 100);
        /// Requests of one other homeserver.
        federation: Rate = Rate::per_second(50, 1000);
        /// E-mails and text messages sent at the request of one address.
        /// (`threepids.messages_per_address` limits the messages to one recipient.)
        notices: Rate = Rate::per_minute(1, 5);
        /// Wrong passwords from one address, for any user.
        wrong_passwords_of_address: Rate = Rate::per_minute(6, 20);
        /// Wrong passwords for one user, from addresses at which the user was not recently active:
        /// guesses from elsewhere do not lock the user out.
        wrong_passwords_for_user: Rate = Rate::per_minute(1, 30);
    }

    /// How much one user may store. Existing data above a quota stays readable; it can be deleted,
    /// or replaced with something smaller. Users of application services are exempt unless their
    /// registration sets `rate_limited`, and so are users whose rate is "off" in
    /// `rate_limits.users`. See also `media.user_quota_bytes` and `delayed_events.max_per_user`.
    quotas: Quotas {
        /// Account data entries, counting global ones and those of all rooms.
        account_data_types: usize = 10_000, in 1..=10_000_000;
        /// Bytes of account data, including type names and a small overhead for each entry.
        account_data_bytes: u64 = 16 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Filters. The API cannot delete filters; at the quota, clients can still send filters
        /// inline.
        filters: usize = 1000, in 1..=10_000_000;
        /// Bytes of filters.
        filter_bytes: u64 = 4 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Devices. At the quota, a login as a new device is refused until another one is logged
        /// out.
        devices: usize = 1000, in 1..=1_000_000;
        /// Room aliases that the user created.
        aliases: usize = 500, in 0..=10_000_000;
        /// Rooms that the user has joined or knocked on.
        rooms: usize = 20_000, in 1..=10_000_000;
        /// Pending invites to the user. Every initial sync contains all of them.
        invites: usize = 5000, in 1..=10_000_000;
        /// Pending invites to the user from the same sender.
        invites_by_one: usize = 500, in 1..=10_000_000;
        /// To-device messages waiting for one device. While a device has this many, new messages to
        /// it are dropped; the ones already waiting are kept.
        to_device: usize = 100_000, in 1..=10_000_000;
        /// To-device messages waiting for one device from the same sender.
        to_device_by_one: usize = 10_000, in 1..=10_000_000;
        /// Room key backups. Clients delete the old backup when they create a new one.
        key_backups: usize = 50, in 1..=10_000;
        /// Keys in all of the user's backups.
        room_keys: usize = 1_000_000, in 1..=100_000_000;
        /// Bytes of these keys.
        room_key_bytes: u64 = 2 * 1024 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Open reports made by the user.
        reports: usize = 1000, in 1..=10_000_000;
    }

    /// Invites of users of this server. Users have rules of their own, see docs/moderation.md.
    invites: Invites {
        /// Who may invite users with whom they share no room: "allow" is anyone, "local" is users
        /// of this server, "refuse" is nobody but administrators and application services.
        strangers: StrangersInvite = StrangersInvite::Allow;
    }

    /// What is asked before users do something, and checked of their messages. Administrators and
    /// application services are exempt. See docs/moderation.md.
    antispam: Antispam {
        /// The address of a service that is asked (HTTP POST, JSON); "off" for none.
        hook_url: Option<SecretUrl> = None;
        /// A file with the secret by which the service knows that this server asks.
        hook_secret_file: Option<SecretFile> = None;
        /// What it is asked about: "registration", "login", "create_room", "invite", "join",
        /// "message", "upload", "profile", "address".
        hooks: List<HookPoint> = List(HookPoint::ALL.to_vec());
        /// Milliseconds to wait for an answer.
        hook_timeout_ms: u64 = 1000, in 10..=30_000;
        /// What happens without an answer: "open" allows, "closed" refuses.
        hook_fails: HookFailure = HookFailure::Open;
        /// Whether messages that a check below is against are refused, or only noted: "mark" or
        /// "refuse".
        checks: CheckOutcome = CheckOutcome::Mark;
        /// The same text in more rooms than this; 0 for any number.
        duplicate_rooms: u64 = 0, in 0..=10_000;
        /// Seconds in which that counts.
        duplicate_seconds: u64 = 300, in 1..=86_400;
        /// More users mentioned in one message than this; 0 for any number.
        mentions: u64 = 0, in 0..=10_000;
        /// More links in an hour than this, from accounts younger than `new_account_seconds`; 0 for
        /// any number.
        new_account_links: u64 = 0, in 0..=10_000;
        /// How long an account is new, in seconds.
        new_account_seconds: u64 = 86_400, in 60..=31_536_000;
    }

    /// Limits on connections and requests.
    http: Http {
        /// The largest JSON body, in bytes. An event may have 65,536; key uploads are the largest.
        max_body_bytes: usize = 2 * 1024 * 1024, in 65_536..=268_435_456;
        /// Seconds in which a client must send the head of a request, and for which an idle
        /// connection is kept.
        header_timeout_seconds: u64 = 60, in 1..=3600;
        /// Seconds in which a client must send the body of a request, plus one second for each
        /// `min_body_bytes_per_second` bytes that have arrived.
        body_timeout_seconds: u64 = 20, in 1..=3600;
        /// The lowest rate at which the body of a request may arrive, in bytes per second, after
        /// the first `body_timeout_seconds`.
        min_body_bytes_per_second: u64 = 1024, in 1..=1_000_000_000;
        /// The proxies whose PROXY headers are believed, where `proxy_protocol` is set. Those who
        /// may connect to a Unix socket are believed there, too.
        proxy_protocol_from: List<Range> = loopback();
        /// Seconds after which a connection is closed if the client does not read its response.
        /// They count from the last bytes that the client read.
        response_timeout_seconds: u64 = 30, in 1..=3600;
        /// Open connections. Beyond it, a new one closes the one that has waited longest for its
        /// next request, or has a sync answered early. Fewer with few file descriptors.
        max_connections: usize = 20_000, in 1..=1_000_000;
        /// Open connections from one address (for IPv6, from one /64); further ones are closed.
        /// Never more than half of `max_connections`. With `server.trust_forwarded_for`,
        /// connections are the proxy's, and this limits the requests in progress for one client.
        /// Does not apply without rate limits.
        max_connections_per_address: usize = 2_000, in 1..=1_000_000;
        /// The bytes of unread responses that one user may have in memory. Further requests are
        /// refused with 429 until the client has read them.
        response_bytes_per_user: u64 = 32 * 1024 * 1024, in 1_048_576..=1_099_511_627_776;
        /// The same for everyone at one address (for IPv6, at one /64).
        response_bytes_per_address: u64 = 256 * 1024 * 1024, in 1_048_576..=1_099_511_627_776;
        /// The memory for bodies of requests and for answers of other servers that are on their way
        /// or being worked on, in bytes. A quarter is for requests and the rest for answers; one
        /// address, user or homeserver gets a part of it. If it is used up, the slowest and largest
        /// make room for others and are answered with 429. At least twelve times the largest body:
        /// `max_body_bytes`, or 8 MiB with federation.
        body_memory_bytes: u64 = 96 * 1024 * 1024, in 16_777_216..=1_099_511_627_776;
        /// Whether long responses are compressed (zstd, gzip) for clients that support it.
        compression: bool = true;
        /// A line for each request, without queries and bodies. It names users and addresses.
        access_log: Option<AccessFormat> = None;
        /// Where these lines go. A file is only appended to: rotate it with `copytruncate`.
        access_log_to: AccessLogTo = AccessLogTo::Stderr;
        /// Seconds that requests in progress get to finish when the server stops.
        shutdown_seconds: u64 = 10, in 0..=600;
    }

    /// The log.
    log: Log {
        /// The directory of the archive: plain files with every record, from which all data can be
        /// restored if the database is corrupt. Best on another disk, and of this data directory
        /// alone. "auto" is the directory `archive` in the data directory.
        archive_dir: ArchiveDir = ArchiveDir::Auto;
        /// The size at which a file of the archive is closed and the next one started, in bytes.
        archive_segment_bytes: u64 = 64 * 1024 * 1024, in 65_536..=1_099_511_627_776;
        /// When less than this is free on the disk, in bytes, writes are refused; reads continue.
        /// Uploads and thumbnails stop at twice as much.
        min_free_bytes: u64 = 256 * 1024 * 1024, in 0..=1_099_511_627_776;
        /// The NATS servers through which the nodes of a cluster share one log, such as
        /// "nats://10.0.0.1:4222". Without any, this server is alone, and its log is embedded. See
        /// `docs/cluster.md`.
        servers: List<NatsServer> = List::default();
        /// The monitoring addresses of the NATS servers, such as "http://10.0.0.1:8222". A node
        /// asks them at startup whether `sync_interval` is `always`, and refuses to start where it
        /// is not: such a server may lose messages in a power cut. Without any, the node cannot
        /// check.
        monitors: List<WebUrl> = List::default();
        /// The name of the stream on these servers. All nodes of a cluster have the same.
        stream: StreamName = StreamName::default();
        /// The number of NATS servers that keep the stream. Set when the stream is created.
        replicas: usize = 3, in 1..=5;
        /// The most bytes that the stream keeps. Set when the stream is created. A node that falls
        /// further behind copies the records that it lacks from another node.
        stream_bytes: u64 = 4 * 1024 * 1024 * 1024, in 16_777_216..=1_099_511_627_776;
        /// A file with the credentials for the NATS servers, as `nsc` writes them (JWT and seed).
        credentials_file: Option<FilePath> = None;
        /// A file with certificates (PEM) of authorities that are trusted for the NATS servers, in
        /// addition to the system's. It requires TLS.
        ca_file: Option<FilePath> = None;
        /// The name of this node, in the cluster. "auto" is the name of the machine and the first
        /// port of `server.bind`.
        node: NodeName = NodeName::Auto;
    }

    /// Metrics: what the server counts and measures of itself. See `docs/monitoring.md`.
    metrics: Metrics {
        /// The address at which Prometheus gets them, at `/metrics`; "off" for none. They name no
        /// user and no room, but anyone who reaches the address can read them.
        bind: Option<ListenAddress> = None;
        /// The address of an OpenTelemetry collector, by OTLP over HTTP, for example
        /// "http://127.0.0.1:4318"; "off" for none. Metrics are sent to `/v1/metrics` below it.
        endpoint: Option<WebUrl> = None;
        /// Seconds between two reports.
        every_seconds: u64 = 60, in 1..=3_600;
    }

    /// The console: pages for administrators, at `/_logcabin/console`. See `docs/console.md`.
    console: Console {
        /// Whether it is served.
        enabled: bool = false;
    }

    /// Traces of requests, by OpenTelemetry. See `docs/monitoring.md`.
    traces: Traces {
        /// The address of an OpenTelemetry collector, by OTLP over HTTP, for example
        /// "http://127.0.0.1:4318"; "off" for no traces. Spans are sent to `/v1/traces` below it.
        endpoint: Option<WebUrl> = None;
        /// How many of the requests are traced, in percent. A request with a `traceparent` header
        /// says itself whether it is to be traced.
        sample_percent: u32 = 1, in 0..=100;
        /// How many requests are traced in a second, at most, including those that ask for it.
        per_second: u32 = 20, in 1..=10_000;
    }

    /// Snapshots of the projections, which make starts fast.
    snapshots: Snapshots {
        /// The number of records after which a running server writes the next snapshot. It also
        /// writes one when it stops.
        every_records: u64 = 100_000, in 100..=1_000_000_000;
        /// How many snapshots are kept.
        keep: usize = 2, in 1..=100;
        /// Hours between two comparisons of the projections with a replay of the whole log. A
        /// comparison takes half of a processor and doubles the memory for a while; 0 for none.
        scrub_hours: u64 = 168, in 0..=87_600;
    }

    /// Signed checkpoints of the log, which proofs refer to.
    proofs: Proofs {
        /// The number of records after which the next checkpoint is made; 0 for no such rule.
        every_records: u64 = 10_000, in 0..=1_000_000_000;
        /// Minutes after which the next checkpoint is made, if anything was written; 0 for no such
        /// rule. Another one is made when the server stops, unless both are 0.
        every_minutes: u64 = 60, in 0..=525_600;
    }

    /// What is erased from the log.
    erasure: Erasure {
        /// Seconds after which the content of a redacted event is erased from the log and the
        /// archive; "off" keeps it. It is hidden at once in any case.
        redacted_after_seconds: EraseAfter = EraseAfter::Seconds(7 * 24 * 3600);
        /// Seconds between two sweeps. A sweep erases what is due, and receipts and typing
        /// notifications that later ones supersede. Then it rewrites the affected files, which
        /// temporarily takes as much disk space again.
        sweep_seconds: u64 = 24 * 3600, in 1..=31_536_000;
        /// The share of superseded records, in percent, at which the log's files are rewritten for
        /// these alone. A segment of the archive is rewritten at this share of its records, or
        /// after a week. After erasures of content, files are rewritten at every sweep.
        compact_percent: u64 = 25, in 1..=100;
    }

    /// The lifetime of events (MSC1763). State events stay.
    retention: Retention {
        /// Seconds after which events expire in rooms without a lifetime of their own; the next
        /// sweep erases them. "off" keeps them.
        default_seconds: EraseAfter = EraseAfter::Off;
        /// Whether rooms may set another lifetime with the state event `m.room.retention`.
        rooms_say: bool = true;
        /// The shortest lifetime that a room can set, in seconds; shorter ones are raised to it.
        lowest_seconds: u64 = 24 * 3600, in 0..=4_000_000_000;
        /// The longest lifetime that a room can set, in seconds; "off" for any.
        highest_seconds: EraseAfter = EraseAfter::Off;
        /// Exceptions to all of these: the first that matches an event sets its lifetime in
        /// seconds, or "off". An exception is a room's id, an event type and the lifetime; `*`
        /// matches every room or type.
        rules: List<Rule> = List::default();
    }

    /// Read receipts and typing notifications.
    receipts: Receipts {
        /// Milliseconds for which those of a large room are gathered into one record, which wakes
        /// waiting clients once; 0 gathers none.
        gather_ms: u64 = 100, in 0..=10_000;
        /// The number of joined members that makes a room large. In such a room, typing is recorded
        /// at most once a second.
        gather_members: u64 = 100, in 1..=1_000_000;
    }

    /// Rules for new passwords, and their hashes.
    passwords: Passwords {
        /// The minimum length of a new password, in characters.
        min_length: usize = 8, in 1..=128;
        /// Whether a new password must contain a letter.
        require_letter: bool = false;
        /// Whether it must contain a lower-case letter.
        require_lowercase: bool = false;
        /// Whether it must contain an upper-case letter.
        require_uppercase: bool = false;
        /// Whether it must contain a digit.
        require_digit: bool = false;
        /// Whether it must contain a character that is neither a letter nor a digit.
        require_symbol: bool = false;
        /// Whether to refuse very common passwords, such as "password1".
        deny_common: bool = true;
        /// Further passwords to refuse, ignoring case. The user's own name is always refused.
        denied: List<DeniedPassword> = List::default();
        /// Iterations of PBKDF2-HMAC-SHA-512 for new hashes (OWASP recommends 210,000). Older
        /// hashes with fewer are replaced at the user's next login.
        iterations: u32 = 210_000, in 1_000..=10_000_000;
        /// A file with the secret that another server added to passwords before it hashed them
        /// (Synapse's `password_config.pepper`), if its accounts were imported. It is needed until
        /// all of them have logged in once; "off" for none. If there were several, each has a line;
        /// what is no line of text is written in base64, after "base64:".
        imported_pepper_file: Option<SecretFile> = None;
        /// Hashes computed at once, at a low priority; 0 means one for each processor except one.
        concurrent: usize = 0, in 0..=1024;
    }

    /// E-mail from the server. Without a host it sends none, and offers nothing that needs it.
    email: Email {
        /// The mail server's host name or address; "off" for none.
        host: Option<String> = None;
        /// Its port; 0 means the default: 587 with STARTTLS, 465 with TLS, 25 without either.
        port: u32 = 0, in 0..=65_535;
        /// How the connection is secured. "none" is only allowed for a mail server on this machine
        /// (`host` is "localhost" or a loopback address), because mails contain links that reset
        /// passwords.
        security: MailSecurity = MailSecurity::Starttls;
        /// A file with certificates (PEM) of authorities to trust in addition to the system's;
        /// "off" for none.
        certificates: Option<FilePath> = None;
        /// The user name for the mail server; "off" to send without a login.
        user: Option<String> = None;
        /// The password for the mail server.
        password: Option<Hidden> = None;
        /// A file with the password instead, for example one that only the server may read.
        password_file: Option<SecretFile> = None;
        /// The sender, such as "Example <noreply@example.org>"; "off" is noreply at `server.name`.
        from: Option<String> = None;
        /// Seconds in which a mail must be handed over, including the wait for earlier ones.
        timeout_seconds: u64 = 20, in 1..=300;
        /// Mails handed over at the same time.
        concurrent: usize = 8, in 1..=1000;
    }

    /// Text messages, through an HTTP gateway. Without its address the server sends none, and
    /// offers nothing that needs them.
    sms: Sms {
        /// The address to which each message is posted; "off" for none.
        url: Option<SecretUrl> = None;
        /// Headers of the request, such as "Authorization: Bearer ...".
        headers: List<Hidden> = List::default();
        /// The body, a JSON object. In its strings, {number} is replaced by the phone number in
        /// digits, with the country code and without a plus, {text} by the message, and {server} by
        /// `server.name`.
        template: JsonTemplate = JsonTemplate::usual();
        /// Seconds in which a message must be handed over, including the wait for earlier ones.
        timeout_seconds: u64 = 20, in 1..=300;
        /// Messages handed over at the same time.
        concurrent: usize = 8, in 1..=1000;
    }

    /// E-mail addresses and phone numbers of accounts.
    threepids: Threepids {
        /// Patterns of allowed ones. A medium without a pattern allows all.
        allow: List<Pattern> = List::default();
        /// Patterns of forbidden ones, even if `allow` matches.
        deny: List<Pattern> = List::default();
        /// Seconds in which a confirmation must be completed and used.
        validation_seconds: u64 = 3600, in 60..=604_800;
        /// Messages to one address within that time, no matter who requests them.
        messages_per_address: u64 = 10, in 1..=1_000_000;
        /// Whether somebody without a login who registers with an address, or asks for a new
        /// password, is told if an account has that address. Otherwise the response is always the
        /// same, and only the owner of the address learns more, by a message. (A user who adds an
        /// address to an account is always told if it is in use, as the specification requires.)
        reveal: bool = false;
        /// The hosts to which a browser may be sent after a confirmation, with * for any part, such
        /// as "app.example.org" or "*.example.org", in addition to that of `server.public_url`.
        next_link_hosts: List<String> = List::default();
        /// The identity servers on which users may publish their addresses.
        identity_servers: List<IdentityServer> = List::default();
    }

    /// Connections to others: homeservers, mail and identity servers, providers of single sign-on,
    /// application services, gateways, authorities.
    outbound: Outbound {
        /// Files with certificates (PEM) of authorities that are trusted for these, in addition to
        /// the system's. The mail server and homeservers have settings of their own,
        /// `email.certificates` and `federation.ca`.
        certificates: List<FilePath> = List::default();
        /// The HTTP proxy through which all of these connections lead, by CONNECT. It must permit
        /// that for each port: 8448 and 443, 587 for mail, 80. Not for NATS, DNS, and the test of a
        /// TURN server. Variables such as https_proxy have no effect.
        proxy: Option<ProxyUrl> = None;
        /// The user name for the proxy; "off" for none.
        proxy_user: Option<String> = None;
        /// The password for the proxy.
        proxy_password: Option<Hidden> = None;
        /// A file with the password instead, for example one that only the server may read.
        proxy_password_file: Option<SecretFile> = None;
        /// What is reached without the proxy: names with all below them, such as "example.org",
        /// only those below, such as ".example.org", addresses, and networks. Networks hold for the
        /// addresses of names too, unless the proxy resolves them.
        no_proxy: List<NoProxy> = List(NoProxy::this_machine());
        /// Whether the proxy resolves names. Otherwise this server does, and asks for the address
        /// that it has checked. With this, only private addresses as such, and names of private
        /// networks (".local", ".internal", those without a dot), are refused to users: it is for
        /// the proxy to refuse other names of your network. Services by SRV records need DNS here.
        proxy_resolves_names: bool = false;
        /// Whether this is a rehearsal (`logcabin serve --rehearsal`): nothing leaves the server,
        /// no notification, mail, text message, transaction or other request, and no look-up of a
        /// name. Other homeservers are not served, no certificate is ordered, no metrics are shown
        /// at `metrics.bind`, clients are told of no other address, and archive and files are those
        /// in the data directory, whatever is set. That directory can never be used for anything
        /// but rehearsals again.
        rehearsal: bool = false;
    }

    /// Other homeservers: their users are in rooms with those of this one (see docs/federation.md).
    federation: Federation {
        /// Whether this homeserver and others can reach each other.
        enabled: bool = false;
        /// The addresses to listen on for other homeservers; Unix sockets have no TLS.
        bind: List<Bind> = List(vec![Bind::Tcp(SocketAddr::from(([0, 0, 0, 0], 8448)))]);
        /// Whether connections to `bind` begin with a PROXY header (see `server.proxy_protocol`).
        proxy_protocol: bool = false;
        /// Whether other homeservers are also served at `tls.bind` and `server.bind`: one port 443
        /// for all, which `delegate` names. `bind` may then be empty.
        at_client_addresses: bool = false;
        /// A file with the certificate for the server's name and those of the authorities between
        /// it and a known one (PEM). It is read again when it changes. "off" is the certificate of
        /// `[tls]` or `[acme]`, or without these no TLS, for a proxy in front.
        certificate: Option<FilePath> = None;
        /// A file with the private key of the certificate (PEM).
        certificate_key: Option<FilePath> = None;
        /// Where other homeservers find this one, as /.well-known/matrix/server tells them: a host
        /// name with a port if need be; "off" if it is at the server's name.
        delegate: Option<ruma::OwnedServerName> = None;
        /// The homeservers to federate with; an empty list means all.
        allow: List<ServerPattern> = List::default();
        /// The homeservers never to federate with, even if `allow` names them.
        deny: List<ServerPattern> = List::default();
        /// Addresses of your own networks that other homeservers may have. Other addresses that are
        /// not public are refused, even through names, because users choose whom to reach.
        allowed_networks: List<Range> = List::default();
        /// A file with certificates (PEM) of authorities that are trusted for other homeservers, in
        /// addition to the system's; "off" for none.
        ca: Option<FilePath> = None;
        /// The name servers to ask for addresses of other homeservers, instead of the system's.
        nameservers: List<SocketAddr> = List::default();
        /// Homeservers that are asked for the signing keys of others that cannot be reached. Their
        /// answers are trusted.
        notaries: List<ruma::OwnedServerName> = List::default();
    }
} }
