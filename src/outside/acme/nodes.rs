//! The nodes of a cluster, which together have one account, one certificate and one set of answers.
//!
//! The node with the lease orders. The authority may come to any node with a challenge, so each
//! answer is at all live nodes before the authority is asked to look. The account and the
//! certificate, both with their keys, are in the bucket of what nodes share, as the key of tokens
//! is; each node also has them in its data directory, and serves the certificate from there.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::{Acme, AcmeError, CERTIFICATE};
use logcabin_base::shutdown::Shutdown;
use logcabin_cluster::Cluster;

/// The prefix of such a message. A forwarded request begins with a brace.
const PREFIX: &[u8] = b"acme ";

/// The answer to it.
const DONE: &[u8] = b"done";

/// How long another node may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How often a node looks for a new certificate that it was not told of.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What the node that orders tells all nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Told {
    /// The answer to an HTTP-01 challenge.
    Http { token: String, answer: String },
    /// What the certificate for a TLS-ALPN-01 challenge shows: the digest of the key authorization.
    Tls { name: String, digest: Vec<u8> },
    /// The order is over: no challenge is open.
    Over,
    /// There is a new certificate.
    Certificate,
}

impl Acme {
    /// Makes this server a node of a cluster. Later calls have no effect.
    pub fn join(&self, cluster: Arc<dyn Cluster>) {
        let _ = self.cluster.set(cluster);
    }

    /// Takes over the certificates that other nodes get, until the shutdown. Calls `renewed` after
    /// each. Returns at once if this server is no node.
    pub async fn follow(self: Arc<Self>, renewed: Arc<dyn Fn() + Send + Sync>, shutdown: Shutdown) {
        let Some(cluster) = self.cluster.get() else { return };
        loop {
            match self.take_certificate(&**cluster).await {
                Ok(Found::New) => {
                    info!(domains = ?self.domains, "another node got a certificate");
                    renewed();
                }
                Ok(Found::Same | Found::Older) => {}
                Err(error) => debug!(%error, "certificates of other nodes cannot be looked for"),
            }
            tokio::select! {
                () = self.told.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = shutdown.given() => return,
            }
        }
    }

    /// Answers what another node says about its order; `None` if it says something else.
    pub fn answer_node(&self, question: &Bytes) -> Option<Bytes> {
        let told = question.strip_prefix(PREFIX)?;
        let taken = serde_json::from_slice::<Told>(told).map(|told| self.take(&told));
        Some(Bytes::from_static(if matches!(taken, Ok(Ok(()))) { DONE } else { b"" }))
    }

    /// Tells all nodes, this one included, and waits until they know it.
    ///
    /// # Errors
    /// When this node cannot make use of it. What another node does not know is logged.
    pub(super) async fn tell(&self, told: &Told) -> Result<(), AcmeError> {
        self.take(told)?;
        let Some(cluster) = self.cluster.get() else { return Ok(()) };
        let mut message = PREFIX.to_vec();
        message.extend(serde_json::to_vec(told).map_err(instant_acme::Error::from)?);
        let message = Bytes::from(message);
        let others = cluster.there().into_iter().filter(|node| *node != cluster.tag());
        let telling = others.map(|node| {
            let message = message.clone();
            async move {
                let answer = timeout(ANSWER, cluster.forward(node, message)).await;
                if !matches!(answer, Ok(Some(answer)) if *answer == *DONE) {
                    warn!("a node was not told of an order: challenges that reach it may fail");
                }
            }
        });
        join_all(telling).await;
        Ok(())
    }

    fn take(&self, told: &Told) -> Result<(), AcmeError> {
        match told {
            Told::Http { token, answer } => {
                self.challenges.answer_http(token.clone(), answer.clone());
            }
            Told::Tls { name, digest } => self.challenges.answer_tls(name, digest)?,
            Told::Over => self.challenges.clear(),
            Told::Certificate => self.told.notify_one(),
        }
        Ok(())
    }

    /// Has this node and the others have the same account and certificate: the shared ones, unless
    /// there are none, or this node's certificate is newer. Returns whether the certificate in the
    /// file is another than before.
    pub(super) async fn agree(&self) -> Result<bool, AcmeError> {
        let Some(cluster) = self.cluster.get() else { return Ok(false) };
        let account = self.account_file();
        let shared = cluster.shared(&shared_name(&account)).await.map_err(AcmeError::Shared)?;
        let mine = std::fs::read(self.directory.join(&account)).unwrap_or_default();
        match shared.filter(|shared| Self::is_account(shared)) {
            Some(shared) if *shared == *mine => {}
            Some(shared) => self.write(&account, &shared)?,
            None => self.share_account(&**cluster).await?,
        }
        match self.take_certificate(&**cluster).await? {
            Found::New => Ok(true),
            Found::Same => Ok(false),
            Found::Older => self.share_certificate(&**cluster).await.map(|()| false),
        }
    }

