//! An identity server by HTTPS: it finds the users of addresses, binds them, and keeps invitations.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ruma::{
    CanonicalJsonObject,
    serde::Base64,
    signatures::{Ed25519KeyPair, sign_json},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig, crypto,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        version,
    },
};

use super::http::Http;
use super::stand_in::{Asked, Reply, Service, reply_json};
use super::{User, skip, tools};

/// The access token of clients.
const TOKEN: &str = "a token of the identity server";

const PEPPER: &str = "matrixrocks";

/// An identity server. Ends when dropped.
pub(crate) struct IdentityServer {
    service: Service,
    inner: Arc<Inner>,
    directory: TempDir,
}

struct Inner {
    key: Ed25519KeyPair,
    /// The homeserver of its users, once it runs.
    homeserver: OnceLock<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each address with its user.
    bound: Vec<(String, String)>,
    /// Each address with what is asked for it, the token under `token`.
    invites: Vec<Value>,
    asked: Vec<Asked>,
}

impl IdentityServer {
    /// An identity server; `None` after having said that `test` is skipped.
    pub(crate) async fn start(test: &str) -> Option<Self> {
        let directory = TempDir::new().expect("a temporary directory");
        let (key, certificate) = match tools::certificate(directory.path()) {
            Ok(files) => files,
            Err(missing) => {
                skip(test, &missing);
                return None;
            }
        };
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a key and its certificate");
        let pair = Ed25519KeyPair::generate();
        let inner = Arc::new(Inner {
            key: Ed25519KeyPair::from_der(&pair, "0".to_owned()).expect("a key"),
            homeserver: OnceLock::new(),
            state: Mutex::default(),
        });
        let answering = Arc::clone(&inner);
        let service = Service::start_tls(TlsAcceptor::from(Arc::new(config)), move |asked| {
            let inner = Arc::clone(&answering);
            async move { inner.answer(asked).await }
        })
        .await;
        Some(Self { service, inner, directory })
    }

    /// Its name, as clients write it.
    pub(crate) fn name(&self) -> String {
        format!("localhost:{}", self.service.address.port())
    }

    /// The certificate by which it is known.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert")
    }

    /// Serves the users of this homeserver.
    pub(crate) fn serves(&self, homeserver: String) {
        self.inner.homeserver.set(homeserver).expect("it serves one");
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.inner.state().asked.clone()
    }

    /// The body of a request that invites the user of an email address.
    pub(crate) fn invite_body(&self, address: &str) -> Value {
        json!({
            "id_server": self.name(), "id_access_token": TOKEN, "medium": "email",
            "address": address,
        })
    }

    /// Binds an address to this user.
    pub(crate) async fn bind(&self, user: &User, address: &str) {
        let body = json!({
            "client_secret": "s", "sid": address.replace('@', "_at_"), "id_server": self.name(),
            "id_access_token": TOKEN,
        });
        user.request("POST", "/account/3pid/bind", Some(&body)).await.ok();
    }

    /// The invitations that it keeps.
    pub(crate) fn invites(&self) -> Vec<Value> {
        self.inner.state().invites.clone()
    }

    /// An invitation with its signature, for the user who gets the address.
    pub(crate) fn signed(&self, token: &str, user_id: &str) -> Value {
        self.inner.signed(json!({ "mxid": user_id, "token": token }))
    }

    /// The answer to a client with the private key of an invitation by `sender` (`/sign-ed25519`).
    pub(crate) fn signed_by_key(&self, token: &str, user_id: &str, sender: &str) -> Value {
        self.inner.signed(json!({ "mxid": user_id, "token": token, "sender": sender }))
    }
}

