//! Element Web, a client with a user interface that nobody here wrote, in headless Chromium: two
//! people register, make rooms and talk. The program of `tests/e2e/` judges for itself.
//!
//! `LOGCABIN_E2E_CHROMIUM` names another Chromium than Debian's; `LOGCABIN_E2E_SCREENSHOTS` a
//! directory for what the client looks like.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::harness::tools::judged;
use crate::harness::{TestServer, alone, runs, skip};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_use_element_web_without_unexpected_errors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = root.join("tests/e2e");
    let client = root.join("target/e2e/element");
    let chromium =
        env::var("LOGCABIN_E2E_CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    if !runs("node", &["--version"]) || !runs(&chromium, &["--version"]) {
        return skip("web", "node or Chromium is absent");
    }
    if !programs.join("node_modules/puppeteer-core").is_dir() || !client.join("built").is_file() {
        return skip("web", "puppeteer-core or Element Web is absent");
    }
    let _alone = alone().await;
    let server = TestServer::start_with(&[]).await;
    let mut node = Command::new("node");
    node.arg(programs.join("web_client.mjs")).arg(server.base()).arg(chromium).arg(client);
    node.args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    let said = judged("web_client.mjs", node).await;
    assert!(said.contains("all went well"), "web_client.mjs ended early:\n{said}");
}
