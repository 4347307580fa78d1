//! Passwords and tokens are prompted for on the terminal, without echo, or read from standard
//! input; they are never arguments, which every user of the machine could see.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use logcabin_record::command::Secret;

/// A new password for `whom`: prompted for twice on a terminal, otherwise the first line of
/// standard input.
pub(super) fn new_password(whom: &str) -> io::Result<Secret> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return read_line(&mut stdin.lock());
    }
    let first = ask(&format!("Password for {whom}: "))?;
    let again = ask("Repeat it: ")?;
    if first == again { Ok(first) } else { Err(io::Error::other("the passwords do not match")) }
}

/// An existing secret: prompted for on a terminal, otherwise the first line of standard input.
pub(super) fn secret(prompt: &str) -> io::Result<Secret> {
    let stdin = io::stdin();
    if stdin.is_terminal() { ask(prompt) } else { read_line(&mut stdin.lock()) }
}

/// Whether the user types `word` when prompted. Without a terminal, nobody is asked.
pub(super) fn confirms(question: &str, word: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question} ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim() == word)
}

fn ask(prompt: &str) -> io::Result<Secret> {
    let stdin = io::stdin();
    let seen = tcgetattr(&stdin)?;
    let mut unseen = seen.clone();
    unseen.local_modes.remove(LocalModes::ECHO);
    // Before the prompt: what answers it, however fast, is not shown and not dropped.
    tcsetattr(&stdin, OptionalActions::Flush, &unseen)?;
    eprint!("{prompt}");
    io::stderr().flush()?;
    let line = read_line(&mut stdin.lock());
    tcsetattr(&stdin, OptionalActions::Flush, &seen)?;
    eprintln!();
    line
}

fn read_line(from: &mut impl io::BufRead) -> io::Result<Secret> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(io::Error::other("no input; pass it on standard input"));
    }
    Ok(line.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line_without_its_end() {
        for text in ["pass word\n", "pass word\r\nmore\n", "pass word"] {
            assert_eq!(read_line(&mut text.as_bytes()).unwrap().expose(), "pass word");
        }
        assert!(read_line(&mut &b""[..]).is_err());
        assert!(read_line(&mut &b"\n"[..]).is_err());
    }
}
