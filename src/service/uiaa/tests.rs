use proptest::prelude::*;
use serde_json::json;

use super::*;

const BODY: &str = r#"{"username":"ann","auth":{"session":"x"}}"#;

fn stage(letter: char) -> AuthType {
    match letter {
        'p' => AuthType::Password,
        'c' => AuthType::ReCaptcha,
        't' => AuthType::Terms,
        'r' => AuthType::RegistrationToken,
        _ => AuthType::Dummy,
    }
}

/// Flows of stages of one letter each.
fn offer(flows: &[&str]) -> Arc<Offer> {
    let flows = flows.iter().map(|flow| flow.chars().map(stage).collect()).collect();
    Arc::new(Offer::new(flows, Map::new()))
}

fn letters(offer: &Offer) -> Vec<String> {
    let letter = |stage: &AuthType| match stage {
        AuthType::Password => 'p',
        AuthType::ReCaptcha => 'c',
        AuthType::Terms => 't',
        AuthType::RegistrationToken => 'r',
        _ => 'd',
    };
    offer.flows.iter().map(|flow| flow.iter().map(letter).collect()).collect()
}

fn auth(letter: char, session: Option<&str>, right: bool) -> Value {
    let word = if right { "right" } else { "wrong" };
    let mut auth = match letter {
        'p' => json!({
            "type": "m.login.password", "password": word,
            "identifier": { "type": "m.id.user", "user": "ann" },
        }),
        'c' => json!({ "type": "m.login.recaptcha", "response": word }),
        't' => json!({ "type": "m.login.terms" }),
        'r' => json!({ "type": "m.login.registration_token", "token": word }),
        's' => json!({}),
        'x' => json!({ "type": "org.example.unheard" }),
        _ => json!({ "type": "m.login.dummy" }),
    };
    if let Some(session) = session {
        auth["session"] = session.into();
    }
    auth
}

/// Stages that succeed unless the word is wrong.
async fn check(auth: Option<AuthData>) -> Result<Proof, Failure<NoSuchSession>> {
    let right = match auth {
        Some(AuthData::Password(given)) => given.password == "right",
        Some(AuthData::ReCaptcha(given)) => given.response == "right",
        Some(AuthData::RegistrationToken(given)) => given.token == "right",
        _ => true,
    };
    if right { Ok(Proof::Done) } else { Err(Failure::Retry(Denied::Password)) }
}

/// What a client is told remains to be done.
fn told(remaining: Remaining) -> Value {
    let Remaining { completed, session, denied, .. } = remaining;
    let mut told = json!({ "session": session, "completed": completed });
    if let Some(denied) = denied {
        told["denied"] = format!("{denied:?}").into();
    }
    told
}

struct Client {
    sessions: Sessions,
    offer: Arc<Offer>,
    facts: RequestFacts,
}

impl Client {
    fn new(flows: &[&str]) -> Self {
        let facts = RequestFacts { user_id: None, registers: false, client: [10, 0, 0, 1].into() };
        Self { sessions: Sessions::default(), offer: offer(flows), facts }
    }

    async fn at(&self, now_ms: u64, body: &str, given: Option<Value>) -> Result<usize, Value> {
        let auth = given.map(|auth| serde_json::from_value::<AuthData>(auth).unwrap());
        let body = Bytes::from(body.to_owned());
        let attempt = Attempt {
            endpoint: "register",
            binding: Binding::Body(&body),
            auth: auth.as_ref(),
            offer: Arc::clone(&self.offer),
            facts: self.facts.clone(),
        };
        let done = self.sessions.attempt(attempt, now_ms, check(auth.clone())).await;
        done.map(|done| done.proofs().count()).map_err(|unfinished| match unfinished {
            Unfinished::Remaining(remaining) => told(remaining),
            Unfinished::Failed(NoSuchSession) => panic!("an attempt failed"),
        })
    }

    async fn begin(&self) -> String {
        let asked = self.at(0, BODY, None).await.unwrap_err();
        assert!(asked.get("denied").is_none(), "{asked}");
        asked["session"].as_str().unwrap().to_owned()
    }

    async fn attempt(&self, letter: char, session: &str, right: bool) -> Result<usize, Value> {
        self.at(1, BODY, Some(auth(letter, Some(session), right))).await
    }

    /// The response to a refused attempt: the completed stages, and the error.
    async fn refused(&self, letter: char, session: &str, right: bool) -> (Value, Option<String>) {
        let asked = self.attempt(letter, session, right).await.unwrap_err();
        assert_eq!(asked["session"], session);
        let error = asked.get("denied").and_then(Value::as_str).map(str::to_owned);
        (asked["completed"].clone(), error)
    }
}

#[tokio::test]
async fn a_stage_completes_with_and_without_a_session() {
    let client = Client::new(&["d"]);
    let session = client.begin().await;
    assert_eq!(client.attempt('d', &session, true).await, Ok(1));
    // A session can be used once.
    let again = client.attempt('d', &session, true).await.unwrap_err();
    assert_eq!(again["denied"], "NoSession");
    assert_ne!(again["session"], session.as_str());
    assert_eq!(client.at(3, BODY, Some(auth('d', None, true))).await, Ok(1));
    assert_eq!(client.sessions.inner.lock().sessions.len(), 1, "only the one just begun");
}

