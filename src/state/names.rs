//! The names by which users are found: an index of the words in ids and display names.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use parking_lot::RwLock;
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_base::{limits, text};

/// The present names of all local users, derived from the accounts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Names(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    users: Vec<NamedUser>,
    #[serde(with = "serializers::sorted")]
    numbers: HashMap<OwnedUserId, u32>,
    /// The users with each word in their names, by their index in `users`.
    words: BTreeMap<Box<str>, BTreeSet<u32>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NamedUser {
    user_id: OwnedUserId,
    display_name: Option<Box<str>>,
}

/// How well a name matches a search, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchQuality {
    /// It is the whole name.
    Exact,
    /// The name begins with it.
    Beginning,
    /// Words of the name begin with its words.
    Words,
    /// Its words are within words of the name.
    Parts,
}

/// A search result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameMatch {
    /// How well the name matches.
    pub fit: MatchQuality,
    pub user_id: OwnedUserId,
    pub display_name: Option<String>,
}

impl Names {
    /// The users in whose id or display name each word of `term` begins a word or, if it has two
    /// characters, is within one, in no order. Case and accents do not matter. A user id, or the
    /// beginning of one with its `@` or its `:`, also matches the id, and a term without letters
    /// and digits, such as an emoji, any part of the display name. The first
    /// [`limits::SEARCH_WORDS`] words count, and for parts of words the first
    /// four, which are compared with all words in names.
    pub fn find(&self, term: &str) -> Vec<NameMatch> {
        let inner = self.0.read();
        let folded = text::fold(term.trim());
        let mut found: BTreeMap<u32, MatchQuality> = BTreeMap::new();
        for number in inner.with_words(&folded) {
            if let Some(user) = inner.user(number) {
                found.insert(number, user.fit(&folded));
            }
        }
        for number in inner.with_id(&folded) {
            let fit = match inner.user(number) {
                Some(user) if is_id_of(&folded, &user.user_id) => MatchQuality::Exact,
                _ => MatchQuality::Beginning,
            };
            found.entry(number).and_modify(|known| *known = fit.min(*known)).or_insert(fit);
        }
        drop(inner);
        for number in self.with_parts(&folded) {
            found.entry(number).or_insert(MatchQuality::Parts);
        }
        let inner = self.0.read();
        let found = found.into_iter().filter_map(|(number, fit)| {
            let user = inner.user(number)?;
            let display_name = user.display_name.as_deref().map(str::to_owned);
            Some(NameMatch { fit, user_id: user.user_id.clone(), display_name })
        });
        found.collect()
    }

    /// The users in whose names each word of `folded` is within a word, or in whose display names
    /// `folded` is if it has no words. What is written meanwhile does not wait for it.
    fn with_parts(&self, folded: &str) -> BTreeSet<u32> {
        let (mut sought, bare) = (sought(folded), without_selectors(folded));
        if sought.is_empty() {
            return if bare.is_empty() { BTreeSet::new() } else { self.with_text(&bare) };
        }
        sought.truncate(PARTS);
        let mut users = vec![BTreeSet::new(); sought.len()];
        let mut last: Option<Box<str>> = None;
        loop {
            let inner = self.0.read();
            let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let words = inner.words.range::<str, _>((from, Bound::Unbounded));
            let (mut count, mut end) = (0, None);
            for (word, of) in words.take(WORDS_AT_ONCE) {
                for (sought, users) in sought.iter().zip(&mut users) {
                    // A character within words is in nearly all names.
                    let is_long = sought.chars().nth(1).is_some();
                    if word.starts_with(sought) || is_long && word.contains(sought) {
                        users.extend(of);
                    }
                }
                (count, end) = (count + 1, Some(word));
            }
            last = end.cloned();
            if count < WORDS_AT_ONCE {
                break;
            }
        }
        users.into_iter().reduce(|all, users| &all & &users).unwrap_or_default()
    }

