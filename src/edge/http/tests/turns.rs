//! Large bodies and their senders' turns.

use super::*;
use logcabin_base::limits;

#[tokio::test]
async fn a_large_body_waits_for_its_senders_turn() {
    let server = Running::configured(|config| {
        config.rate_limits.enabled = false;
        config.http.max_body_bytes = 1 << 20;
    })
    .await;
    let put = async |bytes: usize| {
        let path = "/_matrix/client/v3/rooms/!r:example.org/state/org.test/key";
        let body = format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes - 8));
        server.ask(Method::PUT, path, Some("good"), &body).await
    };
    is(&put(limits::LONG_BODY_BYTES).await, 200, "");
    is(&put(limits::LONG_BODY_BYTES + 1).await, 429, "M_LIMIT_EXCEEDED");
}