#[tokio::test]
async fn a_session_is_only_valid_for_its_own_request_user_and_time() {
    let mut client = Client::new(&["d"]);
    let session = client.begin().await;
    let dummy = Some(auth('d', Some(&session), true));
    let other = r#"{"username":"bob"}"#;
    assert!(client.at(1, other, dummy.clone()).await.is_err());
    let nobody = client.facts.clone();
    client.facts.user_id = Some("@ann:example.org".try_into().unwrap());
    assert!(client.at(1, BODY, dummy.clone()).await.is_err());
    client.facts = nobody;
    // Neither the order of keys nor the content of `auth` matters.
    let same = r#"{"auth":{"session":"y","type":"z"},"username":"ann"}"#;
    assert_eq!(client.at(1, same, dummy).await, Ok(1));
    let dummy = Some(auth('d', Some(&client.begin().await), true));
    assert!(client.at(LIFETIME_MS + 1, BODY, dummy).await.is_err());
}

#[tokio::test]
async fn stages_go_in_order_and_a_failed_one_can_be_tried_again() {
    let client = Client::new(&["pd"]);
    let session = client.begin().await;
    let error = |code: &str| Some(code.to_owned());
    let early = client.refused('d', &session, true).await;
    assert_eq!(early, (json!([]), error("OthersFirst")));
    let unheard = client.refused('x', &session, true).await;
    assert_eq!(unheard, (json!([]), error("NotAskedFor")));
    let wrong = client.refused('p', &session, false).await;
    assert_eq!(wrong, (json!([]), error("Password")));
    let half = (json!(["m.login.password"]), None);
    assert_eq!(client.refused('p', &session, true).await, half);
    // A completed stage is not checked again, even if the attempt is wrong.
    assert_eq!(client.refused('p', &session, false).await, half);
    assert_eq!(client.attempt('d', &session, true).await, Ok(2));
}

#[tokio::test]
async fn a_stage_completed_elsewhere_counts_with_only_the_session() {
    let client = Client::new(&["ct"]);
    let session = client.begin().await;
    assert_eq!(client.refused('s', &session, true).await, (json!([]), None));
    let complete = async |letter| {
        let done = std::future::ready(Ok(Proof::Done));
        client.sessions.complete(&session, &stage(letter), 1, done).await
    };
    assert!(matches!(complete('t').await, Err(Failure::Retry(Denied::OthersFirst))));
    assert!(matches!(complete('d').await, Err(Failure::Retry(Denied::NotAskedFor))));
    complete('c').await.unwrap();
    complete('c').await.unwrap();
    let half = (json!(["m.login.recaptcha"]), None);
    assert_eq!(client.refused('s', &session, true).await, half);
    complete('t').await.unwrap();
    assert_eq!(client.attempt('s', &session, true).await, Ok(2));
    let gone = complete('t').await;
    assert!(matches!(gone, Err(Failure::Final(NoSuchSession))));
}

#[tokio::test]
async fn only_one_of_two_concurrent_attempts_is_allowed() {
    let client = Client::new(&["d"]);
    let session = client.begin().await;
    let all = (0..20).map(|_| client.attempt('d', &session, true));
    let through = futures_util::future::join_all(all).await;
    assert_eq!(through.iter().filter(|outcome| outcome.is_ok()).count(), 1);

    // Also for an attempt that waits while another is being checked.
    let session = client.begin().await;
    let body = Bytes::from_static(BODY.as_bytes());
    let given: AuthData = serde_json::from_value(auth('d', Some(&session), true)).unwrap();
    let slow = |wait| {
        let attempt = Attempt {
            endpoint: "register",
            binding: Binding::Body(&body),
            auth: Some(&given),
            offer: Arc::clone(&client.offer),
            facts: client.facts.clone(),
        };
        client.sessions.attempt(attempt, 1, async move {
            tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
            Ok::<_, Failure<NoSuchSession>>(Proof::Done)
        })
    };
    let (first, second) = tokio::join!(slow(30), slow(0));
    assert!(first.is_ok() && second.is_err());
}

#[tokio::test]
async fn a_reverted_stage_is_required_again() {
    let client = Client::new(&["rt"]);
    let body = Bytes::from_static(BODY.as_bytes());
    let session = client.begin().await;
    client.attempt('r', &session, true).await.unwrap_err();
    let given: AuthData = serde_json::from_value(auth('t', Some(&session), true)).unwrap();
    let attempt = Attempt {
        endpoint: "register",
        binding: Binding::Body(&body),
        auth: Some(&given),
        offer: Arc::clone(&client.offer),
        facts: client.facts.clone(),
    };
    let through = client.sessions.attempt(attempt, 1, check(None)).await.unwrap();
    let denied = Denied::RegistrationToken;
    let asked = client.sessions.take_back(through, &AuthType::RegistrationToken, denied);
    let asked = told(asked);
    assert_eq!(asked["denied"], "RegistrationToken");
    assert_eq!(asked["completed"], json!([]));
    assert_eq!(asked["session"], session.as_str());
    client.attempt('r', &session, true).await.unwrap_err();
    assert_eq!(client.attempt('t', &session, true).await, Ok(2));
}

