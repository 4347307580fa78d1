//! SIGHUP.

use std::fs;
use std::os::unix::net::UnixDatagram;

use serde_json::json;
use tempfile::TempDir;

use super::{Served, ask, prepared, shown};
use crate::harness::{PATIENCE, TestServer};

/// The line at the end of a reload.
const RELOADED: &str = "reloaded the configuration and the certificates";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_certificate_is_taken_over_without_dropping_connections() {
    let Some(authority) = prepared("reload of a certificate") else { return };
    let served = Served::start(authority, &[]).await;
    let versions = "/_matrix/client/versions";
    let mut before = served.connect().await;
    assert_eq!(ask(&mut before, versions).await, "http/1.1 200 ok");

    let (new_key, new_certificate) = served.authority.certify("new");
    let (key, certificate) =
        (new_key.with_file_name("clients.key"), new_key.with_file_name("clients"));
    fs::copy(new_certificate, &certificate).expect("the certificate can be replaced");
    fs::copy(new_key, &key).expect("the key can be replaced");
    served.server.hang_up();
    served.server.prints(RELOADED).await;
    let after = served.connect().await;
    assert_ne!(shown(&after), shown(&before));
    assert_eq!(ask(&mut before, versions).await, "http/1.1 200 ok");

    // A broken file does not replace a certificate that works.
    fs::write(&certificate, "nothing").expect("the certificate can be replaced");
    served.server.hang_up();
    served.server.prints("the changed certificate cannot be used").await;
    assert_eq!(shown(&served.connect().await), shown(&after));
    assert_eq!(ask(&mut before, versions).await, "http/1.1 200 ok");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_settings_take_effect_or_are_named() {
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("logcabin.toml");
    let write = |text: &str| fs::write(&file, text).expect("the file can be written");
    write("[registration]\nopen = true\n");
    let notify = directory.path().join("notify");
    let manager = UnixDatagram::bind(&notify).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let (path, notified) = (file.display().to_string(), notify.display().to_string());
    let settings = [("LOGCABIN_CONFIG", &*path), ("NOTIFY_SOCKET", &*notified)];
    let data = directory.path().join("data");
    let server = TestServer::start_alone_with(&data, &settings).await;
    server.register("ann").await;

    write("[registration]\nopen = false\n[server]\nlog_filter = \"debug\"\n[media]\nenabled = 1\n");
    server.hang_up();
    server.prints("the configuration cannot be used").await;
    // Nothing of a configuration with an error is taken over.
    server.register("bob").await;

    write(
        "[registration]\nopen = false\n[server]\nlog_filter = \"info,logcabin_edge=debug\"\n\
         [media]\nmax_upload_bytes = 1000000\n",
    );
    server.hang_up();
    server.prints("these changed settings need a restart").await;
    let said = server.output();
    let line = |part: &str| said.lines().rfind(|line| line.contains(part)).unwrap_or_default();
    let taken = line(RELOADED);
    assert!(taken.contains("registration.open") && taken.contains("server.log_filter"), "{taken}");
    let left = line("need a restart");
    assert!(left.contains("media.max_upload_bytes") && !left.contains("registration"), "{left}");
    let body = json!({ "username": "carl", "password": "a password that is long enough" });
    let path = "/_matrix/client/v3/register";
    server.http().request("POST", path, None, Some(&body)).await.refused(403, "M_FORBIDDEN");
    // What the new filter lets through.
    server.prints("answered").await;

    let mut told = Vec::new();
    while !told.iter().any(|text: &String| text.contains("RELOADING=1")) {
        let mut buffer = [0; 1024];
        let length = manager.recv(&mut buffer).expect("the manager is told");
        told.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    let reloading = told.last().map(String::as_str).unwrap_or_default();
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    let mut buffer = [0; 1024];
    let length = manager.recv(&mut buffer).expect("the manager is told");
    assert!(String::from_utf8_lossy(&buffer[..length]).contains("READY=1"));
}
