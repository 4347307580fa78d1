//! Case-insensitive glob patterns of push rules (appendices, "Glob-style matching").
//!
//! ruma's own matching is not used. It recurses for each word of a text (the text of one event
//! overflows the stack), compiles a regular expression for each match, and panics if that grows too
//! large. Here a match costs one step for each character of the text and part of the pattern,
//! whatever they contain.

use std::{cell::OnceCell, sync::OnceLock};

use memchr::memmem;

/// How many characters a pattern may have between two `*`: as many as a number has bits.
pub const PART_CHARS: usize = 128;

/// How many steps it costs to start searching for a word.
const STEPS_OF_FIND: u64 = 16;

/// How many bytes one step searches.
const BYTES_OF_STEP: u64 = 16;

/// A count of the work done. One step compares one character and takes about a nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps(u64);

impl Steps {
    pub const fn take(&mut self, steps: u64) {
        self.0 = self.0.saturating_add(steps);
    }

    pub const fn count(self) -> u64 {
        self.0
    }
}

/// A text prepared for matching: in lower case.
#[derive(Debug)]
pub struct Text {
    pub text: String,
    /// Its characters, computed when it is first matched with a pattern that has wildcards, which
    /// is rare.
    chars: OnceLock<Vec<char>>,
}

impl Text {
    pub fn new(text: &str) -> Self {
        Self { text: lowercase(text), chars: OnceLock::new() }
    }

    fn chars(&self) -> &[char] {
        self.chars.get_or_init(|| self.text.chars().collect())
    }

    /// How many steps the preparation took.
    fn steps(&self) -> u64 {
        4 * self.text.len() as u64
    }

    /// Whether it contains `words`, which are in lower case, at word boundaries.
    pub fn has(&self, words: &str, steps: &mut Steps) -> bool {
        if words.is_empty() {
            return self.text.is_empty();
        }
        let finder = memmem::Finder::new(words.as_bytes());
        let text = self.text.as_bytes();
        // No byte of a character outside ASCII looks like ASCII.
        let is_word =
            |index: usize| text.get(index).is_some_and(|c| c.is_ascii_alphanumeric() || *c == b'_');
        let mut from = 0;
        while let Some(found) = finder.find(&text[from..]) {
            steps.take(STEPS_OF_FIND + found as u64 / BYTES_OF_STEP);
            let begin = from + found;
            if is_boundary(is_word, begin) && is_boundary(is_word, begin + words.len()) {
                return true;
            }
            from = begin + 1;
        }
        steps.take(STEPS_OF_FIND + (text.len() - from) as u64 / BYTES_OF_STEP);
        false
    }

    /// Whether a word may begin or end before the character at `index`.
    fn is_boundary(&self, index: usize) -> bool {
        let is_word = |index: usize| {
            self.chars().get(index).is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_')
        };
        is_boundary(is_word, index)
    }
}

fn is_boundary(is_word: impl Fn(usize) -> bool, index: usize) -> bool {
    index == 0 || !is_word(index - 1) || !is_word(index)
}

/// `text` in lower case, character by character: lower case does not depend on neighbouring
/// characters.
pub fn lowercase(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).collect()
}

/// A prepared pattern.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    /// The parts between the stars. The first and the last are anchored at the ends.
    parts: Vec<Part>,
    /// All of it in lower case, if the pattern has no wildcards.
    plain: Option<String>,
}

/// Which part of a text a pattern must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Any part that begins and ends at word boundaries.
    Words,
}

impl Glob {
    /// Parses `pattern`, in which `*` matches any characters and `?` any one character. `None` if
    /// there are more than [`PART_CHARS`] characters between two stars.
    pub fn new(pattern: &str) -> Option<Self> {
        let parts = pattern.split('*').map(|part| Part::new(part, Some('?')));
        let plain = (!pattern.contains(['*', '?'])).then(|| lowercase(pattern));
        Some(Self { parts: parts.collect::<Option<_>>()?, plain })
    }

    /// The pattern that matches exactly `text`, whatever it contains.
    pub fn literal(text: &str) -> Option<Self> {
        let part = Part::new(text, None)?;
        Some(Self { parts: vec![part], plain: Some(lowercase(text)) })
    }

