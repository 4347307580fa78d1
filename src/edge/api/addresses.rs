//! The addresses of this server, as others are told.

use ruma::api::client::session::login::v3 as login_v3;
use url::Url;

use logcabin_base::text::encoded;
use logcabin_config as config;

/// The public address of the client-server API.
pub(super) fn client_api(server: &config::Server) -> String {
    format!("{}{}/client/v3", server.url(), prefix(server))
}

/// The path prefix of addresses given to others: the standard one, if it is served.
pub(super) fn prefix(server: &config::Server) -> String {
    let mut prefixes: Vec<_> = server.prefixes.iter().map(ToString::to_string).collect();
    prefixes.sort_by_key(|prefix| prefix != "/_matrix");
    prefixes.into_iter().next().unwrap_or_default()
}

/// Whether this address leads a browser back to the login page after a login elsewhere.
pub(super) fn is_login_page(server: &config::Server, url: &Url) -> bool {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    server.prefixes.iter().any(|prefix| {
        let page = format!("{}{prefix}/static/client/login", server.url());
        url.as_str().strip_prefix(&page).is_some_and(|rest| rest.is_empty() || rest == "/")
    })
}

/// The path of the page of the console on which administrators log in.
pub(super) const CONSOLE_LOGIN: &str = "/_logcabin/console/login";

/// The path at which a browser sets out to the pages for signing in, to log in to the console.
pub(super) const CONSOLE_SIGN_IN: &str = "/_logcabin/console/sign_in";

/// Whether `url` is the address of [`CONSOLE_LOGIN`], to which single sign-on may lead back.
pub(super) fn is_console_login(
    console: &config::Console,
    server: &config::Server,
    url: &Url,
) -> bool {
    let own = format!("{}{CONSOLE_LOGIN}", server.url()).parse::<Url>();
    console.enabled && own.is_ok_and(|own| own == *url)
}

/// Whether clients can use OAuth 2.0: it is not turned off, and the server knows by which address
/// browsers reach it.
pub(super) fn is_offered(oauth: &config::Oauth, server: &config::Server) -> bool {
    oauth.enabled && server.announced_url().is_some()
}

/// The issuer of OAuth 2.0: below it are all its endpoints and pages.
pub(super) fn issuer(server: &config::Server) -> String {
    format!("{}{}/oauth2", server.url(), prefix(server))
}

/// The path of the issuer. Pages link to each other by it, because they may be opened at another
/// address than the public one.
pub(super) fn path(server: &config::Server) -> String {
    let issuer = issuer(server);
    issuer.parse::<Url>().map_or(issuer, |url| url.path().to_owned())
}

/// The address of the page on which users manage their account.
pub(super) fn account_url(server: &config::Server) -> String {
    format!("{}/account", issuer(server))
}

/// The path of the page that goes on with this registration.
pub(super) fn sign_up_of(server: &config::Server, session: &str) -> String {
    format!("{}/sign_up?session={}", path(server), encoded(session))
}

/// Where clients, also those of other homeservers, are let into calls by OpenID tokens. What they
/// append is served by [`rtc`](super::rtc).
pub(super) fn call_service(server: &config::Server) -> String {
    format!("{}{}/client/unstable/org.logcabin/rtc", server.url(), prefix(server))
}

/// What `/.well-known/matrix/client` says, for login responses.
pub(super) fn discovery_info(server: &config::Server) -> Option<login_v3::DiscoveryInfo> {
    let homeserver = login_v3::HomeserverInfo::new(base_url(server)?);
    let mut info = login_v3::DiscoveryInfo::new(homeserver);
    info.identity_server =
        identity_server(server).map(|url| login_v3::IdentityServerInfo::new(url.to_owned()));
    Some(info)
}

/// The address that clients are told, if they are told any.
pub(super) fn base_url(server: &config::Server) -> Option<String> {
    server.announced_url().filter(|_| server.discovery)
}

/// The identity server that clients are told.
pub(super) fn identity_server(server: &config::Server) -> Option<&str> {
    server.identity_server.as_deref()
}
