//! One walk over a JSON text: whether it is JSON and already canonical, and what is in it.

use std::borrow::Cow;

use super::{NotCanonical, Numbers, is_held, is_strict, normal};
use crate::limits;

/// What a walk over a JSON text finds.
#[derive(Debug)]
pub(crate) struct Scan {
    /// How deep it nests.
    pub(super) depth: usize,
    /// Whether the text is in canonical form.
    pub(super) is_canonical: bool,
    /// The objects, by where they begin; none if the text is canonical.
    objects: Vec<Object>,
    /// Their members: those of an object together, sorted by their names, each name once.
    members: Vec<Member>,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    begin: u32,
    end: u32,
    /// Its first member, and how many it has.
    members: (u32, u32),
}

/// A member of an object, by places in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    key: (u32, u32),
    value: u32,
}

impl Member {
    /// The name, with its quotes.
    pub(super) fn key(self, text: &str) -> &str {
        &text[self.key.0 as usize..self.key.1 as usize]
    }

    /// Where the value begins, or the space before it.
    pub(super) fn value(self) -> usize {
        self.value as usize
    }
}

/// A container that is being walked over.
enum Open {
    Array,
    Object { begin: u32, members: Vec<Member> },
}

impl Scan {
    /// Walks over `text`.
    pub(crate) fn of(text: &str, numbers: Numbers) -> Result<Self, NotCanonical> {
        if u32::try_from(text.len()).is_err() {
            return Err(NotCanonical::Syntax(text.len()));
        }
        let (objects, members) = (Vec::new(), Vec::new());
        let scan = Self { depth: 0, is_canonical: true, objects, members };
        let mut walk = Walk { text, numbers, at: 0, open: Vec::new(), is_fresh: false, scan };
        walk.all()?;
        let mut scan = walk.scan;
        if scan.is_canonical {
            (scan.objects, scan.members) = (Vec::new(), Vec::new());
        } else {
            scan.objects.sort_unstable_by_key(|object| object.begin);
        }
        Ok(scan)
    }

    /// The members of the object that begins at this place, and where it ends.
    pub(super) fn object(&self, begin: usize) -> (&[Member], usize) {
        let found = self.objects.binary_search_by_key(&begin, |object| object.begin as usize);
        found.map_or((&[], begin + 1), |found| {
            let Object { end, members: (first, count), .. } = self.objects[found];
            (&self.members[first as usize..][..count as usize], end as usize)
        })
    }
}

struct Walk<'a> {
    text: &'a str,
    numbers: Numbers,
    at: usize,
    /// The containers around this place, from the outside in.
    open: Vec<Open>,
    /// Whether the innermost of them has just begun.
    is_fresh: bool,
    scan: Scan,
}