    /// Whether the pattern matches the whole of `text`.
    pub fn is(&self, text: &str) -> bool {
        self.is_prepared(text, &OnceCell::new(), &mut Steps::default())
    }

    /// Like [`Glob::is`], for a text that is matched with many patterns: `prepared` caches what
    /// they share.
    pub fn is_prepared(&self, text: &str, prepared: &OnceCell<Text>, steps: &mut Steps) -> bool {
        match &self.plain {
            Some(plain) if text.is_ascii() => {
                steps.take(1 + text.len() as u64 / BYTES_OF_STEP);
                text.eq_ignore_ascii_case(plain)
            }
            _ => {
                let prepared = prepared.get_or_init(|| {
                    let prepared = Text::new(text);
                    steps.take(prepared.steps());
                    prepared
                });
                self.matches(prepared, Extent::Whole, steps)
            }
        }
    }

    pub fn matches(&self, text: &Text, extent: Extent, steps: &mut Steps) -> bool {
        if let (Some(plain), Extent::Words) = (&self.plain, extent) {
            return text.has(plain, steps);
        }
        let chars = text.chars();
        let end = chars.len();
        let bound = |index: usize, outermost: usize| match extent {
            Extent::Whole => index == outermost,
            Extent::Words => text.is_boundary(index),
        };
        // An empty pattern matches an empty text, and no word.
        if let [only] = &self.parts[..]
            && only.chars == 0
        {
            return end == 0;
        }
        let last = self.parts.len() - 1;
        let mut from = 0;
        for (number, part) in self.parts.iter().enumerate() {
            if part.chars == 0 {
                continue;
            }
            let may_begin = |index| number > 0 || bound(index, 0);
            let may_end = |index| number < last || bound(index, end);
            // The first position where a part fits leaves the most text for later parts.
            let found = part.find(chars, from, may_begin, may_end);
            steps.take(1 + (found.unwrap_or(end) - from) as u64);
            match found {
                Some(end) => from = end,
                None => return false,
            }
        }
        true
    }
}

/// A part of a pattern without stars, as a set of positions for each character.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Part {
    chars: usize,
    /// The positions of each character, sorted by character.
    places: Vec<(char, u128)>,
    /// The positions that match any character.
    any: u128,
    /// The first character, unless any may come first.
    first: Option<char>,
}

impl Part {
    fn new(part: &str, wildcard: Option<char>) -> Option<Self> {
        let mut new = Self { chars: 0, places: Vec::new(), any: 0, first: None };
        for c in part.chars().flat_map(char::to_lowercase) {
            if new.chars == PART_CHARS {
                return None;
            }
            let place = 1 << new.chars;
            new.chars += 1;
            if Some(c) == wildcard {
                new.any |= place;
                continue;
            }
            if place == 1 {
                new.first = Some(c);
            }
            match new.places.binary_search_by_key(&c, |(known, _)| *known) {
                Ok(index) => new.places[index].1 |= place,
                Err(index) => new.places.insert(index, (c, place)),
            }
        }
        Some(new)
    }

