//! A provider: its file, and the questions to it.

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use openidconnect::{
    AccessTokenHash, AdditionalClaims, AuthType, AuthUrl, AuthenticationFlow, AuthorizationCode,
    Client, ClientId, ClientSecret, CsrfToken, EmptyAdditionalProviderMetadata,
    EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet, EndpointSet, HttpRequest,
    HttpResponse, IdTokenFields, IssuerUrl, JsonWebKeySet, JsonWebKeySetUrl, Nonce,
    OAuth2TokenResponse as _, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, ResponseTypes,
    Scope, StandardErrorResponse, StandardTokenResponse, TokenResponse as _, TokenUrl,
    UserInfoClaims, UserInfoUrl,
    core::{
        CoreAuthDisplay, CoreAuthPrompt, CoreClientAuthMethod, CoreErrorResponseType,
        CoreGenderClaim, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm, CoreProviderMetadata, CoreResponseType, CoreRevocableToken,
        CoreRevocationErrorResponse, CoreSubjectIdentifierType, CoreTokenIntrospectionResponse,
        CoreTokenType,
    },
};
use ruma::OwnedMxcUri;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::{OidcError, Person};
use crate::outbound::{Outbound, OutboundError, OutboundRequest};
use logcabin_base::{limits, secret_text::SecretText};

/// How long a provider's metadata is used without asking again.
const KEPT: Duration = Duration::from_secs(3600);
/// How long a provider that did not answer is not asked for its metadata again.
const PAUSE: Duration = Duration::from_secs(5);

/// The contents of a provider's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    id: String,
    name: String,
    icon: Option<OwnedMxcUri>,
    brand: Option<String>,
    issuer: IssuerUrl,
    client_id: ClientId,
    client_secret: Option<SecretText>,
    client_secret_file: Option<SecretText>,
    #[serde(default = "default_scopes")]
    scopes: BTreeSet<String>,
    #[serde(default = "yes")]
    allow_registration: bool,
    #[serde(default)]
    allow_existing_users: bool,
    #[serde(default)]
    add_email: bool,
    #[serde(default)]
    claims: Claims,
    endpoints: Option<Endpoints>,
}

/// The claims with a user's data.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Claims {
    localpart: String,
    display_name: String,
    email: String,
}

impl Default for Claims {
    fn default() -> Self {
        let [localpart, display_name, email] =
            ["preferred_username", "name", "email"].map(ToOwned::to_owned);
        Self { localpart, display_name, email }
    }
}

/// The endpoints of a provider without discovery.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Endpoints {
    authorization: AuthUrl,
    token: TokenUrl,
    jwks: JsonWebKeySetUrl,
    userinfo: Option<UserInfoUrl>,
}

fn default_scopes() -> BTreeSet<String> {
    ["profile", "email"].map(ToOwned::to_owned).into()
}

const fn yes() -> bool {
    true
}

/// All non-standard claims.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Others(Map<String, Value>);

impl AdditionalClaims for Others {}

type Tokens = StandardTokenResponse<
    IdTokenFields<
        Others,
        EmptyExtraTokenFields,
        CoreGenderClaim,
        CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm,
    >,
    CoreTokenType,
>;

type Relying = Client<
    Others,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    Tokens,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// A provider.
pub struct Provider {
    settings: Settings,
    client_secret: Option<ClientSecret>,
    /// The redirect URI.
    callback: RedirectUrl,
    outbound: Outbound,
    known: Mutex<ProviderCache>,
}

/// Cached metadata of a provider.
#[derive(Default)]
struct ProviderCache {
    metadata: Option<(Arc<CoreProviderMetadata>, Instant)>,
    failed: Option<(String, Instant)>,
}

