//! The HTTP hook: what it is asked, signed by a shared secret, and what it answers. Questions that
//! arrive while it is busy are asked together. While it fails, it is left alone for a while.

use std::{collections::HashSet, sync::Arc, time::Duration};

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderName, Method};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};
use tracing::{info, warn};
use url::Url;

use super::Question;
use logcabin_base::{limits, metrics::metrics};
use logcabin_config::{Antispam, HookPoint, SecretUrl};
use logcabin_outside::outbound::{Outbound, OutboundError, OutboundRequest};

/// The header with the time and the signature: see `docs/moderation.md`.
const SIGNATURE: HeaderName = HeaderName::from_static("x-logcabin-signature");

pub(super) struct Hook {
    points: HashSet<HookPoint>,
    timeout: Duration,
    waiting: mpsc::Sender<Asked>,
}

/// What the hook says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// It is done, and noted.
    Mark,
    /// It is refused, with a message for the user.
    Refuse(Option<String>),
    /// The user is shadow-banned before it is done.
    Shadow,
}

struct Asked {
    question: Question,
    answer: oneshot::Sender<Verdict>,
}

#[derive(Serialize)]
struct Questions<'a> {
    questions: Vec<&'a Question>,
}

#[derive(Deserialize)]
struct Answers {
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    action: Action,
    message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Allow,
    Refuse,
    Mark,
    Shadow,
}

impl From<Answer> for Verdict {
    fn from(Answer { action, message }: Answer) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Mark => Self::Mark,
            Action::Shadow => Self::Shadow,
            Action::Refuse => Self::Refuse(message.map(|message| {
                message.chars().filter(|c| !c.is_control()).take(limits::HOOK_MESSAGE).collect()
            })),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error(transparent)]
    Unreached(#[from] OutboundError),
    /// It does not take what it was asked.
    #[error("{0}")]
    Answer(String),
}

/// What asks the hook.
struct Asker {
    url: Url,
    secret: String,
    outbound: Outbound,
    timeout: Duration,
    rest: Mutex<Rest>,
}

/// How long the hook is left alone.
#[derive(Default)]
struct Rest {
    failures: u32,
    until: Option<Instant>,
}

impl Hook {
    pub(super) fn new(
        url: &SecretUrl,
        config: &Antispam,
        outbound: &Outbound,
    ) -> Result<Self, String> {
        let file =
            config.hook_secret_file.as_ref().ok_or("`antispam.hook_secret_file` is missing")?;
        let secret =
            file.read().map_err(|error| format!("`antispam.hook_secret_file`: {error}"))?;
        if secret.len() < limits::HOOK_SECRET_BYTES {
            return Err("the secret in `antispam.hook_secret_file` is too short".to_owned());
        }
        let timeout = Duration::from_millis(config.hook_timeout_ms);
        let asker = Asker {
            url: url.url().clone(),
            secret,
            outbound: outbound.clone(),
            timeout,
            rest: Mutex::default(),
        };
        let (waiting, questions) = mpsc::channel(limits::HOOK_WAITING);
        tokio::spawn(Arc::new(asker).run(questions));
        Ok(Self { points: config.hooks.iter().copied().collect(), timeout, waiting })
    }

    pub(super) fn is_about(&self, point: HookPoint) -> bool {
        self.points.contains(&point)
    }

    /// The hook's verdict; none if it gives none in time.
    pub(super) async fn ask(&self, point: HookPoint, question: Question) -> Option<Verdict> {
        let (answer, verdict) = oneshot::channel();
        let verdict = match self.waiting.try_send(Asked { question, answer }) {
            Ok(()) => timeout(self.timeout, verdict).await.ok().and_then(Result::ok),
            Err(_) => None,
        };
        let outcome = match &verdict {
            Some(Verdict::Allow) => "allowed",
            Some(Verdict::Mark) => "marked",
            Some(Verdict::Refuse(_)) => "refused",
            Some(Verdict::Shadow) => "shadowed",
            None => "failed",
        };
        metrics().hook_questions.with_label_values(&[point.name(), outcome]).inc();
        verdict
    }
}