    /// The end of the first match after `from`.
    fn find(
        &self,
        text: &[char],
        from: usize,
        may_begin: impl Fn(usize) -> bool,
        may_end: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let full = 1 << (self.chars - 1);
        // Bit n: the last n + 1 characters match the first n + 1 of the part.
        let mut fits: u128 = 0;
        for (index, c) in text.iter().enumerate().skip(from) {
            // The usual case: no match is in progress, and none can begin here.
            if fits == 0 && self.first.is_some_and(|first| first != *c) {
                continue;
            }
            let places = match self.places.binary_search_by_key(c, |(known, _)| *known) {
                Ok(found) => self.places[found].1 | self.any,
                Err(_) => self.any,
            };
            fits = (fits << 1) & places;
            if places & 1 == 1 && may_begin(index) {
                fits |= 1;
            }
            if fits & full != 0 && may_end(index + 1) {
                return Some(index + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str, extent: Extent) -> bool {
        Glob::new(pattern)
            .is_some_and(|glob| glob.matches(&Text::new(text), extent, &mut Steps::default()))
    }

    #[test]
    fn a_whole_text_is_matched_without_regard_to_case() {
        let whole = |pattern, text| matches(pattern, text, Extent::Whole);
        // The examples of the specification.
        assert!(whole("lunc?*", "Lunch plans"));
        assert!(whole("lunc?*", "LUNCH"));
        assert!(!whole("lunc?*", " lunch"));
        assert!(!whole("lunc?*", "lunc"));
        assert!(whole("", ""));
        assert!(!whole("", "x"));
        assert!(whole("*", "") && whole("**", "any thing"));
        assert!(whole("a*b*c", "a-b-b-c") && !whole("a*b*c", "a-c-b"));
        assert!(whole("ÄRGER", "ärger"));
        assert!(!whole("ab*ba", "aba"));
    }

    #[test]
    fn words_are_matched_within_a_text() {
        let words = |pattern, text| matches(pattern, text, Extent::Words);
        // The examples of the specification.
        assert!(words("ex*ple", "An example event."));
        assert!(words("ex*ple", "exple"));
        assert!(words("ex*ple", "An exciting triple-whammy"));
        assert!(
            words("cake", "Some cake?") && words("cake", "CAKE") && words("cake", "x\ncake\ny")
        );
        assert!(!words("cake", "cakes") && !words("cake", "pancake") && !words("cake", "my_cake"));
        assert!(words("cake", "cakes, cake"));
        assert!(words("@room", "hello@room!"));
        assert!(words("日本", "in 日本語 only"));
        assert!(!words("", "x") && words("", ""));
        assert!(words("c?ke", "coke") && !words("c?ke", "cke"));
        assert!(words("a*", "b a") && words("*", "x"));
        assert!(words("x-x", "yx-x-x") && !words("x-x", "yx-xx"));
        assert!(words("ΟΔΟΣ", "η οδοσ") && words("é", "É!"));
    }

    #[test]
    fn a_literal_has_no_wildcards() {
        let name = |name: &str, text: &str| {
            Glob::literal(name).is_some_and(|glob| {
                glob.matches(&Text::new(text), Extent::Words, &mut Steps::default())
            })
        };
        assert!(name("*", "a * b") && !name("*", "anything"));
        assert!(name("Who?", "so who? me") && !name("Who?", "so whom"));
    }

    #[test]
    fn no_pattern_takes_long_or_recurses() {
        // Each of these defeats a matcher that backtracks or recurses.
        let text = Text::new(&"ab ".repeat(21_000));
        for pattern in
            ["a", "a*a*a*a*a*a*a*a*a*c", "?????a?????c", &"a?".repeat(64), &"*a".repeat(500)]
        {
            let glob = Glob::new(pattern).expect("a pattern within the limits");
            let mut steps = Steps::default();
            let _: bool = glob.matches(&text, Extent::Words, &mut steps);
            // Searching for a word costs more steps if it occurs often.
            assert!(steps.count() <= STEPS_OF_FIND * 63_000, "{pattern}: {steps:?}");
        }
        assert!(Glob::new(&"?".repeat(PART_CHARS + 1)).is_none());
    }

    /// The semantics of a pattern, implemented without regard to cost.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((c, rest)) => text
                .split_first()
                .is_some_and(|(first, after)| (*c == '?' || c == first) && naive(rest, after)),
        }
    }

    proptest! {
        #[test]
        fn patterns_mean_what_the_specification_says(
            pattern in "[ab ?*]{0,6}", text in "[ab ]{0,8}",
        ) {
            let (p, t): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
            prop_assert_eq!(matches(&pattern, &text, Extent::Whole), naive(&p, &t));
            prop_assert_eq!(Glob::new(&pattern).map(|glob| glob.is(&text)), Some(naive(&p, &t)));
            let prepared = Text::new(&text);
            let boundaries: Vec<_> = (0..=t.len()).filter(|i| prepared.is_boundary(*i)).collect();
            let within = boundaries.iter().any(|from| {
                boundaries.iter().any(|to| from <= to && naive(&p, &t[*from..*to]))
            });
            let expected = if p.is_empty() { t.is_empty() } else { within };
            prop_assert_eq!(matches(&pattern, &text, Extent::Words), expected);
        }
    }
}