impl Provider {
    pub(super) fn load(path: &Path, callback: &str, outbound: &Outbound) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let settings: Settings = toml::from_str(&text).map_err(|error| {
            // The whole error quotes the line, which may contain a secret.
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            format!("line {line}: {}", error.message())
        })?;
        let fine = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        if settings.id.is_empty() || settings.id.len() > 255 || !settings.id.chars().all(fine) {
            return Err("`id` has 1 to 255 letters, digits and characters of -._~".to_owned());
        }
        if settings.name.trim().is_empty() {
            return Err("`name` is empty".to_owned());
        }
        let client_secret = match (&settings.client_secret, &settings.client_secret_file) {
            (Some(_), Some(_)) => {
                return Err(
                    "`client_secret` and `client_secret_file` exclude each other".to_owned()
                );
            }
            (None, Some(name)) => {
                // Relative to the file, as other paths in it.
                let file = path.parent().unwrap_or_else(|| Path::new(""));
                let file = file.join(name.expose());
                // Without the name of the member: somebody may have put the secret there.
                let secret = std::fs::read_to_string(&file)
                    .map_err(|error| format!("`client_secret_file`: {error}"))?;
                Some(ClientSecret::new(secret.trim().to_owned()))
            }
            (Some(secret), None) => Some(ClientSecret::new(secret.expose().to_owned())),
            (None, None) => None,
        };
        let callback = RedirectUrl::new(callback.to_owned()).map_err(|error| {
            format!("`server.public_url` does not make an address to come back to: {error}")
        })?;
        let (outbound, known) = (outbound.clone(), Mutex::default());
        Ok(Self { settings, client_secret, callback, outbound, known })
    }

    pub fn id(&self) -> &str {
        &self.settings.id
    }

    /// Its display name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub const fn icon(&self) -> Option<&OwnedMxcUri> {
        self.settings.icon.as_ref()
    }

    /// Its brand, if it is a well-known service.
    pub fn brand(&self) -> Option<&str> {
        self.settings.brand.as_deref()
    }

    /// Whether logins create accounts.
    pub const fn allows_registration(&self) -> bool {
        self.settings.allow_registration
    }

    /// Whether a first login is linked to an existing account of the same name.
    pub const fn allows_existing_users(&self) -> bool {
        self.settings.allow_existing_users
    }

    /// The address to send a browser to. `state` and `nonce` come back with the answer; `verifier`
    /// is needed to redeem the code.
    pub async fn begin(
        &self,
        state: String,
        nonce: String,
        verifier: String,
    ) -> Result<url::Url, OidcError> {
        let client = self.client(&*self.metadata(KEPT).await?);
        let flow = AuthenticationFlow::<CoreResponseType>::AuthorizationCode;
        let challenge =
            PkceCodeChallenge::from_code_verifier_sha256(&PkceCodeVerifier::new(verifier));
        let scopes = self.settings.scopes.iter().filter(|scope| *scope != "openid");
        let (url, ..) = client
            .authorize_url(flow, || CsrfToken::new(state), || Nonce::new(nonce))
            .add_scopes(scopes.map(|scope| Scope::new(scope.clone())))
            .set_pkce_challenge(challenge)
            .url();
        Ok(url)
    }

    /// Redeems a code for the user's identity.
    pub async fn finish(
        &self,
        code: String,
        nonce: String,
        verifier: String,
    ) -> Result<Person, OidcError> {
        let unavailable = |error: &dyn fmt::Display| OidcError::Unavailable(error.to_string());
        let mut metadata = self.metadata(KEPT).await?;
        let client = self.client(&metadata);
        let http = self.http();
        let tokens = client
            .exchange_code(AuthorizationCode::new(code))
            .map_err(|error| unavailable(&error))?
            .set_pkce_verifier(PkceCodeVerifier::new(verifier))
            .request_async(&http)
            .await
            .map_err(|error| match error {
                openidconnect::RequestTokenError::ServerResponse(answer) => {
                    OidcError::Refused(answer.error().as_ref().to_owned())
                }
                error => unavailable(&error),
            })?;
        let id_token = tokens
            .id_token()
            .ok_or_else(|| OidcError::Untrusted("there is no ID token".to_owned()))?;
        let nonce = Nonce::new(nonce);
        let verified = |metadata: &CoreProviderMetadata| {
            let client = self.client(metadata);
            let verifier = client.id_token_verifier();
            let claims = id_token.claims(&verifier, &nonce).cloned();
            let claims = claims.map_err(|error| OidcError::Untrusted(error.to_string()))?;
            if let Some(expected) = claims.access_token_hash() {
                let untrusted = |error: &dyn fmt::Display| OidcError::Untrusted(error.to_string());
                let alg = id_token.signing_alg().map_err(|error| untrusted(&error))?;
                let key = id_token.signing_key(&verifier).map_err(|error| untrusted(&error))?;
                let actual = AccessTokenHash::from_token(tokens.access_token(), alg, key);
                if actual.map_err(|error| untrusted(&error))? != *expected {
                    return Err(untrusted(&"the access token is another one"));
                }
            }
            Ok(claims)
        };
        let claims = match verified(&metadata) {
            Ok(claims) => claims,
            // The keys may have been rotated since they were fetched.
            Err(_) => {
                metadata = self.metadata(PAUSE).await?;
                verified(&metadata)?
            }
        };
        let subject = claims.subject().clone();
        if subject.is_empty() || subject.len() > limits::IDENTIFIER_BYTES {
            return Err(OidcError::Untrusted("the subject is empty or too long".to_owned()));
        }
        let mut said = object(&claims);
        // Many providers return the other claims only from the userinfo endpoint.
        let claims = &self.settings.claims;
        let mut wanted = vec![&claims.localpart, &claims.display_name];
        wanted.extend(self.settings.add_email.then_some(&claims.email));
        if metadata.userinfo_endpoint().is_some()
            && wanted.iter().any(|name| !said.contains_key(*name))
        {
            let more: UserInfoClaims<Others, CoreGenderClaim> = self
                .client(&metadata)
                .user_info(tokens.access_token().clone(), Some(subject.clone()))
                .map_err(|error| unavailable(&error))?
                .request_async(&http)
                .await
                .map_err(|error| unavailable(&error))?;
            said.extend(object(&more));
        }
        Ok(self.person(subject.to_string(), &said))
    }

    fn person(&self, subject: String, said: &Map<String, Value>) -> Person {
        let claims = &self.settings.claims;
        let text = |name: &str| {
            let text = said.get(name)?.as_str()?.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        let verified = said.get("email_verified") == Some(&Value::Bool(true));
        let display_name = text(&claims.display_name);
        Person {
            subject,
            // Some providers use the e-mail address as the name.
            localpart: text(&claims.localpart)
                .map(|name| name.split('@').next().unwrap_or_default().to_ascii_lowercase()),
            display_name: display_name.filter(|name| name.len() <= limits::DISPLAY_NAME_BYTES),
            email: text(&claims.email).filter(|_| verified && self.settings.add_email),
        }
    }

    /// The provider's metadata, at most this old; older metadata if it does not answer now.
    async fn metadata(&self, max_age: Duration) -> Result<Arc<CoreProviderMetadata>, OidcError> {
        // One request fetches it, the others wait for the result, which comes within the timeout of
        // requests.
        let mut known = self.known.lock().await;
        if let Some((metadata, asked)) = &known.metadata
            && asked.elapsed() < max_age
        {
            return Ok(Arc::clone(metadata));
        }
        let failed = known.failed.as_ref().filter(|(_, when)| when.elapsed() < PAUSE);
        let answer = match failed {
            Some((reason, _)) => Err(reason.clone()),
            None => self.discover().await,
        };
        match answer {
            Ok(metadata) => {
                let metadata = Arc::new(metadata);
                *known = ProviderCache {
                    metadata: Some((Arc::clone(&metadata), Instant::now())),
                    failed: None,
                };
                Ok(metadata)
            }
            Err(reason) => {
                known.failed = Some((reason.clone(), Instant::now()));
                let older = known.metadata.as_ref().map(|(metadata, _)| Arc::clone(metadata));
                older.ok_or(OidcError::Unavailable(reason))
            }
        }
    }

    async fn discover(&self) -> Result<CoreProviderMetadata, String> {
        let http = self.http();
        let issuer = self.settings.issuer.clone();
        let Some(endpoints) = &self.settings.endpoints else {
            let found = CoreProviderMetadata::discover_async(issuer, &http).await;
            return found.map_err(|error| because(&error));
        };
        let keys = JsonWebKeySet::fetch_async(&endpoints.jwks, &http).await;
        Ok(CoreProviderMetadata::new(
            issuer,
            endpoints.authorization.clone(),
            endpoints.jwks.clone(),
            vec![ResponseTypes::new(vec![CoreResponseType::Code])],
            vec![CoreSubjectIdentifierType::Public],
            vec![
                CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
                CoreJwsSigningAlgorithm::RsaSsaPssSha256,
                CoreJwsSigningAlgorithm::EcdsaP256Sha256,
                CoreJwsSigningAlgorithm::EcdsaP384Sha384,
                CoreJwsSigningAlgorithm::EdDsa,
            ],
            EmptyAdditionalProviderMetadata {},
        )
        .set_token_endpoint(Some(endpoints.token.clone()))
        .set_userinfo_endpoint(endpoints.userinfo.clone())
        .set_jwks(keys.map_err(|error| because(&error))?))
    }

    fn client(&self, metadata: &CoreProviderMetadata) -> Relying {
        let client = Client::from_provider_metadata(
            metadata.clone(),
            self.settings.client_id.clone(),
            self.client_secret.clone(),
        );
        let offered = metadata.token_endpoint_auth_methods_supported();
        let has = |method| offered.is_some_and(|offered| offered.contains(&method));
        let in_body = has(CoreClientAuthMethod::ClientSecretPost)
            && !has(CoreClientAuthMethod::ClientSecretBasic);
        let auth = if in_body { AuthType::RequestBody } else { AuthType::BasicAuth };
        client.set_redirect_uri(self.callback.clone()).set_auth_type(auth)
    }

    /// The server's HTTP client, in the form that the OpenID Connect library expects.
    fn http(
        &self,
    ) -> impl Fn(
        HttpRequest,
    )
        -> futures_util::future::BoxFuture<'static, Result<HttpResponse, OutboundError>>
    + Send
    + Sync
    + 'static
    + use<> {
        let outbound = self.outbound.clone();
        move |request: HttpRequest| {
            let outbound = outbound.clone();
            Box::pin(async move {
                let (parts, body) = request.into_parts();
                let url = parts.uri.to_string();
                let url = url.parse().map_err(|_| OutboundError::Address(url))?;
                let ask = OutboundRequest {
                    headers: parts.headers,
                    body: body.into(),
                    ..OutboundRequest::new(parts.method, url)
                };
                let answer = outbound.send(ask).await?;
                let mut response = HttpResponse::new(answer.body.to_vec());
                *response.status_mut() = answer.status;
                *response.headers_mut() = answer.headers;
                Ok(response)
            })
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("id", &self.settings.id).finish_non_exhaustive()
    }
}

/// Claims by name, of any type.
fn object(claims: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(claims) {
        Ok(Value::Object(claims)) => claims,
        _ => Map::new(),
    }
}

/// An error with its causes.
fn because(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", because(source)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_base::secret_text::testing::{is_told, wrong_in_toml};

    fn load(text: &str) -> Result<Provider, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let outbound = Outbound::new(
            &logcabin_config::Outbound::default(),
            &logcabin_base::bodies::BodyBudget::new(
                logcabin_config::Config::default().body_shares(),
            ),
        )
        .unwrap();
        Provider::load(file.path(), "http://localhost/callback", &outbound)
    }

    const LEAST: &str =
        "id = \"x\"\nname = \"X\"\nissuer = \"https://x.example\"\nclient_id = \"logcabin\"\n";

    #[test]
    fn a_provider_needs_an_id_a_name_an_issuer_and_a_client_id() {
        load(LEAST).unwrap();
        for missing in 0..4 {
            let lines = LEAST.lines().enumerate().filter(|(line, _)| *line != missing);
            let text: Vec<_> = lines.map(|(_, line)| line).collect();
            assert!(load(&text.join("\n")).unwrap_err().contains("missing field"));
        }
        assert!(load(&format!("{LEAST}colour = 1")).unwrap_err().contains("colour"));
        assert!(load(&LEAST.replace("\"x\"", "\"a b\"")).unwrap_err().contains("`id`"));
        let twice = format!("{LEAST}client_secret = \"a\"\nclient_secret_file = \"b\"\n");
        assert!(load(&twice).unwrap_err().contains("exclude each other"));
    }

    #[test]
    fn no_secret_is_in_an_error_whatever_is_wrong_with_it() {
        const SECRET: &str = "Zq9073514792xV";
        for name in ["client_secret", "client_secret_file", "client_secrt"] {
            let mut refused = 0;
            for wrong in wrong_in_toml(SECRET).into_iter().chain([format!("\"{SECRET}\"")]) {
                let Err(error) = load(&format!("{LEAST}{name} = {wrong}\n")) else { continue };
                assert!(!is_told(SECRET, &error), "{name} = {wrong}: {error}");
                refused += 1;
            }
            assert!(refused > 30, "{name}: {refused}");
        }
    }

    #[test]
    fn claims_say_who_it_is_and_an_address_counts_only_if_it_was_verified() {
        let claims = "[claims]\nlocalpart = \"nick\"\n";
        let provider = load(&format!("{LEAST}add_email = true\n{claims}")).unwrap();
        let said = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        let person = provider.person(
            "1".to_owned(),
            &said(r#"{"nick":"Ann@x.example","name":" Ann ","email":"ann@x.example","email_verified":true}"#),
        );
        assert_eq!(person.localpart.as_deref(), Some("ann"));
        assert_eq!(person.display_name.as_deref(), Some("Ann"));
        assert_eq!(person.email.as_deref(), Some("ann@x.example"));
        let person = provider.person("1".to_owned(), &said(r#"{"email":"ann@x.example"}"#));
        assert_eq!((person.localpart, person.display_name, person.email), (None, None, None));
        let verified = said(r#"{"email":"ann@x.example","email_verified":true}"#);
        let unasked = load(LEAST).unwrap().person("1".to_owned(), &verified);
        assert_eq!(unasked.email, None);
    }
}
