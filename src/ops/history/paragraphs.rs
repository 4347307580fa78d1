//! Long values on a terminal: wrapped, and reduced to where two of them differ.

use std::fmt::Write as _;

use anstyle::Style;

use super::terminal::{Layout, width, wrapped};

/// What a long text keeps of what it shares with another one, at the difference, in characters.
const CONTEXT: usize = 16;

/// Two long texts from where they differ on to where they are the same again.
pub(super) fn differing(before: &str, after: &str) -> (String, String) {
    let (a, b): (Vec<char>, Vec<char>) = (before.chars().collect(), after.chars().collect());
    let same = |(a, b): &(&char, &char)| a == b;
    let begin = a.iter().zip(&b).take_while(same).count();
    let most = a.len().min(b.len()) - begin;
    let end = a.iter().rev().zip(b.iter().rev()).take(most).take_while(same).count();
    let (skip, drop) = (begin.saturating_sub(CONTEXT), end.saturating_sub(CONTEXT));
    let shown = |text: &[char]| {
        let middle = text.get(skip..text.len() - drop).unwrap_or(text).iter();
        let (first, last) = ((skip > 0).then_some('…'), (drop > 0).then_some('…'));
        first.into_iter().chain(middle.copied()).chain(last).collect()
    };
    (shown(&a), shown(&b))
}

/// `text` after `first`, in as many lines as it takes.
pub(super) fn paragraph(first: &str, text: &str, style: Style, look: &Layout, out: &mut String) {
    hanging(first, width(first), text, style, look, out);
}

/// The same, where `first` takes these columns and contains colours.
pub(super) fn hanging(
    first: &str,
    columns: usize,
    text: &str,
    style: Style,
    look: &Layout,
    out: &mut String,
) {
    for (index, line) in wrapped(text, look.left(columns)).iter().enumerate() {
        let indent = " ".repeat(columns);
        let begin = if index == 0 { first } else { &indent };
        let _ = writeln!(out, "{}", format!("{begin}{}", look.paint(style, line)).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::terminal::PLAIN;

    #[test]
    fn two_long_texts_are_shown_where_they_differ() {
        let long = |middle: &str| format!("{}{middle}{}", "a".repeat(100), "z".repeat(100));
        let (before, after) = differing(&long("one"), &long("two"));
        let around = |middle| format!("…{}{middle}{}…", "a".repeat(16), "z".repeat(16));
        assert_eq!((before, after), (around("one"), around("two")));
        assert_eq!(differing("", "x"), (String::new(), "x".to_owned()));
        assert_eq!(differing("aa", "aaa"), ("aa".to_owned(), "aaa".to_owned()));
    }

    #[test]
    fn a_paragraph_fits_the_terminal() {
        let mut out = String::new();
        let look = Layout { colour: false, width: Some(40) };
        paragraph("  → ", &"word ".repeat(30), PLAIN, &look, &mut out);
        assert!(out.lines().all(|line| width(line) <= 40), "{out}");
        assert_eq!(out.matches("word").count(), 30, "{out}");
    }
}
