//! Text as it is looked for: split into words and folded, so that what differs only in case,
//! accents or the form of its letters is found alike. Full-text search and the user directory share
//! it. And as it is shown by browsers: see [`html`].

use std::ops::Range;

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// Characters of a word that count. A longer one is known by its beginning; where words are this
/// long, they are addresses or data.
const WORD_CHARS: usize = 64;

/// A word of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Where it stands in the text, in bytes. What one word as it is written folds to may be
    /// several.
    pub place: Range<usize>,
    /// The word, folded.
    pub folded: String,
}

/// The words of `text`: runs of letters, digits and what combines with them.
#[must_use]
pub fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut start = None;
    let ends = text.char_indices().map(|(at, c)| (at, belongs(c))).chain([(text.len(), false)]);
    for (at, within) in ends {
        match (start, within) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                start = None;
                let mut folded = fold(&text[from..at]);
                if text[from..at].is_ascii() {
                    // Letters and digits stay what they are, each a byte.
                    folded.truncate(WORD_CHARS);
                    words.push(Word { place: from..at, folded });
                    continue;
                }
                // Folding may come upon signs that do not belong: ½ is 1⁄2.
                let parts = folded.split(|c| !belongs(c)).filter(|part| !part.is_empty());
                words.extend(parts.map(|part| Word {
                    place: from..at,
                    folded: part.chars().take(WORD_CHARS).collect(),
                }));
            }
            _ => {}
        }
    }
    words
}

/// Whether there may be a word in `text`.
#[must_use]
pub fn has_words(text: &str) -> bool {
    text.chars().any(belongs)
}

/// `text` without the differences that do not matter when something is looked for: case, accents,
/// vowel points, widths and ligatures.
#[must_use]
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let bare = text.nfkd().filter(|c| !is_accent(*c)).nfc();
    bare.flat_map(char::to_lowercase).collect()
}

/// Under what a word is found: the word itself, or, in scripts that put no spaces between words,
/// each character and each pair of neighbours.
pub fn terms(folded: &str) -> Vec<String> {
    if folded.is_ascii() && !folded.is_empty() {
        return vec![folded.to_owned()];
    }
    let mut terms = Vec::new();
    for run in runs(folded) {
        match run {
            Run::Word(word) => terms.push(word.to_owned()),
            Run::Unspaced(characters) => {
                terms.extend(characters.iter().map(char::to_string));
                terms.extend(characters.windows(2).map(String::from_iter));
            }
        }
    }
    terms
}

/// What one who looks for a word looks for among the [`terms`] of a text: all of these.
pub fn sought(folded: &str) -> Vec<String> {
    let mut terms = Vec::new();
    for run in runs(folded) {
        match run {
            Run::Word(word) => terms.push(word.to_owned()),
            Run::Unspaced(characters) if characters.len() == 1 => {
                terms.push(characters.iter().collect());
            }
            Run::Unspaced(characters) => {
                terms.extend(characters.windows(2).map(String::from_iter));
            }
        }
    }
    terms
}

enum Run<'a> {
    Word(&'a str),
    Unspaced(Vec<char>),
}

/// A word split where its script changes from one with spaces between words to one without, or
/// back.
fn runs(folded: &str) -> Vec<Run<'_>> {
    let mut runs = Vec::new();
    let mut start = 0;
    let mut before = None;
    let changes = folded.char_indices().map(|(at, c)| (at, Some(is_unspaced(c))));
    for (at, unspaced) in changes.chain([(folded.len(), None)]) {
        if let Some(before) = before
            && unspaced != Some(before)
        {
            let run = &folded[start..at];
            runs.push(if before { Run::Unspaced(run.chars().collect()) } else { Run::Word(run) });
            start = at;
        }
        before = unspaced;
    }
    runs
}

/// Whether `c` is part of a word.
fn belongs(c: char) -> bool {
    c.is_alphanumeric() || is_combining_mark(c)
}

/// Marks that people leave out when they look for something: accents, and the vowel points of
/// Hebrew and Arabic. Those of other scripts are part of what a word is.
const fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{591}'..='\u{5c7}' | '\u{64b}'..='\u{65f}' | '\u{670}')
}

/// Whether `c` is of a script that does not divide words by spaces, or hangs so much on them that
/// they would not be found (Hangul).
const fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{e00}'..='\u{eff}'       // Thai, Lao
        | '\u{f00}'..='\u{fff}'     // Tibetan
        | '\u{1000}'..='\u{109f}'   // Myanmar
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{3005}'..='\u{3007}'   // ideographic marks
        | '\u{3040}'..='\u{30ff}'   // Hiragana, Katakana
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'   // Han
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}'   // Hangul
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// Plain text as HTML, also within quotes of an attribute.
#[must_use]
pub fn html(plain: &str) -> String {
    let mut html = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &str) -> Vec<String> {
        words(text).into_iter().map(|word| word.folded).collect()
    }

    #[test]
    fn words_are_found_whatever_their_case_accents_and_forms() {
        for (text, expected) in [
            ("Come in, the FIRE is lit!", vec!["come", "in", "the", "fire", "is", "lit"]),
            ("Résumé, naïve; Ærø", vec!["resume", "naive", "ærø"]),
            ("https://example.org/a_b?c=d", vec!["https", "example", "org", "a", "b", "c", "d"]),
            ("ΣΊΣΥΦΟΣ Ёлка й", vec!["σισυφοσ", "елка", "и"]),
            ("ﬁne ½", vec!["fine", "1", "2"]),
            ("ＡＢＣ ｶﾀｶﾅ", vec!["abc", "カタカナ"]),
            ("हिन्दी में", vec!["हिन्दी", "में"]),
            ("שָׁלוֹם مَرْحَبًا", vec!["שלום", "مرحبا"]),
            ("한국어", vec!["한국어"]),
            ("\u{1f600} … -- ", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(folded(text), expected, "{text}");
        }
    }

    #[test]
    fn a_word_knows_its_place() {
        let text = "so, Ça va?";
        let places: Vec<_> = words(text).iter().map(|word| &text[word.place.clone()]).collect();
        assert_eq!(places, ["so", "Ça", "va"]);
    }

    #[test]
    fn text_without_spaces_is_found_by_each_character_and_each_pair() {
        assert_eq!(terms("東京都"), ["東", "京", "都", "東京", "京都"]);
        assert_eq!(sought("東京都"), ["東京", "京都"]);
        assert_eq!(sought("京"), ["京"]);
        assert_eq!(terms("rust言語2"), ["rust", "言", "語", "言語", "2"]);
        assert_eq!(sought("rust"), ["rust"]);
        assert_eq!(terms("สวัสดี").len(), 11);
    }

    #[test]
    fn what_is_sought_is_among_the_terms() {
        for text in ["東京都に行く", "word", "mixed言語text", "สวัสดีครับ", "", "が"]
        {
            let terms: Vec<_> = folded(text).iter().flat_map(|word| terms(word)).collect();
            for word in folded(text) {
                for sought in sought(&word) {
                    assert!(terms.contains(&sought), "{sought} of {text}");
                }
            }
        }
    }

    #[test]
    fn long_words_are_known_by_their_beginning() {
        let long = "é".repeat(100_000);
        assert_eq!(folded(&long), ["e".repeat(WORD_CHARS)]);
    }
}
