//! The text of the messages. Each is written once, and rendered as plain text, as HTML, and as a
//! short text message.

use std::fmt::Write as _;

use maud::html;
use ruma::OwnedUserId;

use super::{
    frame::{BUTTON, LINK, SOFT, frame},
    smtp::Mail,
};

/// The subject of a message.
#[derive(Clone, Debug)]
pub enum Topic {
    /// A registration with the address.
    Register {
        /// The confirmation.
        proof: Proof,
    },
    /// A proof that the reader owns an account, for a new password.
    Account {
        /// The confirmation.
        proof: Proof,
        user_id: OwnedUserId,
    },
    /// An account is to get the address.
    Add {
        /// The confirmation.
        proof: Proof,
    },
    /// A registration with the address of an existing account.
    HasAccount { user_id: OwnedUserId },
    /// A new password was requested for an address without an account.
    HasNoAccount,
    /// The registration was approved.
    Approved { user_id: OwnedUserId },
    /// The registration was refused.
    Refused { user_id: OwnedUserId },
}

/// How a reader confirms an address.
#[derive(Clone, Debug)]
pub enum Proof {
    Link(String),
    /// By a code to type into the app.
    Code(String),
}

/// A rendered message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The subject line.
    subject: String,
    /// The text before the button.
    opening: String,
    /// The link, with the label of the button.
    action: Option<(&'static str, String)>,
    /// The text after the button.
    closing: String,
    /// The text message.
    pub(crate) short: String,
}

const NOT_YOU: &str = "If this was not you, someone has probably mistyped their address. \
                       You need not do anything then; nothing happens without your confirmation.";

const NOT_REGISTERED: &str = "If you did not register there, somebody had access to this address \
                              when it was confirmed.";

impl Topic {
    /// The message, from the server of this name.
    pub fn letter(&self, server: &str) -> Letter {
        let confirm = |subject: &str, opening: String, proof: &Proof, what_for: &str| {
            let (action, short) = match proof {
                Proof::Link(link) => {
                    (Some(("Confirm", link.clone())), format!("{opening} Confirm: {link}"))
                }
                Proof::Code(code) => (None, format!("{code} is your code {what_for} on {server}.")),
            };
            let subject = format!("{subject} on {server}");
            Letter { subject, opening, action, closing: NOT_YOU.to_owned(), short }
        };
        match self {
            Self::Register { proof } => confirm(
                "Confirm your address to register",
                format!(
                    "Someone, hopefully you, is registering an account on {server} with this \
                     address. Please confirm that it is yours, then go back to the app."
                ),
                proof,
                "to register",
            ),
            Self::Account { proof, user_id } => confirm(
                "Confirm that your account is yours",
                format!(
                    "Someone, hopefully you, wants to set a new password, or to change something \
                     else that is protected, for the account {user_id} on {server}. Please confirm \
                     that this address is yours, then go back to the app."
                ),
                proof,
                "to get back into your account",
            ),
            Self::Add { proof } => confirm(
                "Confirm your address for your account",
                format!(
                    "Someone, hopefully you, is adding this address to an account on {server}. \
                     Please confirm that it is yours, then go back to the app."
                ),
                proof,
                "to add this number to your account",
            ),
            Self::HasAccount { user_id } => Letter {
                subject: format!("You have an account on {server}"),
                opening: format!(
                    "Someone, hopefully you, tried to register an account on {server} with this \
                     address. It belongs to the account {user_id} already, so no other was made."
                ),
                action: None,
                closing: "If you have forgotten your password, choose \u{201c}Forgot \
                          password\u{201d} where you log in, and enter this address. If it was not \
                          you who tried to register, you need not do anything."
                    .to_owned(),
                short: format!(
                    "This number belongs to your account {user_id} on {server} already. To get \
                     back into it, choose \"Forgot password\" where you log in."
                ),
            },
            Self::HasNoAccount => Letter {
                subject: format!("There is no account with this address on {server}"),
                opening: format!(
                    "Someone, hopefully you, asked for a new password for the account on {server} \
                     with this address. There is none: perhaps you registered with another address."
                ),
                action: None,
                closing:
                    "You are welcome to create an account with this one. If it was not you who \
                          asked, you need not do anything."
                        .to_owned(),
                short: format!(
                    "There is no account with this number on {server}. You are welcome to create one."
                ),
            },
            Self::Approved { user_id } => Letter {
                subject: format!("Your registration on {server} was approved"),
                opening: format!(
                    "The people who run {server} have approved your registration. You can log in as \
                     {user_id} now."
                ),
                action: None,
                closing: NOT_REGISTERED.to_owned(),
                short: format!("Your account {user_id} on {server} was approved: you can log in."),
            },
            Self::Refused { user_id } => Letter {
                subject: format!("Your registration on {server} was not approved"),
                opening: format!(
                    "The people who run {server} have not approved your registration. The account \
                     {user_id} is closed, and what was kept of it is erased, with this address."
                ),
                action: None,
                closing: NOT_REGISTERED.to_owned(),
                short: format!(
                    "Your account {user_id} on {server} was not approved, and is closed."
                ),
            },
        }
    }
}

impl Letter {
    /// The plain text of a mail.
    fn plain(&self) -> String {
        let mut plain = format!("{}\n", self.opening);
        if let Some((_, link)) = &self.action {
            let _ = write!(plain, "\nTo confirm, open this address in your browser:\n\n{link}\n");
        }
        let _ = write!(plain, "\n{}\n", self.closing);
        plain
    }

    /// The message as a mail.
    pub(super) fn mail(&self, server: &str) -> Mail {
        Mail {
            subject: self.subject.clone(),
            plain: self.plain(),
            html: self.html(server),
            unsubscribe: None,
        }
    }

    fn html(&self, server: &str) -> String {
        let body = html! {
            p style="margin:0 0 16px" { (self.opening) }
            @if let Some((label, link)) = &self.action {
                p style="margin:24px 0" {
                    a.button href=(link) style=(BUTTON) { (label) }
                }
                p.soft style={ "margin:0 0 16px;font-size:13px;" (SOFT) } {
                    "If the button does not work, open this address in your browser:" br;
                    a.link href=(link) style={ (LINK) ";word-break:break-all" } { (link) }
                }
            }
            p.soft style={ "margin:0;" (SOFT) } { (self.closing) }
        };
        frame(&self.subject, &body, server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_says_the_same_in_each_form() {
        let link = "https://example.org/?a=1&b=2\"><script>".to_owned();
        let topic = Topic::Register { proof: Proof::Link(link.clone()) };
        let letter = topic.letter("example.org");
        assert!(letter.subject.contains("example.org"));
        assert!(letter.plain().contains(&link) && letter.short.contains(&link));
        let html = letter.html("example.org");
        assert!(html.contains("a=1&amp;b=2&quot;&gt;&lt;script&gt;"), "{html}");
        assert!(!html.contains("<script>") && html.contains(NOT_YOU));
    }

    #[test]
    fn a_code_is_in_the_text_message_alone() {
        let topic = Topic::Add { proof: Proof::Code("123456".to_owned()) };
        let letter = topic.letter("example.org");
        assert!(letter.short.starts_with("123456 ") && letter.short.contains("example.org"));
        assert!(letter.short.len() <= 160, "one text message: {}", letter.short);
    }
}
