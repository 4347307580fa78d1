//! The questions of `logcabin setup` on a terminal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use super::{PASSWORD, Place, entries};
use crate::administration::{done, user_command};
use crate::harness::{PATIENCE, program, runs, skip, without_settings};

/// `logcabin setup` on a pseudo-terminal, which `script` makes.
struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Receiver<String>,
    /// What has been shown.
    shown: String,
    /// How much of it was waited for.
    seen: usize,
}

impl Terminal {
    /// `None` if there is no `script`. No flag answers a question.
    fn start(test: &str, place: &Place) -> Option<Self> {
        if !runs("script", &["--version"]) {
            skip(test, "script is absent");
            return None;
        }
        let (config, data) = (place.at("etc/logcabin.toml"), place.at("data"));
        // What starts the tests may ignore SIGINT, which its children inherit.
        let line = format!(
            "env --default-signal=INT {} setup --config {} --data-dir {}",
            program().display(),
            config.display(),
            data.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--echo", "always", "--command", &line, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = without_settings(&mut script).spawn().expect("script runs");
        let keyboard = child.stdin.take().expect("a pipe");
        let mut output = child.stdout.take().expect("a pipe");
        let (shows, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if shows.send(text).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, keyboard, screen, shown: String::new(), seen: 0 })
    }

    /// Waits until these words are shown after those that were waited for last.
    #[track_caller]
    fn sees(&mut self, words: &str) {
        loop {
            if let Some(at) = self.shown[self.seen..].find(words) {
                self.seen += at + words.len();
                return;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(more) => self.shown += &more,
                Err(_) => panic!("{words:?} is not shown after byte {}: {}", self.seen, self.shown),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is there");
        self.keyboard.flush().expect("the terminal is there");
    }

    /// Waits for the question, and answers it.
    #[track_caller]
    fn answers(&mut self, question: &str, answer: &str) {
        self.sees(question);
        self.sees(": ");
        self.types(&format!("{answer}\n"));
    }

    /// The exit code, and all that was shown.
    #[track_caller]
    fn ends(mut self) -> (Option<i32>, String) {
        loop {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(more) => self.shown += &more,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {}", self.shown),
            }
        }
        let status = self.child.wait().expect("it ends");
        (status.code(), self.shown)
    }
}

impl Place {
    /// Answers the questions before that for the administrator's password.
    fn answer_most(&self, terminal: &mut Terminal) {
        let secret = self.at("secret");
        fs::write(&secret, "secret\n").expect("the file can be written");
        terminal.answers("The server's name", "Example.org");
        terminal.answers("That is not possible: a name has no capital letters.", "example.org");
        // The default.
        terminal.sees("[https://example.org]");
        terminal.types("\n");
        terminal.answers("Your mail address", "nobody");
        terminal.answers("That is not possible: a mail address", "ann@example.org");
        terminal.sees("Who can create an account");
        terminal.answers("[closed]", "everybody");
        terminal.answers("the choices are closed, token, captcha.\r\n[closed]", "captcha");
        terminal.answers("The site key", "");
        terminal.answers("That is not possible: an answer is needed.", "site-key");
        terminal.answers("The path of a file", "/nowhere/secret");
        let path = secret.display().to_string();
        terminal.answers("That is not possible: there is no such file.", &path);
        terminal.answers("[acme]", "proxy");
        terminal.answers("[on]", "off");
        terminal.answers("[admin]", "Ann!");
        terminal.answers("That is not possible: a user name", "ann");
    }
}

#[test]
fn every_question_is_asked_until_its_answer_is_valid() {
    let place = Place::new();
    let Some(mut terminal) = Terminal::start("setup on a terminal", &place) else { return };
    place.answer_most(&mut terminal);
    terminal.answers("Password for ann", PASSWORD);
    terminal.answers("Repeat it", PASSWORD);
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("ann@example.org\r\n"), "what is typed is shown: {shown}");
    assert!(!shown.contains(PASSWORD), "but for the password: {shown}");
    assert!(shown.contains("@ann:example.org") && shown.contains("/login?link="), "{shown}");
    let text = fs::read_to_string(place.at("etc/logcabin.toml")).expect("the file");
    for said in ["name = \"example.org\"", "site-key", "require = [\"captcha\"]", "enabled = false"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains(PASSWORD), "{text}");
    assert!(done(user_command(&place.at("data"), "list --admin", "")).contains("@ann:example.org"));
}

#[test]
fn whoever_breaks_off_leaves_nothing() {
    // Ctrl-C, and the end of the input, at the first question and at the last.
    for (key, is_last) in [("\u{3}", false), ("\u{4}", false), ("\u{3}", true)] {
        let place = Place::new();
        let Some(mut terminal) = Terminal::start("setup is broken off", &place) else { return };
        if is_last {
            place.answer_most(&mut terminal);
        }
        let before = entries(place.directory.path());
        terminal.sees(if is_last { "Password for ann: " } else { "The server's name" });
        terminal.sees(if is_last { "" } else { ": " });
        terminal.types(key);
        let (code, shown) = terminal.ends();
        assert_ne!(code, Some(0), "{key:?}: {shown}");
        assert_eq!(entries(place.directory.path()), before, "{key:?}: {shown}");
    }
}

#[test]
fn passwords_that_differ_leave_nothing() {
    let place = Place::new();
    let Some(mut terminal) = Terminal::start("passwords that differ", &place) else { return };
    place.answer_most(&mut terminal);
    let before = entries(place.directory.path());
    terminal.answers("Password for ann", PASSWORD);
    terminal.answers("Repeat it", "another password that is long");
    let (code, shown) = terminal.ends();
    assert!(code != Some(0) && shown.contains("do not match"), "{shown}");
    assert!(!shown.contains("another password"), "{shown}");
    assert_eq!(entries(place.directory.path()), before, "{shown}");
}