#[tokio::test]
async fn one_address_cannot_end_the_sessions_of_others() {
    let mut client = Client::new(&["d"]);
    let mine = client.begin().await;
    for address in 0..60_u8 {
        client.facts.client = [10, 0, 1, address].into();
        for _ in 0..SESSIONS_OF_ONE + 1 {
            client.begin().await;
        }
    }
    {
        let inner = client.sessions.inner.lock();
        assert_eq!(inner.sessions.len(), SESSIONS);
        assert_eq!(inner.order.len(), SESSIONS);
        assert!(inner.owners.values().all(|own| own.len() <= SESSIONS_OF_ONE));
    }
    client.facts.client = [10, 0, 0, 1].into();
    assert_eq!(client.attempt('d', &mine, true).await, Ok(1));
}

#[tokio::test]
async fn sessions_that_are_over_leave_nothing_behind() {
    let client = Client::new(&["d"]);
    for _ in 0..10 {
        client.begin().await;
    }
    client.at(LIFETIME_MS + 1, BODY, None).await.unwrap_err();
    let inner = client.sessions.inner.lock();
    let counts = (inner.sessions.len(), inner.order.len(), inner.owners.len());
    assert_eq!(counts, (1, 1, 1));
}

#[test]
fn flows_that_extend_others_are_distinguished_by_the_dummy_stage() {
    for (given, expected) in [
        (vec!["p"], vec!["p"]),
        (vec!["ct", "ctr"], vec!["ctd", "ctr"]),
        (vec!["c", "ct", "ctr"], vec!["cd", "ctd", "ctr"]),
        (vec!["p", "p"], vec!["p"]),
        (vec!["p", "pd"], vec!["pd"]),
        // A flow that continues after a dummy stage is never asked for.
        (vec!["d", "dr"], vec!["d"]),
    ] {
        assert_eq!(letters(&offer(&given)), expected, "{given:?}");
    }
}

proptest! {
    /// Whatever is attempted, in whatever order: a request is allowed if and only if all stages of
    /// a flow were completed in order for this very request, and only once.
    #[test]
    fn a_request_runs_only_when_a_flow_was_completed_in_order_for_it(
        flows in prop::collection::vec("[pctrd]{1,3}", 1..4),
        attempts in prop::collection::vec((0..2_usize, 0..2_usize, "[pctrdsx]", any::<bool>(), any::<bool>()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let flows: Vec<_> = flows.iter().map(String::as_str).collect();
            let client = Client::new(&flows);
            let offered = letters(&client.offer);
            let bodies = [r#"{"username":"ann"}"#, r#"{"username":"bob"}"#];
            let mut ids = Vec::new();
            for body in bodies {
                let asked = client.at(0, body, None).await.unwrap_err();
                ids.push(asked["session"].as_str().unwrap().to_owned());
            }
            let mut done = [String::new(), String::new()];
            let mut over = [false, false];
            for (of, body, letter, right, outside) in attempts {
                let letter = letter.chars().next().unwrap();
                let known = "pctrd".contains(letter);
                let right = right || matches!(letter, 't' | 'd');
                let passes = |done: &str| {
                    let next = format!("{done}{letter}");
                    known && right && !done.contains(letter) && offered.iter().any(|f| f.starts_with(&next))
                };
                if outside && known {
                    let given = serde_json::from_value(auth(letter, None, right)).unwrap();
                    let completed = client.sessions
                        .complete(&ids[of], &stage(letter), 1, check(Some(given)))
                        .await;
                    let expected = !over[of] && (done[of].contains(letter) || passes(&done[of]));
                    prop_assert_eq!(completed.is_ok(), expected);
                    if !over[of] && passes(&done[of]) {
                        done[of].push(letter);
                    }
                    continue;
                }
                let outcome = client.at(1, bodies[body], Some(auth(letter, Some(&ids[of]), right))).await;
                if of != body || over[of] {
                    prop_assert!(outcome.is_err());
                    continue;
                }
                if passes(&done[of]) {
                    done[of].push(letter);
                }
                let failed = letter != 's' && !done[of].contains(letter);
                let complete = offered.contains(&done[of]) && !failed;
                prop_assert_eq!(outcome.is_ok(), complete, "{:?} of {:?}", done, offered);
                over[of] = complete;
                if let Err(asked) = outcome {
                    prop_assert_eq!(asked.get("denied").is_some(), failed);
                    prop_assert_eq!(asked["completed"].as_array().unwrap().len(), done[of].len());
                }
            }
            Ok(())
        })?;
    }
}