    /// The users in whose display names a text is.
    fn with_text(&self, folded: &str) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for from in (0..).step_by(WORDS_AT_ONCE) {
            let inner = self.0.read();
            let Some(users) = inner.users.get(from..) else { break };
            for (at, user) in users.iter().take(WORDS_AT_ONCE).enumerate() {
                // Text without letters and digits that people search for is not ASCII.
                let name = user.display_name.as_deref().filter(|name| !name.is_ascii());
                if name.is_some_and(|name| without_selectors(&text::fold(name)).contains(folded)) {
                    found.extend(u32::try_from(from + at));
                }
            }
            if users.len() <= WORDS_AT_ONCE {
                break;
            }
        }
        found
    }

    pub fn add(&self, user_id: &UserId) {
        let mut inner = self.0.write();
        if inner.numbers.contains_key(user_id) {
            return;
        }
        // Accounts fit into memory: there are fewer than 2^32.
        let number = u32::try_from(inner.users.len()).unwrap_or(u32::MAX);
        inner.numbers.insert(user_id.to_owned(), number);
        inner.users.push(NamedUser { user_id: user_id.to_owned(), display_name: None });
        inner.index(number);
    }

    /// Removes a user from the index.
    pub fn remove(&self, user_id: &UserId) {
        let mut inner = self.0.write();
        let Some(number) = inner.numbers.remove(user_id) else { return };
        inner.unindex(number);
        if let Some(user) = inner.users.get_mut(number as usize) {
            user.display_name = None;
        }
    }

    pub fn set_display_name(&self, user_id: &UserId, name: Option<&str>) {
        let mut inner = self.0.write();
        let Some(number) = inner.numbers.get(user_id).copied() else { return };
        inner.unindex(number);
        if let Some(user) = inner.users.get_mut(number as usize) {
            user.display_name = name.filter(|name| !name.is_empty()).map(Into::into);
        }
        inner.index(number);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

impl Inner {
    fn user(&self, number: u32) -> Option<&NamedUser> {
        self.users.get(number as usize)
    }

    fn index(&mut self, number: u32) {
        for word in self.user(number).map(NamedUser::words).unwrap_or_default() {
            self.words.entry(word).or_default().insert(number);
        }
    }

    fn unindex(&mut self, number: u32) {
        for word in self.user(number).map(NamedUser::words).unwrap_or_default() {
            if let Some(users) = self.words.get_mut(&word) {
                users.remove(&number);
                if users.is_empty() {
                    self.words.remove(&word);
                }
            }
        }
    }

    /// The users in whose names each word of `folded` begins a word.
    fn with_words(&self, folded: &str) -> BTreeSet<u32> {
        let mut all: Option<BTreeSet<u32>> = None;
        for word in sought(folded) {
            let from = (Bound::Included(word.as_str()), Bound::Unbounded);
            let beginning = self.words.range::<str, _>(from);
            let beginning = beginning.take_while(|(known, _)| known.starts_with(&word));
            let users = beginning.flat_map(|(_, users)| users).copied();
            all = Some(match all {
                Some(all) => users.filter(|number| all.contains(number)).collect(),
                None => users.collect(),
            });
        }
        all.unwrap_or_default()
    }

    /// The users whose id is or begins with `folded`, if that looks like an id.
    fn with_id(&self, folded: &str) -> Vec<u32> {
        let id = folded.strip_prefix('@');
        if id.is_none() && !folded.contains(':') {
            return Vec::new();
        }
        let id = id.unwrap_or(folded);
        let local = id.split(':').next().unwrap_or_default();
        let candidates = self.with_words(local).into_iter();
        let fits = |number: &u32| {
            self.user(*number).is_some_and(|user| {
                user.user_id
                    .as_str()
                    .to_lowercase()
                    .strip_prefix('@')
                    .is_some_and(|known| known.starts_with(id))
            })
        };
        candidates.filter(fits).collect()
    }
}

/// The words of a term that may be parts of words.
const PARTS: usize = 4;

/// Words that are looked at before others may write.
const WORDS_AT_ONCE: usize = 5_000;

/// A text without the marks that choose between the forms of an emoji.
fn without_selectors(text: &str) -> String {
    text.chars().filter(|c| !('\u{fe00}'..='\u{fe0f}').contains(c)).collect()
}

/// The words of a folded search term, each once.
fn sought(folded: &str) -> Vec<String> {
    let bare = without_selectors(folded);
    let words = text::words(&bare).into_iter().take(limits::SEARCH_WORDS);
    let mut seen = BTreeSet::new();
    let sought = words.flat_map(|word| text::sought(&word.folded));
    sought.filter(|word| seen.insert(word.clone())).collect()
}

fn is_id_of(folded: &str, user_id: &UserId) -> bool {
    let id = user_id.as_str().to_lowercase();
    id == folded
        || id.strip_prefix('@') == Some(folded)
        || format!("@{}", user_id.localpart()) == folded
}

impl NamedUser {
    fn words(&self) -> BTreeSet<Box<str>> {
        let names = [Some(self.user_id.localpart()), self.display_name.as_deref()];
        let words = names.into_iter().flatten().flat_map(text::words);
        words.flat_map(|word| text::terms(&word.folded)).map(Into::into).collect()
    }

    fn fit(&self, folded: &str) -> MatchQuality {
        let display_name = self.display_name.as_deref().map(text::fold);
        let names = [Some(text::fold(self.user_id.localpart())), display_name];
        let fit = |name: String| {
            if name == folded {
                MatchQuality::Exact
            } else if name.starts_with(folded) {
                MatchQuality::Beginning
            } else {
                MatchQuality::Words
            }
        };
        names.into_iter().flatten().map(fit).min().unwrap_or(MatchQuality::Words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(users: &[(&str, Option<&str>)]) -> Names {
        let names = Names::default();
        for (user_id, display_name) in users {
            let user_id = UserId::parse(user_id).expect("a user id");
            names.add(&user_id);
            names.set_display_name(&user_id, *display_name);
        }
        names
    }

    fn found(names: &Names, term: &str) -> Vec<(MatchQuality, String)> {
        let mut found: Vec<_> = names
            .find(term)
            .into_iter()
            .map(|f| (f.fit, f.user_id.localpart().to_owned()))
            .collect();
        found.sort();
        found
    }

    #[test]
    fn only_the_first_words_of_a_long_term_are_searched_for() {
        let names = names(&[("@ann:e.test", Some("Ann Bell"))]);
        let of = |count: usize, last: &str| format!("{}{last}", "ann ".repeat(count));
        assert!(found(&names, &of(limits::SEARCH_WORDS - 1, "zoe")).is_empty());
        for last in ["zoe", "bell"] {
            let found = found(&names, &of(limits::SEARCH_WORDS, last));
            assert_eq!(found, [(MatchQuality::Words, "ann".to_owned())], "{last}");
        }
    }

    #[test]
    fn users_are_found_by_words_of_their_names_and_by_parts_of_them() {
        let names = names(&[
            ("@ann:e.test", Some("Ann Müller")),
            ("@anna.b:e.test", None),
            ("@bob:e.test", Some("Anton Ann")),
            ("@taro:e.test", Some("山田太郎")),
            ("@eve:e.test", Some("ann:e.test")),
            ("@fox:e.test", Some("Alex 🦊 ❤️")),
            ("@owl:e.test", Some("☀️")),
        ]);
        let all = |list: &[(MatchQuality, &str)]| -> Vec<(MatchQuality, String)> {
            list.iter().map(|(fit, name)| (*fit, (*name).to_owned())).collect()
        };
        use MatchQuality::{Beginning, Exact, Parts, Words};
        for (term, expected) in [
            (
                "ann",
                vec![(Exact, "ann"), (Beginning, "anna.b"), (Beginning, "eve"), (Words, "bob")],
            ),
            ("ANN mul", vec![(Beginning, "ann")]),
            ("muller ann", vec![(Words, "ann")]),
            ("müller", vec![(Words, "ann")]),
            ("nn", vec![(Parts, "ann"), (Parts, "anna.b"), (Parts, "bob"), (Parts, "eve")]),
            ("nn ull", vec![(Parts, "ann")]),
            ("lex", vec![(Parts, "fox")]),
            ("x", vec![]),
            ("🦊", vec![(Parts, "fox")]),
            ("🦊 lex", vec![(Parts, "fox")]),
            ("🐻", vec![]),
            ("❤️", vec![(Parts, "fox")]),
            ("❤", vec![(Parts, "fox")]),
            ("a lex", vec![(Parts, "fox")]),
            ("anna.b", vec![(Exact, "anna.b")]),
            ("太郎", vec![(Words, "taro")]),
            ("山", vec![(Beginning, "taro")]),
            ("@ann", vec![(Exact, "ann"), (Beginning, "anna.b"), (Words, "bob"), (Words, "eve")]),
            ("@ann:e.test", vec![(Exact, "ann"), (Words, "eve")]),
            ("ann:e.test", vec![(Exact, "ann"), (Exact, "eve")]),
            ("@bob:e", vec![(Beginning, "bob")]),
            ("@ann:other.test", vec![]),
            ("", vec![]),
            ("  ", vec![]),
            ("\" OR * --", vec![]),
        ] {
            assert_eq!(found(&names, term), all(&expected), "{term}");
        }
    }

    #[test]
    fn a_removed_user_is_not_found() {
        let names = names(&[("@ann:e.test", Some("Ann Bell")), ("@anna:e.test", None)]);
        let ann = UserId::parse("@ann:e.test").expect("a user id");
        names.remove(&ann);
        names.set_display_name(&ann, Some("Ann again"));
        assert_eq!(found(&names, "ann"), [(MatchQuality::Beginning, "anna".to_owned())]);
        assert!(found(&names, "@ann:e.test").is_empty());
    }

    #[test]
    fn a_former_display_name_is_not_found() {
        let names = names(&[("@ann:e.test", Some("Old Name"))]);
        let ann = UserId::parse("@ann:e.test").expect("a user id");
        names.set_display_name(&ann, Some("New Name"));
        assert!(names.find("old").is_empty());
        assert_eq!(names.find("new name").len(), 1);
        names.set_display_name(&ann, None);
        assert!(names.find("name").is_empty());
        assert_eq!(names.find("ann").len(), 1);
    }
}
