//! A stand-in for the service of a captcha: its script draws a button, and it knows the answer.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

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

/// A running stand-in.
pub(crate) struct Captcha {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<HashMap<String, String>>>>,
    task: JoinHandle<()>,
}

impl Captcha {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&seen)));
            }
        });
        Self { address, asked, task }
    }

    /// The settings of a server that uses it, with a file in `directory`.
    pub(crate) fn settings(&self, directory: &Path) -> Vec<(String, String)> {
        let key = directory.join("captcha.key");
        std::fs::write(&key, format!("{SECRET}\n")).expect("the directory can be written to");
        let at = |path: &str| format!("http://{}{path}", self.address);
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
    pub(crate) fn asked(&self) -> Vec<HashMap<String, String>> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    /// Makes it unreachable.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }

    pub(crate) const fn secret() -> &'static str {
        SECRET
    }
}

impl Drop for Captcha {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(mut stream: TcpStream, asked: Arc<Mutex<Vec<HashMap<String, String>>>>) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut part = [0; 4096];
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        if body.len() >= length.unwrap_or_default() {
            break (head.to_owned(), body.to_owned());
        }
    };
    let (content_type, answer) = if head.starts_with("POST /siteverify") {
        let fields: HashMap<String, String> =
            serde_html_form::from_str::<Vec<_>>(&body).unwrap_or_default().into_iter().collect();
        let is = |name: &str, value: &str| fields.get(name).is_some_and(|given| given == value);
        let answer = match (is("secret", SECRET), is("response", "human")) {
            (true, true) => r#"{"success":true}"#,
            (true, false) => r#"{"success":false,"error-codes":["invalid-input-response"]}"#,
            (false, _) => r#"{"success":false,"error-codes":["invalid-input-secret"]}"#,
        };
        asked.lock().expect("nobody panics with it").push(fields);
        ("application/json", answer)
    } else {
        ("text/javascript", SCRIPT)
    };
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len(),
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}
