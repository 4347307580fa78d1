//! The text of mail about missed messages.

use std::fmt::Write as _;

use maud::{Markup, html};
use ruma::OwnedUserId;

use super::{
    frame::{LINK, SOFT, frame},
    smtp::Mail,
};

/// What a user missed. All texts are plain, in one line, and cut to their maximum length: see
/// [`cut`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    /// The rooms with new messages, the newest first.
    pub(crate) rooms: Vec<RoomDigest>,
    /// The number of further rooms.
    pub(crate) more_rooms: usize,
    /// The number of messages in all.
    pub(crate) messages: usize,
    /// Invitations, the newest first.
    pub(crate) invites: Vec<InviteDigest>,
    /// The number of further invitations.
    pub(crate) more_invites: usize,
    /// The app in which the user asked for such mail.
    pub(crate) app: String,
    /// The address that ends such mail.
    pub(crate) unsubscribe: String,
}

/// A room with new messages.
#[derive(Clone, Debug)]
pub(crate) struct RoomDigest {
    /// Its name.
    pub(crate) place: RoomTitle,
    /// The number of messages.
    pub(crate) messages: usize,
    /// The last of them, oldest first.
    pub(crate) lines: Vec<DigestMessage>,
}

/// How a room is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoomTitle {
    /// By its name.
    Room(String),
    /// By the one other member.
    Person(String),
    /// By several members.
    People(String),
    /// Without a name or another member.
    Nowhere,
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) struct DigestMessage {
    /// The sender's display name in the room, if there is one.
    pub(crate) name: Option<String>,
    pub(crate) sender: OwnedUserId,
    /// The time, for people.
    pub(crate) when: String,
    /// The content.
    pub(crate) said: MessageText,
    /// Whether it mentions the reader.
    pub(crate) highlight: bool,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MessageText {
    Text(String),
    /// An action: `waves`, `sent a picture`.
    Did(String),
    /// A number of consecutive messages that the server cannot decrypt.
    Encrypted(usize),
}

/// An invitation.
#[derive(Clone, Debug)]
pub(crate) struct InviteDigest {
    pub(crate) name: String,
    /// The name of the room, if it has one.
    pub(crate) room: Option<String>,
}

/// `words` as one line of at most `most` characters, without control characters and characters
/// that change the direction of the text.
pub(crate) fn cut(words: &str, most: usize) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut line = String::new();
    let mut chars = 0;
    for word in words.split(|c: char| c.is_whitespace() || c.is_control()) {
        let mut letters = word.chars().filter(|c| !turns(*c)).peekable();
        if letters.peek().is_none() {
            continue;
        }
        if chars > 0 {
            line.push(' ');
            chars += 1;
        }
        for letter in letters {
            if chars >= most {
                line.truncate(line.trim_end().len());
                line.push('…');
                return line;
            }
            line.push(letter);
            chars += 1;
        }
    }
    line
}

/// `1 new message`, `2 new messages`.
fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

impl RoomTitle {
    fn name(&self) -> &str {
        match self {
            Self::Room(name) | Self::Person(name) | Self::People(name) => name,
            Self::Nowhere => "Empty room",
        }
    }

    fn phrase(&self) -> String {
        match self {
            Self::Room(name) => format!("in {name}"),
            Self::Person(name) => format!("from {name}"),
            Self::People(name) => format!("with {name}"),
            Self::Nowhere => "in an empty room".to_owned(),
        }
    }
}

impl DigestMessage {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.sender.as_str())
    }

    /// The sender's id beside the name, which anyone may choose.
    fn id(&self) -> &str {
        if self.name.is_some() { self.sender.as_str() } else { "" }
    }
}

impl MessageText {
    /// A verb phrase that continues the sender's name; `None` for texts.
    fn deed(&self) -> Option<String> {
        match self {
            Self::Text(_) => None,
            Self::Did(deed) => Some(deed.clone()),
            Self::Encrypted(1) => Some("sent an encrypted message".to_owned()),
            Self::Encrypted(number) => Some(format!("sent {number} encrypted messages")),
        }
    }
}

impl InviteDigest {
    fn sentence(&self) -> String {
        let room = self.room.as_deref().unwrap_or("a conversation");
        format!("{} invited you to {room}", self.name)
    }
}

impl Digest {
    /// The mail, from the server of this name.
    pub(super) fn mail(&self, server: &str) -> Mail {
        let subject = format!("{} on {server}", self.subject());
        let unsubscribe = Some(self.unsubscribe.clone());
        Mail { html: self.html(&subject, server), plain: self.plain(server), subject, unsubscribe }
    }

