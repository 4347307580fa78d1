//! The service that logged users in for the former server: matrix-authentication-service. It has no
//! key, so that it does no harm to others; but what it is told while it is moved is lost.

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::timeout;

use super::FormerError;
use logcabin_base::{bodies::BodyBudget, limits};
use logcabin_config::Config;
use logcabin_outside::outbound::Outbound;

/// The service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginService {
    /// What it calls itself to clients.
    pub issuer: String,
    /// Where it may answer: addresses without a path of the service's own.
    pub addresses: Vec<String>,
}

impl LoginService {
    /// Refuses to go on while it answers.
    ///
    /// # Errors
    /// When it is recognised at one of its addresses, or nobody can be asked.
    pub async fn must_be_silent_for(&self, config: &Config) -> Result<(), FormerError> {
        let bodies = BodyBudget::new(config.body_shares());
        let outbound = Outbound::new(&config.outbound, &bodies);
        let outbound = outbound.map_err(|error| FormerError::NoClient(error.to_string()))?;
        let outbound = &outbound;
        let looks = self.addresses.iter().map(|address| async move {
            let url = format!("{address}/.well-known/openid-configuration");
            let answer = timeout(limits::FORMER_TIME, Box::pin(outbound.document(&url))).await;
            self.is_in(&answer.ok()?.ok()?).then(|| FormerError::LogsIn(address.clone()))
        });
        join_all(looks).await.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// Whether a document is the service's own. At an address that leads to this server by now, it
    /// names another issuer.
    fn is_in(&self, document: &Value) -> bool {
        let named = document["issuer"].as_str();
        let same = |text: &str| text.trim_end_matches('/') == self.issuer.trim_end_matches('/');
        !self.issuer.is_empty() && named.is_some_and(same)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use serde_json::json;

    use super::*;

    /// Answers every request with this document, one after the other, and says where.
    fn answering(document: &Value) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let body = document.to_string();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let length = body.len();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                let _ = write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}");
            }
        });
        address
    }

    #[test]
    fn nothing_goes_on_while_the_service_answers() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let other = answering(&json!({ "issuer": "https://matrix.example/_matrix/oauth2" }));
        let its_own = answering(&json!({ "issuer": "https://auth.example/" }));
        // Nobody listens there any more.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = format!("http://{silent}");
        let issuer = "https://auth.example/".to_owned();
        let mut service = LoginService { issuer, addresses: vec![silent, other] };
        let config = Config::default();
        runtime.block_on(service.must_be_silent_for(&config)).unwrap();
        service.addresses.push(its_own.clone());
        let refused = runtime.block_on(service.must_be_silent_for(&config)).unwrap_err();
        assert!(matches!(&refused, FormerError::LogsIn(at) if *at == its_own), "{refused}");
    }

    #[test]
    fn the_service_is_recognised_by_the_issuer_that_it_names() {
        let addresses = Vec::new();
        let service = LoginService { issuer: "https://auth.example/".to_owned(), addresses };
        assert!(service.is_in(&json!({ "issuer": "https://auth.example" })));
        for other in [
            json!({ "issuer": "https://matrix.example/_matrix/oauth2" }),
            json!({ "issuer": null }),
            json!([]),
        ] {
            assert!(!service.is_in(&other), "{other}");
        }
        let nameless = LoginService { issuer: String::new(), ..service };
        assert!(!nameless.is_in(&json!({ "issuer": "" })));
    }
}