impl Inner {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, asked: Asked) -> Reply {
        self.state().asked.push(asked.clone());
        let bearer = format!("Bearer {TOKEN}");
        if asked.headers.get("authorization").is_none_or(|given| given != bearer.as_str()) {
            let error = json!({ "errcode": "M_UNAUTHORIZED", "error": "Log in." });
            return reply_json(401, &error);
        }
        let Some(path) = asked.path.strip_prefix("/_matrix/identity/v2/") else {
            return reply_json(404, &json!({ "errcode": "M_UNRECOGNIZED", "error": "?" }));
        };
        let body = &asked.body;
        let answer = match (asked.method.as_str(), path) {
            ("GET", "hash_details") => {
                json!({ "algorithms": ["none", "sha256"], "lookup_pepper": PEPPER })
            }
            ("POST", "lookup") => {
                assert_eq!(
                    (&body["algorithm"], &body["pepper"]),
                    (&json!("sha256"), &json!(PEPPER))
                );
                let wanted = body["addresses"].as_array().cloned().unwrap_or_default();
                let hash = |address: &str| {
                    URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{address} email {PEPPER}")))
                };
                let mut mappings = json!({});
                for (address, user_id) in &self.state().bound {
                    let hash = hash(address);
                    if wanted.contains(&json!(hash)) {
                        mappings[hash] = user_id.as_str().into();
                    }
                }
                // Some identity servers answer `null` for addresses that they do not know.
                for hash in wanted.iter().filter_map(Value::as_str) {
                    mappings.as_object_mut().expect("an object").entry(hash).or_insert(json!(null));
                }
                json!({ "mappings": mappings })
            }
            ("POST", "store-invite") if body["medium"] != "email" => {
                return reply_json(400, &json!({ "errcode": "M_UNRECOGNIZED", "error": "No." }));
            }
            ("POST", "store-invite") => self.keep(body.clone()),
            // Here an address is validated by its name alone.
            ("POST", "3pid/bind") => self.bind(&body["sid"], &body["mxid"]).await,
            _ => return reply_json(404, &json!({ "errcode": "M_UNRECOGNIZED", "error": "?" })),
        };
        reply_json(200, &answer)
    }

    fn keep(&self, mut invite: Value) -> Value {
        let mut state = self.state();
        let token = format!("token{}", state.invites.len());
        invite["token"] = token.as_str().into();
        state.invites.push(invite);
        let public_key: Base64 = Base64::new(self.key.public_key().to_vec());
        let validity = "https://localhost/_matrix/identity/v2/pubkey/isvalid";
        let key = json!({ "public_key": public_key.encode(), "key_validity_url": validity });
        json!({ "token": token, "public_keys": [key], "display_name": "a...@e..." })
    }

    async fn bind(&self, sid: &Value, user_id: &Value) -> Value {
        let address = sid.as_str().unwrap_or_default().replace("_at_", "@");
        let user_id = user_id.as_str().unwrap_or_default();
        let pending: Vec<Value> = {
            let mut state = self.state();
            state.bound.push((address.clone(), user_id.to_owned()));
            let of_address = |invite: &&Value| invite["address"] == address.as_str();
            state.invites.iter().filter(of_address).cloned().collect()
        };
        let invites = pending.iter().map(|invite| {
            let token = invite["token"].as_str().unwrap_or_default();
            json!({
                "medium": "email", "address": address, "mxid": user_id,
                "room_id": invite["room_id"], "sender": invite["sender"],
                "signed": self.signed(json!({ "mxid": user_id, "token": token })),
            })
        });
        let told = json!({
            "medium": "email", "address": address, "mxid": user_id,
            "invites": invites.collect::<Vec<_>>(),
        });
        let homeserver = self.homeserver.get().expect("a homeserver");
        let path = "/_matrix/federation/v1/3pid/onbind";
        Http::new(homeserver).request("PUT", path, None, Some(&told)).await.ok();
        json!({ "medium": "email", "address": address, "mxid": user_id })
    }

    fn signed(&self, signed: Value) -> Value {
        let mut signed: CanonicalJsonObject = serde_json::from_value(signed).expect("an object");
        sign_json("localhost", &self.key, &mut signed).expect("it can be signed");
        serde_json::to_value(signed).expect("JSON")
    }
}