    fn subject(&self) -> String {
        let messages = count(self.messages, "new message");
        let invites = self.invites.len() + self.more_invites;
        match (&self.rooms[..], self.more_rooms, &self.invites[..]) {
            ([], _, [invite]) if self.more_invites == 0 => invite.sentence(),
            ([], _, _) => count(invites, "new invitation"),
            ([room], 0, []) => format!("{messages} {}", room.place.phrase()),
            (rooms, more, []) => format!("{messages} in {} rooms", rooms.len() + more),
            (_, _, _) => format!("{messages} and {}", count(invites, "invitation")),
        }
    }

    /// The number that is not shown.
    fn more(&self) -> Option<String> {
        let rooms = (self.more_rooms > 0).then(|| {
            let shown: usize = self.rooms.iter().map(|room| room.messages).sum();
            let messages = count(self.messages.saturating_sub(shown), "message");
            format!("{messages} in {}", count(self.more_rooms, "more room"))
        });
        let invites = (self.more_invites > 0).then(|| count(self.more_invites, "more invitation"));
        let more: Vec<_> = [rooms, invites].into_iter().flatten().collect();
        (!more.is_empty()).then(|| format!("And {}.", more.join(", and ")))
    }

    fn because(&self, server: &str) -> String {
        let app = if self.app.is_empty() { "an app" } else { &self.app };
        format!(
            "You get this mail because you asked for it in {app}, for your account on {server}. There \
             is none about what you have read."
        )
    }

    fn plain(&self, server: &str) -> String {
        let mut plain = String::new();
        for room in &self.rooms {
            let messages = count(room.messages, "new message");
            let _ = writeln!(plain, "{}: {messages}\n", room.place.name());
            if let Some(earlier) = room.earlier() {
                let _ = writeln!(plain, "  {earlier}");
            }
            for line in &room.lines {
                let id = line.id();
                let id = if id.is_empty() { String::new() } else { format!(" ({id})") };
                let about_you = if line.highlight { ", about you" } else { "" };
                let said = match &line.said {
                    MessageText::Text(said) => format!(": {said}"),
                    said => format!(" {}", said.deed().unwrap_or_default()),
                };
                let _ = writeln!(plain, "  [{}{about_you}] {}{id}{said}", line.when, line.name());
            }
            plain.push('\n');
        }
        for invite in &self.invites {
            let _ = writeln!(plain, "{}.\n", invite.sentence());
        }
        if let Some(more) = self.more() {
            let _ = writeln!(plain, "{more}\n");
        }
        let _ = writeln!(
            plain,
            "{}\nTo unsubscribe, open this address in your browser:\n\n{}",
            self.because(server),
            self.unsubscribe
        );
        plain
    }

    fn html(&self, subject: &str, server: &str) -> String {
        let body = html! {
            @for room in &self.rooms {
                h2 style="margin:24px 0 8px;font-size:17px;line-height:1.3" {
                    (room.place.name()) " "
                    span.soft style={ "font-weight:400;font-size:13px;" (SOFT) } {
                        (count(room.messages, "new message"))
                    }
                }
                @if let Some(earlier) = room.earlier() {
                    p.soft style={ "margin:0 0 8px;font-size:13px;" (SOFT) } { (earlier) }
                }
                @for line in &room.lines { (line.html()) }
            }
            @for invite in &self.invites {
                p style="margin:16px 0" { strong { (invite.sentence()) } "." }
            }
            @if let Some(more) = self.more() { p style="margin:24px 0 0" { (more) } }
            p.soft.line style={
                "margin:24px 0 0;padding:16px 0 0;border-top:1px solid #d5cfc5;font-size:13px;" (SOFT)
            } {
                (self.because(server)) " "
                a.link href=(self.unsubscribe) style=(LINK) { "Unsubscribe from these mails" } "."
            }
        };
        frame(subject, &body, server)
    }
}

impl RoomDigest {
    /// The number that is not shown.
    fn earlier(&self) -> Option<String> {
        let of = |line: &DigestMessage| match line.said {
            MessageText::Encrypted(number) => number,
            MessageText::Text(_) | MessageText::Did(_) => 1,
        };
        let earlier = self.messages.saturating_sub(self.lines.iter().map(of).sum());
        let are = if earlier == 1 { "is" } else { "are" };
        (earlier > 0).then(|| format!("{} {are} not shown.", count(earlier, "earlier message")))
    }
}