impl Asker {
    /// Asks what waits, as long as somebody may ask.
    async fn run(self: Arc<Self>, mut waiting: mpsc::Receiver<Asked>) {
        let turns = Arc::new(Semaphore::new(limits::HOOK_AT_ONCE));
        loop {
            // It is never closed.
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            let mut some = Vec::new();
            if waiting.recv_many(&mut some, limits::HOOK_BATCH).await == 0 {
                return;
            }
            // Nobody waits for the answer any more.
            some.retain(|asked: &Asked| !asked.answer.is_closed());
            if some.is_empty() || !self.may_ask() {
                continue;
            }
            let asker = Arc::clone(&self);
            tokio::spawn(async move {
                asker.ask(some).await;
                drop(turn);
            });
        }
    }

    fn may_ask(&self) -> bool {
        self.rest.lock().until.is_none_or(|until| until <= Instant::now())
    }

    /// Asks about all of them together; if the service does not take that, about each alone.
    async fn ask(&self, asked: Vec<Asked>) {
        let answers = self.answers(&asked).await;
        if matches!(answers, Err(HookError::Answer(_))) && asked.len() > 1 {
            for one in asked {
                if !one.answer.is_closed() {
                    let answers = self.answers(std::slice::from_ref(&one)).await;
                    self.done(vec![one], answers);
                }
            }
        } else {
            self.done(asked, answers);
        }
    }

    fn done(&self, asked: Vec<Asked>, answers: Result<Vec<Answer>, HookError>) {
        self.note(answers.as_ref().err());
        for (asked, answer) in asked.into_iter().zip(answers.into_iter().flatten()) {
            // Perhaps nobody waits for it any more.
            let _ = asked.answer.send(answer.into());
        }
    }

    async fn answers(&self, asked: &[Asked]) -> Result<Vec<Answer>, HookError> {
        let questions = asked.iter().map(|asked| &asked.question).collect();
        let request = OutboundRequest::new(Method::POST, self.url.clone());
        let mut request = request.json(&Questions { questions });
        request.timeout = self.timeout;
        let now_ms = asked.first().map_or(0, |asked| u64::from(asked.question.ts.get()));
        let signature = self.signature(now_ms, &request.body);
        let request = request.header(SIGNATURE, &signature);
        let answered = self.outbound.send(request).await?;
        if !answered.status.is_success() {
            let status = answered.status.as_u16();
            return Err(HookError::Answer(format!("it answered with status {status}")));
        }
        let answers: Answers =
            answered.json().map_err(|error| HookError::Answer(error.to_string()))?;
        if answers.answers.len() != asked.len() {
            return Err(HookError::Answer(format!(
                "it gave {} answer(s) to {} question(s)",
                answers.answers.len(),
                asked.len()
            )));
        }
        Ok(answers.answers)
    }

    fn signature(&self, now_ms: u64, body: &[u8]) -> String {
        let hex: String = match Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()) {
            Ok(mut mac) => {
                mac.update(format!("{now_ms}.").as_bytes());
                mac.update(body);
                mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
            }
            // A key of any length will do.
            Err(_) => String::new(),
        };
        format!("t={now_ms},v1={hex}")
    }

    /// Notes whether the hook answered: if it fails again and again, it is left alone.
    fn note(&self, failure: Option<&HookError>) {
        let mut rest = self.rest.lock();
        match failure {
            None => {
                if rest.until.is_some() {
                    info!("the antispam hook answers again");
                }
                *rest = Rest::default();
            }
            Some(why) => {
                rest.failures = rest.failures.saturating_add(1);
                warn!(error = %why, failures = rest.failures, "the antispam hook fails");
                if rest.failures >= limits::HOOK_FAILURES {
                    rest.until = Some(Instant::now() + limits::HOOK_REST);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_messages_are_bounded() {
        let read = |text: &str| serde_json::from_str::<Answer>(text).map(Verdict::from).ok();
        assert_eq!(read(r#"{"action":"allow"}"#), Some(Verdict::Allow));
        assert_eq!(read(r#"{"action":"mark","more":1}"#), Some(Verdict::Mark));
        assert_eq!(read(r#"{"action":"refuse"}"#), Some(Verdict::Refuse(None)));
        assert_eq!(read(r#"{"action":"shadow"}"#), Some(Verdict::Shadow));
        assert_eq!(read(r#"{"action":"dance"}"#), None);
        let long = format!(r#"{{"action":"refuse","message":"a\u0007b{}"}}"#, "x".repeat(10_000));
        let Some(Verdict::Refuse(Some(message))) = read(&long) else { panic!("no message") };
        assert!(message.starts_with("abx") && message.len() == limits::HOOK_MESSAGE);
    }
}
