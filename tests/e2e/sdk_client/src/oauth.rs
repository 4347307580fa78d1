//! Logging in by OAuth 2.0: in a browser, and with a QR code that another device scans.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use matrix_sdk::{
    authentication::oauth::{
        ClientRegistrationData,
        qrcode::{
            CheckCodeSender, GeneratedQrProgress, GrantLoginProgress, LoginProgress, QrCodeData,
            QrProgress,
        },
        registration::{ApplicationType, ClientMetadata, Localized, OAuthGrantType},
    },
    ruma::serde::Raw,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use url::Url;

use crate::Driver;

const REDIRECT: &str = "org.example.sdk:/callback";

/// A login with a QR code under way.
pub(crate) struct Qr {
    steps: UnboundedReceiver<Result<Value, String>>,
    entry: Arc<Mutex<Option<CheckCodeSender>>>,
}

fn registration() -> Result<ClientRegistrationData> {
    let grants = vec![
        OAuthGrantType::AuthorizationCode { redirect_uris: vec![REDIRECT.parse()?] },
        OAuthGrantType::DeviceCode,
    ];
    let home = Localized::new("https://sdk.example.org/".parse()?, None);
    let mut metadata = ClientMetadata::new(ApplicationType::Native, grants, home);
    metadata.client_name = Some(Localized::new("matrix-rust-sdk".to_owned(), None));
    Ok(Raw::new(&metadata)?.into())
}

/// Tells the next step, or that there is none.
fn step(steps: &UnboundedSender<Result<Value, String>>, step: Result<Value, String>) {
    let _ = steps.send(step);
}

impl Driver {
    pub(crate) async fn run_oauth(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let text = |key: &str| arguments[key].as_str().with_context(|| format!("no `{key}`"));
        let oauth = self.client.oauth();
        match command {
            "oauth_begin" => {
                let login = oauth.login(REDIRECT.parse()?, None, Some(registration()?), None);
                Ok(json!({ "url": login.build().await?.url }))
            }
            "oauth_finish" => {
                let url: Url = text("url")?.parse()?;
                oauth.finish_login(url.into()).await?;
                self.client.whoami().await?;
                self.who_am_i()
            }
            "oauth_refresh" => {
                let before = self.client.access_token();
                oauth.refresh_access_token().await?;
                if self.client.access_token() == before {
                    bail!("the token is the same");
                }
                self.client.whoami().await?;
                Ok(json!({}))
            }
            "account" => {
                let told = oauth.server_metadata().await?;
                Ok(json!({ "url": told.account_management_uri }))
            }
            "qr_show" => self.show().await,
            "qr_scan" => {
                let bytes: Vec<u8> = serde_json::from_value(arguments["qr"].clone())?;
                self.scan(QrCodeData::from_bytes(&bytes)?).await
            }
            "qr_enter" => {
                let code = u8::try_from(arguments["code"].as_u64().context("no `code`")?)?;
                let qr = self.qr.as_ref().context("no QR code")?;
                let sender = qr.entry.lock().ok().and_then(|mut sender| sender.take());
                sender.context("not scanned yet")?.send(code).await?;
                self.next().await
            }
            "qr_next" => self.next().await,
            "knows_secrets" => {
                let status = self.client.encryption().cross_signing_status().await;
                let status = status.context("no cross-signing")?;
                Ok(json!({ "complete": status.is_complete() }))
            }
            other => bail!("unknown command {other}"),
        }
    }

    /// The next step of the login.
    async fn next(&mut self) -> Result<Value> {
        let qr = self.qr.as_mut().context("no QR code")?;
        match qr.steps.recv().await.context("the login has ended")? {
            Ok(step) => Ok(step),
            Err(error) => bail!(error),
        }
    }

    /// Shows a QR code on a new device.
    async fn show(&mut self) -> Result<Value> {
        let (steps, received) = unbounded_channel();
        let entry: Arc<Mutex<Option<CheckCodeSender>>> = Arc::default();
        self.qr = Some(Qr { steps: received, entry: Arc::clone(&entry) });
        let (client, registration) = (self.client.clone(), registration()?);
        tokio::spawn(async move {
            let oauth = client.oauth();
            let login = oauth.login_with_qr_code(Some(&registration)).generate();
            let mut progress = login.subscribe_to_progress();
            let told = steps.clone();
            tokio::spawn(async move {
                while let Some(state) = progress.next().await {
                    match state {
                        LoginProgress::EstablishingSecureChannel(GeneratedQrProgress::QrReady(
                            qr,
                        )) => step(&told, Ok(json!({ "qr": qr.to_bytes() }))),
                        LoginProgress::EstablishingSecureChannel(
                            GeneratedQrProgress::QrScanned(sender),
                        ) => {
                            if let Ok(mut entry) = entry.lock() {
                                *entry = Some(sender);
                            }
                            step(&told, Ok(json!({ "scanned": true })));
                        }
                        LoginProgress::WaitingForToken { user_code } => {
                            step(&told, Ok(json!({ "user_code": user_code })));
                        }
                        _ => (),
                    }
                }
            });
            let done = login
                .await
                .map(|()| json!({ "user_id": client.user_id(), "device_id": client.device_id() }));
            step(&steps, done.map_err(|error| format!("{error:?}")));
        });
        self.next().await
    }

    /// Scans the QR code of a new device on one that is logged in.
    async fn scan(&mut self, data: QrCodeData) -> Result<Value> {
        let (steps, received) = unbounded_channel();
        self.qr = Some(Qr { steps: received, entry: Arc::default() });
        let client = self.client.clone();
        tokio::spawn(async move {
            let oauth = client.oauth();
            let grant = oauth.grant_login_with_qr_code().scan(&data);
            let mut progress = grant.subscribe_to_progress();
            let told = steps.clone();
            tokio::spawn(async move {
                while let Some(state) = progress.next().await {
                    match state {
                        GrantLoginProgress::EstablishingSecureChannel(QrProgress {
                            check_code,
                        }) => step(&told, Ok(json!({ "code": check_code.to_digit() }))),
                        GrantLoginProgress::WaitingForAuth { verification_uri } => {
                            step(&told, Ok(json!({ "uri": verification_uri })));
                        }
                        _ => (),
                    }
                }
            });
            let done = grant.await.map(|()| json!({ "granted": true }));
            step(&steps, done.map_err(|error| format!("{error:?}")));
        });
        self.next().await
    }
}
