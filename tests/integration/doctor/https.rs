//! The certificate of the server's own HTTPS: each way in which clients would refuse it is found.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use super::{MODEST, are, examined, found};
use crate::harness::{TestServer, free_address, until};

/// An authority.
fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = named(&[], name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    (Issuer::new(params, key), certificate)
}

fn named(hosts: &[&str], name: &str) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// The files that a server reads its certificate from.
struct Files {
    directory: TempDir,
    key: KeyPair,
}

impl Files {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let files = Self { directory: TempDir::new().expect("a directory"), key };
        fs::write(files.at("key.pem"), files.key.serialize_pem()).expect("it can be written");
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the certificate by one for this host that is valid for so many days from now.
    fn certify(&self, by: &Issuer<'_, KeyPair>, host: &str, days: i64) {
        let mut params = named(&[host], "server");
        params.not_before = OffsetDateTime::now_utc() - Duration::days(60);
        params.not_after = OffsetDateTime::now_utc() + Duration::days(days);
        let certificate = params.signed_by(&self.key, by).expect("a certificate");
        let new = self.at("new.pem");
        fs::write(&new, certificate.pem()).expect("it can be written");
        fs::rename(new, self.at("certificate.pem")).expect("it can be replaced");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_clients_refuse_is_found() {
    let (files, (ours, root), (strange, of_homeservers)) =
        (Files::new(), authority("ours"), authority("strange"));
    fs::write(files.at("root.pem"), root).expect("it can be written");
    fs::write(files.at("homeservers.pem"), of_homeservers).expect("it can be written");
    files.certify(&ours, "localhost", 60);
    let at = |name: &str| files.at(name).display().to_string();
    let own = [
        ("LOGCABIN_SERVER_NAME", "localhost".to_owned()),
        ("LOGCABIN_TLS_BIND", free_address().to_string()),
        ("LOGCABIN_TLS_CERTIFICATE", at("certificate.pem")),
        ("LOGCABIN_TLS_CERTIFICATE_KEY", at("key.pem")),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", at("root.pem")),
        // Clients do not trust it.
        ("LOGCABIN_FEDERATION_CA", at("homeservers.pem")),
    ];
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    let data = files.at("data");
    let mut server = TestServer::start_alone_with(&data, &[&MODEST[..], &own].concat()).await;
    are(&examined(&data, "").0, "ok", &["https"]);

    // The server notices a new file, and each examination makes a new connection.
    let becomes = async |level: &str, words: &str| {
        until(words, async || {
            let found = found(&examined(&data, "").0, "https");
            let says = found[0]["what"].as_str().is_some_and(|what| what.contains(words));
            found.len() == 1 && found[0]["level"] == level && says
        })
        .await;
    };
    files.certify(&ours, "localhost", -1);
    becomes("error", "expired").await;
    files.certify(&ours, "other.example", 60);
    becomes("error", "other names").await;
    files.certify(&strange, "localhost", 60);
    becomes("error", "no authority").await;
    files.certify(&ours, "localhost", 10);
    becomes("warning", "good for").await;
    files.certify(&ours, "localhost", 60);
    becomes("ok", "good for").await;

    server.stop();
    let given = at("logcabin.toml");
    let text = format!(
        "[tls]\ncertificate = \"{}\"\ncertificate_key = \"{}\"\n",
        at("certificate.pem"),
        at("key.pem")
    );
    fs::write(&given, text).expect("it can be written");
    are(&examined(&data, &format!(" --config {given}")).0, "unknown", &["https"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_behind_a_proxy_is_seen_if_this_machine_is_believed() {
    let (files, (ours, root)) = (Files::new(), authority("ours"));
    fs::write(files.at("root.pem"), root).expect("it can be written");
    files.certify(&ours, "localhost", 60);
    let at = |name: &str| files.at(name).display().to_string();
    for (from, level) in [("127.0.0.0/8", "ok"), ("192.0.2.0/24", "unknown")] {
        let own = [
            ("LOGCABIN_SERVER_NAME", "localhost".to_owned()),
            ("LOGCABIN_TLS_BIND", free_address().to_string()),
            ("LOGCABIN_TLS_CERTIFICATE", at("certificate.pem")),
            ("LOGCABIN_TLS_CERTIFICATE_KEY", at("key.pem")),
            ("LOGCABIN_TLS_PROXY_PROTOCOL", "true".to_owned()),
            ("LOGCABIN_HTTP_PROXY_PROTOCOL_FROM", from.to_owned()),
            ("LOGCABIN_OUTBOUND_CERTIFICATES", at("root.pem")),
        ];
        let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        let data = files.at("data");
        let mut server = TestServer::start_alone_with(&data, &[&MODEST[..], &own].concat()).await;
        let (report, _) = examined(&data, "");
        are(&report, level, &["https"]);
        let told = found(&report, "https")[0]["what"].to_string();
        assert_eq!(told.contains("http.proxy_protocol_from"), level == "unknown", "{told}");
        server.stop();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_without_a_certificate_is_found() {
    let place = TempDir::new().expect("a directory");
    let data = place.path().join("data");
    let bind = free_address().to_string();
    let own = [
        ("LOGCABIN_SERVER_NAME", "m.example"),
        ("LOGCABIN_TLS_BIND", &bind),
        ("LOGCABIN_ACME_ENABLED", "true"),
        ("LOGCABIN_ACME_CHALLENGE", "tls-alpn-01"),
        // Nothing answers there.
        ("LOGCABIN_ACME_DIRECTORY", "https://127.0.0.1:1/directory"),
    ];
    let _server = TestServer::start_alone_with(&data, &[&MODEST[..], &own].concat()).await;
    let (report, code) = examined(&data, "");
    are(&report, "error", &["https"]);
    let finding = &found(&report, "https")[0];
    assert!(finding["what"].as_str().is_some_and(|what| what.contains(&bind)), "{finding}");
    assert!(finding["mend"].as_str().is_some_and(|mend| mend.contains("acme.directory")));
    assert_eq!(code, Some(2), "{report:#}");
}
