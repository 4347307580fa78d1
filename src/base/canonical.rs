//! Canonical JSON (specification, appendix "Canonical JSON") over the tokens of a text, whatever
//! numbers are in it.
//!
//! ruma's canonical JSON has no numbers but integers of 53 bits. Others sign requests and, in rooms
//! of versions 1 to 5, events with any number. What they signed is verified over the tokens of the
//! text, without a value in between that would round them.
//!
//! Nothing here recurses: what others send may nest as deep as it is long.

mod number;
mod scan;

use std::{borrow::Cow, slice};

pub use number::{is_held, is_strict, normal};
use scan::{Member, Scan, scalar_end, skip_space, string};
pub use scan::{Token, tokens};

use super::limits;

/// The numbers that a text may have, and how they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Integers of 53 bits, as room version 6 and later demand.
    Strict,
    /// Any that a double can be, in the way that Synapse's `canonicaljson` writes it: `1e2` is
    /// `100.0`.
    Lax,
    /// Those of [`Self::Lax`] that others can hold: integers must fit into 64 bits, signed. Synapse
    /// fails at an event with a larger one, and then at every event that comes after it.
    Held,
    /// Any, as written in the text, and strings that are not Unicode.
    AsWritten,
}

/// Why a text has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    #[error("it is not JSON at byte {0}")]
    Syntax(usize),
    #[error("a string in it is not Unicode")]
    Surrogate,
    /// A number in it is not allowed.
    #[error("canonical JSON has no number {0}")]
    Number(String),
    /// It nests too deeply.
    #[error("it nests more than {} levels deep", limits::ITEM_DEPTH)]
    TooDeep,
}

/// Checks that `text` has a canonical form with these numbers, and does not nest too deeply for
/// others to read.
pub fn check(text: &str, numbers: Numbers) -> Result<(), NotCanonical> {
    let scan = Scan::of(text, numbers)?;
    if scan.depth > limits::ITEM_DEPTH { Err(NotCanonical::TooDeep) } else { Ok(()) }
}

/// Whether clients and other homeservers can read a JSON text from another homeserver: they can
/// hold its numbers, its strings are Unicode, and it does not nest too deeply.
pub fn is_readable(text: &str) -> bool {
    check(text, Numbers::Held).is_ok()
}

/// How deep a JSON text nests.
pub fn depth(text: &str) -> Result<usize, NotCanonical> {
    Ok(Scan::of(text, Numbers::AsWritten)?.depth)
}

/// The canonical form of a JSON text. A text that has this form is returned as it is.
pub fn canonical(text: &str, numbers: Numbers) -> Result<Cow<'_, str>, NotCanonical> {
    let scan = Scan::of(text, numbers)?;
    if scan.is_canonical {
        return Ok(Cow::Borrowed(text));
    }
    let out = String::with_capacity(text.len());
    let mut writer = Writer { scan: &scan, text, numbers, out, open: Vec::new() };
    writer.write();
    Ok(Cow::Owned(writer.out))
}

/// Writes a scanned text in canonical form.
struct Writer<'a> {
    scan: &'a Scan,
    text: &'a str,
    numbers: Numbers,
    out: String,
    /// The containers around the place in the text, from the outside in.
    open: Vec<Open<'a>>,
}

enum Open<'a> {
    /// An array: its elements follow each other in the text.
    Array,
    /// An object: its members that are still to be written, and where it ends.
    Object { left: slice::Iter<'a, Member>, end: usize },
}

impl Writer<'_> {
    fn write(&mut self) {
        let mut at = self.value(0);
        while let Some(inner) = self.open.last_mut() {
            match inner {
                Open::Array => {
                    at = skip_space(self.text, at);
                    match self.text.as_bytes()[at] {
                        b']' => {
                            self.out.push(']');
                            at += 1;
                            self.open.pop();
                        }
                        b',' => {
                            self.out.push(',');
                            at = self.value(at + 1);
                        }
                        _ => at = self.value(at),
                    }
                }
                Open::Object { left, end } => match left.next() {
                    Some(member) => {
                        // Only an object's beginning ends so: a string ends with a quote.
                        if !self.out.ends_with('{') {
                            self.out.push(',');
                        }
                        self.out.push_str(&string(member.key(self.text)));
                        self.out.push(':');
                        at = self.value(member.value());
                    }
                    None => {
                        self.out.push('}');
                        at = *end;
                        self.open.pop();
                    }
                },
            }
        }
    }

    /// Writes the value at this place, or the beginning of a container. Returns where to go on.
    fn value(&mut self, at: usize) -> usize {
        let at = skip_space(self.text, at);
        match self.text.as_bytes()[at] {
            b'{' => {
                let (members, end) = self.scan.object(at);
                self.out.push('{');
                self.open.push(Open::Object { left: members.iter(), end });
                at + 1
            }
            b'[' => {
                self.out.push('[');
                self.open.push(Open::Array);
                at + 1
            }
            first => {
                let end = scalar_end(self.text, at);
                let token = &self.text[at..end];
                match first {
                    b'"' => self.out.push_str(&string(token)),
                    b'-' | b'0'..=b'9' if matches!(self.numbers, Numbers::Lax | Numbers::Held) => {
                        // The scan has found that it is finite.
                        self.out.push_str(&normal(token).unwrap_or(Cow::Borrowed(token)));
                    }
                    _ => self.out.push_str(token),
                }
                end
            }
        }
    }
}

#[cfg(test)]
mod tests;
