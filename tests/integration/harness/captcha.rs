//! A stand-in for the service of a captcha: its script draws a button, and it knows the answer.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::Asked;
use super::stand_in::{Reply, Service, reply};

const SECRET: &str = "a secret of the captcha";

const SCRIPT: &str = "
for (const box of document.querySelectorAll('.g-recaptcha')) {
  const answer = document.createElement('textarea');
  answer.name = 'g-recaptcha-response';
  answer.hidden = true;
  const tick = document.createElement('button');
  tick.type = 'button';
  tick.id = 'tick';
  tick.textContent = 'I am no machine';
  tick.onclick = () => { answer.value = 'human'; window[box.dataset.callback]('human'); };
  box.append(answer, tick);
}";

type Fields = HashMap<String, String>;

/// A running stand-in.
pub(crate) struct Captcha {
    asked: Arc<Mutex<Vec<Fields>>>,
    service: Service,
}

impl Captcha {
    pub(crate) async fn start() -> Self {
        let asked = Arc::<Mutex<Vec<Fields>>>::default();
        let seen = Arc::clone(&asked);
        let answered = move |asked: Asked| std::future::ready(answer(&asked, &seen));
        Self { asked, service: Service::start(answered).await }
    }

    /// The settings of a server that uses it, with a file in `directory`.
    pub(crate) fn settings(&self, directory: &Path) -> Vec<(String, String)> {
        let key = directory.join("captcha.key");
        std::fs::write(&key, format!("{SECRET}\n")).expect("the directory can be written to");
        let at = |path: &str| format!("http://{}{path}", self.service.address);
        [
            ("PUBLIC_KEY", "the-public-key".to_owned()),
            ("SECRET_KEY_FILE", key.display().to_string()),
            ("VERIFY_URL", at("/siteverify")),
            ("SCRIPT_URL", at("/api.js")),
        ]
        .map(|(name, value)| (format!("LOGCABIN_CAPTCHA_{name}"), value))
        .into()
    }

    /// What it was asked to verify so far.
    pub(crate) fn asked(&self) -> Vec<Fields> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    /// Makes it unreachable.
    pub(crate) async fn stop(self) {
        self.service.stop().await;
    }

    pub(crate) const fn secret() -> &'static str {
        SECRET
    }
}

fn answer(asked: &Asked, seen: &Mutex<Vec<Fields>>) -> Reply {
    if asked.method != "POST" || asked.path != "/siteverify" {
        return reply(200, "text/javascript", SCRIPT);
    }
    let fields = serde_html_form::from_bytes::<Vec<_>>(&asked.bytes).unwrap_or_default();
    let fields: Fields = fields.into_iter().collect();
    let is = |name: &str, value: &str| fields.get(name).is_some_and(|given| given == value);
    let answer = match (is("secret", SECRET), is("response", "human")) {
        (true, true) => r#"{"success":true}"#,
        (true, false) => r#"{"success":false,"error-codes":["invalid-input-response"]}"#,
        (false, _) => r#"{"success":false,"error-codes":["invalid-input-secret"]}"#,
    };
    seen.lock().expect("nobody panics with it").push(fields);
    reply(200, "application/json", answer)
}