impl Walk<'_> {
    fn all(&mut self) -> Result<(), NotCanonical> {
        self.value()?;
        while let Some(inner) = self.open.last() {
            let is_object = matches!(inner, Open::Object { .. });
            self.space();
            let is_fresh = std::mem::take(&mut self.is_fresh);
            match (self.peek(), is_object) {
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    self.close();
                    continue;
                }
                (Some(b','), _) if !is_fresh => self.at += 1,
                (Some(_), _) if is_fresh => {}
                _ => return Err(self.wrong()),
            }
            if is_object {
                self.name()?;
            }
            self.value()?;
        }
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.wrong()) }
    }

    /// Walks over a value, or the beginning of a container.
    fn value(&mut self) -> Result<(), NotCanonical> {
        self.space();
        let begin = place(self.at);
        match self.peek() {
            Some(b'{') => self.open(Open::Object { begin, members: Vec::new() })?,
            Some(b'[') => self.open(Open::Array)?,
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        }
        Ok(())
    }

    fn open(&mut self, container: Open) -> Result<(), NotCanonical> {
        if self.open.len() >= limits::TEXT_DEPTH {
            return Err(NotCanonical::TooDeep);
        }
        self.at += 1;
        self.is_fresh = true;
        self.open.push(container);
        self.scan.depth = self.scan.depth.max(self.open.len());
        Ok(())
    }

    fn close(&mut self) {
        if let Some(Open::Object { begin, members }) = self.open.pop() {
            let is_sorted = self.is_sorted(&members);
            self.scan.is_canonical &= is_sorted;
            let members = if is_sorted { members } else { self.sorted(members) };
            let range = (place(self.scan.members.len()), place(members.len()));
            self.scan.members.extend(members);
            self.scan.objects.push(Object { begin, end: place(self.at), members: range });
        }
    }

    /// The name of a member, up to its value.
    fn name(&mut self) -> Result<(), NotCanonical> {
        self.space();
        let begin = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.wrong());
        }
        self.string()?;
        let key = (place(begin), place(self.at));
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.wrong());
        }
        self.at += 1;
        if let Some(Open::Object { members, .. }) = self.open.last_mut() {
            members.push(Member { key, value: place(self.at) });
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), NotCanonical> {
        let (begin, mut is_plain) = (self.at, true);
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    is_plain = false;
                    self.escape()?;
                }
                Some(0x20..) => self.at += 1,
                _ => return Err(self.wrong()),
            }
        }
        self.at += 1;
        if !is_plain {
            let token = &self.text[begin..self.at];
            match decoded(token) {
                Some(text) => self.scan.is_canonical &= encoded(&text) == token,
                None if self.numbers == Numbers::AsWritten => {}
                None => return Err(NotCanonical::Surrogate),
            }
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<(), NotCanonical> {
        let rest = &self.text.as_bytes()[self.at + 1..];
        let length = match rest.first() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') if rest.len() > 4 && rest[1..5].iter().all(u8::is_ascii_hexdigit) => 6,
            _ => return Err(self.wrong()),
        };
        self.at += length;
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotCanonical> {
        let begin = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let token = &self.text[begin..self.at];
        let is_allowed = match self.numbers {
            Numbers::AsWritten => true,
            Numbers::Strict => is_strict(token),
            Numbers::Held if !is_held(token) => false,
            Numbers::Lax | Numbers::Held => normal(token).is_some_and(|written| {
                self.scan.is_canonical &= written == token;
                true
            }),
        };
        if is_allowed {
            return Ok(());
        }
        Err(NotCanonical::Number(token.chars().take(limits::NUMBER_SHOWN).collect()))
    }

    fn digits(&mut self) -> Result<(), NotCanonical> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at > begin { Ok(()) } else { Err(self.wrong()) }
    }

    fn word(&mut self) -> Result<(), NotCanonical> {
        let rest = &self.text.as_bytes()[self.at..];
        let words: [&[u8]; 3] = [b"true", b"false", b"null"];
        let word = words.into_iter().find(|word| rest.starts_with(word));
        self.at += word.ok_or_else(|| self.wrong())?.len();
        Ok(())
    }

    fn space(&mut self) {
        let end = skip_space(self.text, self.at);
        self.scan.is_canonical &= end == self.at;
        self.at = end;
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn wrong(&self) -> NotCanonical {
        NotCanonical::Syntax(self.at)
    }

    fn is_sorted(&self, members: &[Member]) -> bool {
        members.windows(2).all(|pair| rank(pair[0].key(self.text)) < rank(pair[1].key(self.text)))
    }

    /// The members by their names. If a name repeats, its last member counts, as in Python.
    fn sorted(&self, mut members: Vec<Member>) -> Vec<Member> {
        members.reverse();
        members.sort_by_cached_key(|member| rank(member.key(self.text)));
        members.dedup_by(|later, kept| rank(later.key(self.text)) == rank(kept.key(self.text)));
        members
    }
}

/// A place in a text, whose length fits.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The first place from `at` on that is not white space.
pub(crate) fn skip_space(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    let space = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    at + space
}

/// Where the string, number or word that begins at `at` ends, in a text that is JSON.
pub(super) fn scalar_end(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    if rest.first() != Some(&b'"') {
        let token = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.'));
        return at + token.count();
    }
    let mut end = 1;
    while let Some(byte) = rest.get(end) {
        match byte {
            b'"' => return at + end + 1,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    text.len()
}

/// A token of a text in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// An object begins: names and values follow each other up to its end.
    BeginObject,
    BeginArray,
    /// The innermost object or array ends.
    End,
    /// A string, or a name.
    Text(Cow<'a, str>),
    Number(&'a str),
    /// `true`, `false` or `null`.
    Word(&'a str),
}

/// The tokens of a text in canonical form.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while matches!(text.as_bytes().get(at), Some(b',' | b':')) {
            at += 1;
        }
        let begin = at;
        at += 1;
        Some(match text.as_bytes().get(begin)? {
            b'{' => Token::BeginObject,
            b'[' => Token::BeginArray,
            b'}' | b']' => Token::End,
            first => {
                at = scalar_end(text, begin);
                let token = &text[begin..at];
                match first {
                    b'"' => Token::Text(name(token)),
                    b'-' | b'0'..=b'9' => Token::Number(token),
                    _ => Token::Word(token),
                }
            }
        })
    })
}

/// The sort key of a name. One that is not Unicode equals no Unicode name.
fn rank(token: &str) -> (Cow<'_, str>, bool) {
    let is_unicode = !token.contains('\\') || decoded(token).is_some();
    (name(token), is_unicode)
}

/// The text in a string token, or its raw characters if it is not Unicode.
fn name(token: &str) -> Cow<'_, str> {
    let inner = &token[1..token.len() - 1];
    if inner.contains('\\') {
        decoded(token).map_or(Cow::Borrowed(inner), Cow::Owned)
    } else {
        Cow::Borrowed(inner)
    }
}

/// A string token in canonical form, or as written if it is not Unicode.
pub(super) fn string(token: &str) -> Cow<'_, str> {
    if token.contains('\\') {
        decoded(token).map_or(Cow::Borrowed(token), |text| Cow::Owned(encoded(&text)))
    } else {
        Cow::Borrowed(token)
    }
}

/// The text in a string token; `None` if it has half of a surrogate pair, which Python and browsers
/// accept as a character.
fn decoded(token: &str) -> Option<String> {
    serde_json::from_str(token).ok()
}

/// A text as a string token: serde_json escapes what canonical JSON does, in the same way.
fn encoded(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