    /// Shares a certificate that has just come.
    pub(super) async fn tell_of_certificate(&self) {
        let Some(cluster) = self.cluster.get() else { return };
        let shared = async {
            self.share_account(&**cluster).await?;
            self.share_certificate(&**cluster).await?;
            self.tell(&Told::Certificate).await
        };
        if let Err(error) = shared.await {
            warn!(%error, "the other nodes do not get the new certificate yet");
        }
    }

    /// Has no node use the account any more.
    pub(super) async fn forget_shared_account(&self) {
        let Some(cluster) = self.cluster.get() else { return };
        let name = shared_name(&self.account_file());
        if let Err(error) = cluster.put_shared(&name, Bytes::new()).await {
            // The authority refuses it again, and this is tried again.
            debug!(error, "the shared account was not removed");
        }
    }

    async fn share_account(&self, cluster: &dyn Cluster) -> Result<(), AcmeError> {
        let name = self.account_file();
        let Ok(account) = std::fs::read(self.directory.join(&name)) else { return Ok(()) };
        let put = cluster.put_shared(&shared_name(&name), account.into()).await;
        put.map_err(AcmeError::Shared)
    }

    async fn share_certificate(&self, cluster: &dyn Cluster) -> Result<(), AcmeError> {
        let Some((_, pem)) = self.stored_pem() else { return Ok(()) };
        let put = cluster.put_shared(&self.certificate_name(), pem.into()).await;
        put.map_err(AcmeError::Shared)
    }

    /// Writes the shared certificate to the file, if it is newer than that in it.
    async fn take_certificate(&self, cluster: &dyn Cluster) -> Result<Found, AcmeError> {
        let shared = cluster.shared(&self.certificate_name()).await.map_err(AcmeError::Shared)?;
        let shared = shared.and_then(|shared| String::from_utf8(shared.into()).ok());
        let of_shared = shared.as_deref().and_then(|pem| self.own_validity(pem));
        Ok(match (shared.zip(of_shared), self.stored_pem()) {
            (None, None) => Found::Same,
            (None, Some(_)) => Found::Older,
            (Some((shared, _)), Some((_, mine))) if shared == mine => Found::Same,
            (Some((_, of_shared)), Some((mine, _))) if of_shared.from_s < mine.from_s => {
                Found::Older
            }
            (Some((shared, _)), _) => {
                self.write(CERTIFICATE, shared.as_bytes())?;
                Found::New
            }
        })
    }

    /// The name of the certificate among what nodes share: one for each authority and list of
    /// names.
    fn certificate_name(&self) -> String {
        let title = blake3::hash(self.title().as_bytes()).to_hex();
        shared_name(&format!("certificate-{}.pem", &title[..16]))
    }
}

/// How the shared certificate compares with that in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It has taken its place.
    New,
    Same,
    /// Or there is none.
    Older,
}