impl DigestMessage {
    fn html(&self) -> Markup {
        let tag =
            "padding:1px 6px;border-radius:4px;background:#7a4a21;color:#ffffff;font-size:12px";
        html! {
            p.line
                style="margin:0 0 8px;padding:0 0 0 12px;border-left:3px solid #d5cfc5" {
                strong { (self.name()) } " "
                span.soft style={ "font-size:13px;" (SOFT) } { (self.id()) " " (self.when) }
                @if self.highlight { " " span.tag style=(tag) { "about you" } }
                br;
                @match &self.said {
                    MessageText::Text(said) => (said),
                    said => em { (said.deed().unwrap_or_default()) },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(said: MessageText) -> DigestMessage {
        DigestMessage {
            name: Some("Bob <b>".to_owned()),
            sender: "@bob:test".try_into().unwrap(),
            when: "1 May, 12:00 UTC".to_owned(),
            said,
            highlight: false,
        }
    }

    fn room(name: &str, messages: usize, lines: Vec<DigestMessage>) -> RoomDigest {
        RoomDigest { place: RoomTitle::Room(name.to_owned()), messages, lines }
    }

    fn digest(rooms: Vec<RoomDigest>, invites: Vec<InviteDigest>) -> Digest {
        Digest {
            messages: rooms.iter().map(|room| room.messages).sum(),
            rooms,
            invites,
            app: "Element".to_owned(),
            unsubscribe: "https://example.org/x?a=1&b=2".to_owned(),
            ..Digest::default()
        }
    }

    #[test]
    fn the_subject_says_how_much_there_is_and_where() {
        let one = || room("Den", 3, vec![]);
        let invite = || InviteDigest { name: "Cat".to_owned(), room: Some("Loft".to_owned()) };
        let person =
            RoomDigest { place: RoomTitle::Person("Bob".to_owned()), ..room("", 1, vec![]) };
        for (digest, subject) in [
            (digest(vec![one()], vec![]), "3 new messages in Den"),
            (digest(vec![person], vec![]), "1 new message from Bob"),
            (digest(vec![one(), one()], vec![]), "6 new messages in 2 rooms"),
            (digest(vec![], vec![invite()]), "Cat invited you to Loft"),
            (digest(vec![], vec![invite(), invite()]), "2 new invitations"),
            (digest(vec![one()], vec![invite()]), "3 new messages and 1 invitation"),
        ] {
            assert_eq!(digest.mail("e.org").subject, format!("{subject} on e.org"));
        }
    }

    #[test]
    fn both_forms_say_the_same_and_html_holds_no_markup_of_others() {
        let lines = vec![
            line(MessageText::Text("<script>alert(1)</script> & so on".to_owned())),
            DigestMessage { highlight: true, ..line(MessageText::Encrypted(2)) },
            line(MessageText::Did("sent a picture".to_owned())),
        ];
        let mut digest = digest(vec![room("<Den>", 9, lines)], vec![]);
        digest.more_rooms = 2;
        digest.messages = 14;
        let mail = digest.mail("example.org");
        for plain in [
            "<Den>: 9 new messages\n",
            "5 earlier messages are not shown.",
            "[1 May, 12:00 UTC] Bob <b> (@bob:test): <script>alert(1)</script> & so on\n",
            "[1 May, 12:00 UTC, about you] Bob <b> (@bob:test) sent 2 encrypted messages\n",
            "Bob <b> (@bob:test) sent a picture\n",
            "And 5 messages in 2 more rooms.",
            "\nhttps://example.org/x?a=1&b=2\n",
            "in Element",
        ] {
            assert!(mail.plain.contains(plain), "{plain} is not in {}", mail.plain);
        }
        for html in [
            "&lt;script&gt;alert(1)&lt;/script&gt; &amp; so on",
            "&lt;Den&gt;",
            "Bob &lt;b&gt;",
            "sent 2 encrypted messages",
            ">about you<",
            "href=\"https://example.org/x?a=1&amp;b=2\"",
        ] {
            assert!(mail.html.contains(html), "{html} is not in {}", mail.html);
        }
        assert!(!mail.html.contains("<script") && !mail.html.contains("<Den>"));
        assert_eq!(mail.unsubscribe.as_deref(), Some("https://example.org/x?a=1&b=2"));
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("  a\r\n\tb  ", 80), "a b");
        assert_eq!(cut("abc def", 7), "abc def");
        assert_eq!(cut("abc def", 5), "abc d…");
        assert_eq!(cut("abc def", 4), "abc…");
        assert_eq!(cut("\u{202e}gnp.exe\u{0}", 80), "gnp.exe");
        assert_eq!(cut("\u{2066}\u{0}", 80), "");
    }

    proptest! {
        #[test]
        fn what_is_cut_is_one_short_line(words in ".{0,60}", most in 1_usize..30) {
            let line = cut(&words, most);
            prop_assert!(line.chars().count() <= most + 1);
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert_eq!(line.trim(), &line[..]);
            // Short texts stay as they are.
            prop_assert_eq!(cut(&line, most + 1), line);
        }
    }
}