fn shared_name(file: &str) -> String {
    format!("acme.{file}")
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::OnceLock};

    use futures_util::future::BoxFuture;
    use parking_lot::Mutex;
    use tokio::sync::watch;

    use super::*;
    use logcabin_cluster::{Lease, Status};
    use logcabin_config::Config;

    /// Two nodes without NATS: what they share, and what the second is told.
    #[derive(Default)]
    struct Pair {
        shared: Mutex<HashMap<String, Bytes>>,
        second: OnceLock<Arc<Acme>>,
    }

    /// The one that looks at them.
    #[derive(Clone)]
    struct Side(Arc<Pair>, u16);

    impl std::fmt::Debug for Side {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_tuple("Side").field(&self.1).finish()
        }
    }

    type Answering = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Bytes> + Send + Sync>;

    impl Cluster for Side {
        fn is_current(&self) -> BoxFuture<'_, bool> {
            Box::pin(async { true })
        }

        fn lag(&self) -> u64 {
            0
        }

        fn tag(&self) -> u16 {
            self.1
        }

        fn preferred(&self, _: &str) -> Option<u16> {
            None
        }

        fn forward(&self, to: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>> {
            assert_eq!(to, 2, "it is told by the first");
            Box::pin(async move { self.0.second.get()?.answer_node(&request) })
        }

        fn tell(&self, _: Bytes) {}

        fn tell_one(&self, _: u16, _: Bytes) {}

        fn there(&self) -> Vec<u16> {
            vec![1, 2]
        }

        fn changes(&self) -> watch::Receiver<u64> {
            watch::channel(0).1
        }

        fn serve(&self, _: Answering, _: Arc<dyn Fn(Bytes) + Send + Sync>) {}

        fn lease(self: Arc<Self>, _: &'static str) -> Lease {
            unreachable!("the task around it asks for the lease")
        }

        fn departures(&self) -> watch::Receiver<u64> {
            watch::channel(0).1
        }

        fn status(&self) -> BoxFuture<'_, Result<Status, String>> {
            Box::pin(async { Err("nobody asks".to_owned()) })
        }

        fn shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, String>> {
            Box::pin(async move { Ok(self.0.shared.lock().get(name).cloned()) })
        }

        fn put_shared<'a>(
            &'a self,
            name: &'a str,
            value: Bytes,
        ) -> BoxFuture<'a, Result<(), String>> {
            self.0.shared.lock().insert(name.to_owned(), value);
            Box::pin(async { Ok(()) })
        }
    }

    struct Nodes {
        first: Arc<Acme>,
        second: Arc<Acme>,
        _directories: [tempfile::TempDir; 2],
    }

    fn nodes() -> Nodes {
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [first, second] = [0, 1].map(|number: usize| {
            let mut config = Config::default();
            config.server.data_dir = directories[number].path().to_owned();
            config.server.name = "example.org".try_into().unwrap();
            Arc::new(Acme::new(&config).unwrap())
        });
        let pair = Arc::<Pair>::default();
        let _ = pair.second.set(Arc::clone(&second));
        first.join(Arc::new(Side(Arc::clone(&pair), 1)));
        second.join(Arc::new(Side(pair, 2)));
        Nodes { first, second, _directories: directories }
    }

    /// A certificate that was made in this year, with its key.
    fn made(year: i32) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(year, 1, 1);
        params.not_after = rcgen::date_time_ymd(year + 100, 1, 1);
        (key.serialize_pem(), params.self_signed(&key).unwrap().pem())
    }

    #[tokio::test]
    async fn all_nodes_have_the_newest_certificate() {
        let Nodes { first, second, _directories } = nodes();
        assert!(!first.agree().await.unwrap());
        let (key, chain) = made(2020);
        first.store(&key, &chain).unwrap();
        // The node's own is shared, and the other takes it over, once.
        assert!(!first.agree().await.unwrap());
        assert!(second.agree().await.unwrap());
        assert!(!second.agree().await.unwrap());
        assert_eq!(second.stored_pem().unwrap().1, first.stored_pem().unwrap().1);
        let (key, chain) = made(2021);
        second.store(&key, &chain).unwrap();
        assert!(!second.agree().await.unwrap());
        assert!(first.agree().await.unwrap());
        // One that a node still has from before does not come back.
        let (key, chain) = made(2019);
        first.store(&key, &chain).unwrap();
        assert!(first.agree().await.unwrap());
        assert_eq!(second.stored_pem().unwrap().1, first.stored_pem().unwrap().1);
    }

    #[tokio::test]
    async fn all_nodes_know_the_answers_of_an_order_until_it_is_over() {
        let Nodes { first, second, _directories } = nodes();
        let (token, answer) = ("token".to_owned(), "token.print".to_owned());
        first.tell(&Told::Http { token, answer }).await.unwrap();
        let (name, digest) = ("example.org".to_owned(), vec![7; 32]);
        first.tell(&Told::Tls { name, digest }).await.unwrap();
        for node in [&first, &second] {
            assert_eq!(node.challenges().http("token").as_deref(), Some("token.print"));
            assert!(node.challenges().certificate("example.org").is_some());
        }
        first.tell(&Told::Over).await.unwrap();
        for node in [&first, &second] {
            assert_eq!(node.challenges().http("token"), None);
            assert!(node.challenges().certificate("example.org").is_none());
        }
        assert_eq!(second.answer_node(&Bytes::from_static(b"{}")), None);
        let nonsense = second.answer_node(&Bytes::from_static(b"acme nonsense"));
        assert_eq!(nonsense.as_deref(), Some(&b""[..]));
    }
}
