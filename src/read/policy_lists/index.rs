//! The rules of one kind in a list, found by the name that they match. A name is looked up, not
//! compared with each rule: lists have tens of thousands of rules.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use super::rule::{Entity, Rule};
use logcabin_base::{
    glob::{Glob, Steps, lowercase},
    limits,
};
use logcabin_record::Offset;

/// Rules with the same key, by the records of their events.
type Rules = BTreeMap<Offset, Arc<Rule>>;

/// Patterns with the same key.
type Patterns = BTreeMap<Offset, (Glob, Arc<Rule>)>;

/// Rules by whom they name.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: HashMap<Box<str>, Rules>,
    hashes: HashMap<[u8; 32], Rules>,
    /// Patterns by the text before their first wildcard.
    beginnings: Anchored,
    /// Patterns by the text after their last wildcard.
    ends: Anchored,
    /// Patterns that begin and end with a wildcard, or nearly so: each is compared.
    others: Patterns,
}

/// Patterns by a text with which every match begins, or ends.
#[derive(Debug, Default)]
struct Anchored {
    by_text: HashMap<Box<str>, Patterns>,
    /// How many of these texts have this many bytes.
    lengths: BTreeMap<usize, usize>,
}

/// Where a pattern is found.
enum Anchor<'a> {
    Beginning(&'a str),
    End(&'a str),
    None,
}

/// The longer one of the texts before the first wildcard and after the last one.
fn anchor(pattern: &str) -> Anchor<'_> {
    let (_, shortest) = limits::POLICY_ANCHORED;
    let first = pattern.find(['*', '?']).unwrap_or(pattern.len());
    let last = pattern.rfind(['*', '?']).map_or(0, |at| at + 1);
    let (beginning, end) = (&pattern[..first], &pattern[last..]);
    match (beginning.len(), end.len()) {
        (before, after) if before.max(after) < shortest => Anchor::None,
        (before, after) if before > after => Anchor::Beginning(beginning),
        _ => Anchor::End(end),
    }
}

impl Index {
    /// Adds a rule. Returns whether it can be used: patterns that have to be compared one by one
    /// are limited in number.
    pub(super) fn add(&mut self, rule: &Arc<Rule>) -> bool {
        let (offset, rule) = (rule.offset, Arc::clone(rule));
        match &rule.entity {
            Entity::Name(name) => {
                self.names.entry(name.clone()).or_default().insert(offset, rule);
            }
            Entity::Hash(hash) => {
                self.hashes.entry(*hash).or_default().insert(offset, rule);
            }
            Entity::Glob(pattern) => {
                let Some(glob) = Glob::new(pattern) else { return false };
                let left = match anchor(pattern) {
                    Anchor::Beginning(text) => self.beginnings.add(text, glob, &rule),
                    Anchor::End(text) => self.ends.add(text, glob, &rule),
                    Anchor::None => Some(glob),
                };
                let Some(glob) = left else { return true };
                if self.others.len() >= limits::POLICY_SCANNED {
                    return false;
                }
                self.others.insert(offset, (glob, rule));
            }
        }
        true
    }

    pub(super) fn remove(&mut self, rule: &Rule) {
        match &rule.entity {
            Entity::Name(name) => {
                let Some(rules) = self.names.get_mut(name) else { return };
                rules.remove(&rule.offset);
                if rules.is_empty() {
                    self.names.remove(name);
                }
            }
            Entity::Hash(hash) => {
                let Some(rules) = self.hashes.get_mut(hash) else { return };
                rules.remove(&rule.offset);
                if rules.is_empty() {
                    self.hashes.remove(hash);
                }
            }
            Entity::Glob(pattern) => {
                match anchor(pattern) {
                    Anchor::Beginning(text) => self.beginnings.remove(text, rule.offset),
                    Anchor::End(text) => self.ends.remove(text, rule.offset),
                    Anchor::None => {}
                }
                self.others.remove(&rule.offset);
            }
        }
    }

    /// Calls `found` with each rule that matches a name, until it returns false.
    pub(super) fn each_matching<'i>(
        &'i self,
        name: &str,
        mut found: impl FnMut(&'i Arc<Rule>) -> bool,
    ) {
        let lower = lowercase(name);
        let mut by_name = self.names.get(lower.as_str()).into_iter().flat_map(Rules::values);
        if !by_name.all(&mut found) {
            return;
        }
        if !self.hashes.is_empty() {
            // Hashes are of names as they are written; whoever writes theirs otherwise is found,
            // too.
            let written: [u8; 32] = Sha256::digest(name).into();
            let of_lower: [u8; 32] = Sha256::digest(&lower).into();
            let other = Some(of_lower).filter(|other| *other != written);
            let mut hashed = [Some(written), other].into_iter().flatten();
            let goes_on = hashed.all(|hash| {
                let mut rules = self.hashes.get(&hash).into_iter().flat_map(Rules::values);
                rules.all(&mut found)
            });
            if !goes_on {
                return;
            }
        }
        let prepared = OnceCell::new();
        let is = |glob: &Glob| glob.is_prepared(&lower, &prepared, &mut Steps::default());
        let beginnings = self.beginnings.anchored(|length| lower.get(..length));
        let ends = self.ends.anchored(|length| lower.get(lower.len().checked_sub(length)?..));
        let patterns = beginnings.chain(ends).chain(std::iter::once(&self.others));
        for (glob, rule) in patterns.flat_map(Patterns::values) {
            if is(glob) && !found(rule) {
                return;
            }
        }
    }
}

impl Anchored {
    /// Adds a pattern. Returns it if there are too many with this text.
    fn add(&mut self, text: &str, glob: Glob, rule: &Arc<Rule>) -> Option<Glob> {
        let (most, _) = limits::POLICY_ANCHORED;
        let patterns = self.by_text.entry(text.into()).or_insert_with(|| {
            *self.lengths.entry(text.len()).or_default() += 1;
            Patterns::new()
        });
        if patterns.len() >= most {
            return Some(glob);
        }
        patterns.insert(rule.offset, (glob, Arc::clone(rule)));
        None
    }

    fn remove(&mut self, text: &str, rule: Offset) {
        let Some(patterns) = self.by_text.get_mut(text) else { return };
        patterns.remove(&rule);
        if patterns.is_empty() {
            self.by_text.remove(text);
            if let Some(count) = self.lengths.get_mut(&text.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&text.len());
                }
            }
        }
    }

    /// The patterns whose text is the part of a name that `part` gives for its length.
    fn anchored<'i, 'n>(
        &'i self,
        part: impl Fn(usize) -> Option<&'n str>,
    ) -> impl Iterator<Item = &'i Patterns> {
        let parts = self.lengths.keys().filter_map(move |length| part(*length));
        parts.filter_map(|part| self.by_text.get(part))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy_lists::EntityKind;

    fn matching<'i>(index: &'i Index, name: &str) -> Vec<&'i Arc<Rule>> {
        let mut all = Vec::new();
        index.each_matching(name, |rule| {
            all.push(rule);
            true
        });
        all
    }

    fn rule(offset: u64, name: &str) -> Arc<Rule> {
        let name: Box<str> = name.into();
        let entity =
            if name.contains(['*', '?']) { Entity::Glob(name) } else { Entity::Name(name) };
        let kind = EntityKind::Server;
        let offset = Offset::new(offset);
        Arc::new(Rule { kind, entity, is_takedown: false, offset, since: offset })
    }

    proptest! {
        /// Whatever way a pattern is found, it is found for the names that it matches, and until it
        /// is removed.
        #[test]
        fn a_name_is_found_by_the_patterns_that_match_it(
            patterns in prop::collection::vec("[ab.*?]{1,5}", 1..12),
            name in "[ab.]{0,6}",
            removed in any::<u16>(),
        ) {
            let rules: Vec<_> =
                (1..).zip(&patterns).map(|(number, text)| rule(number, text)).collect();
            let mut index = Index::default();
            for rule in &rules {
                prop_assert!(index.add(rule));
            }
            let is_removed = |at: usize| removed & (1 << at) != 0;
            for (at, rule) in rules.iter().enumerate().filter(|(at, _)| is_removed(*at)) {
                prop_assert!(is_removed(at));
                index.remove(rule);
            }
            let mut found: Vec<_> =
                matching(&index, &name).into_iter().map(|rule| rule.offset.get()).collect();
            found.sort_unstable();
            let expected: Vec<u64> = (0..)
                .zip(&patterns)
                .filter(|(at, text)| {
                    !is_removed(*at) && Glob::new(text).is_some_and(|glob| glob.is(&name))
                })
                .map(|(at, _)| at as u64 + 1)
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_name_is_found_by_its_hash_and_whatever_its_case() {
        let hash = Entity::Hash(Sha256::digest("@eve:evil.example").into());
        let kind = EntityKind::User;
        let hashed = Arc::new(Rule {
            kind,
            entity: hash,
            is_takedown: true,
            offset: Offset::new(1),
            since: Offset::new(1),
        });
        let mut index = Index::default();
        assert!(index.add(&hashed) && index.add(&rule(2, "@eve:evil.example")));
        assert_eq!(matching(&index, "@eve:evil.example").len(), 2);
        assert_eq!(matching(&index, "@EVE:evil.example").len(), 2);
        index.remove(&hashed);
        assert_eq!(matching(&index, "@eve:evil.example").len(), 1);
        assert!(matching(&index, "@ann:evil.example").is_empty());
    }

    #[test]
    fn a_long_list_is_not_walked() {
        let mut index = Index::default();
        for number in 0..100_000_u64 {
            let text = match number % 4 {
                0 => format!("host{number}.example"),
                1 => format!("*.host{number}.example"),
                2 => format!("host{number}.*"),
                _ => format!("a?host{number}*.b{number}.example"),
            };
            assert!(index.add(&rule(number + 1, &text)));
        }
        let (names, anchored) = (index.names.len(), index.ends.by_text.len());
        assert!(names == 25_000 && anchored >= 25_000 && index.others.is_empty());
        assert_eq!(candidates(&index, "x.host5.example"), 1);
        assert_eq!(matching(&index, "x.host5.example").len(), 1);
        assert_eq!(matching(&index, "axhost7z.b7.example").len(), 1);
        assert!(matching(&index, "host1.example").is_empty());
    }

    /// With how many patterns a name is compared.
    fn candidates(index: &Index, name: &str) -> usize {
        let beginnings = index.beginnings.anchored(|length| name.get(..length));
        let ends = index.ends.anchored(|length| name.get(name.len().checked_sub(length)?..));
        beginnings.chain(ends).map(BTreeMap::len).sum::<usize>() + index.others.len()
    }

    #[test]
    fn patterns_that_would_be_compared_with_every_name_are_limited() {
        for pattern in ["*NUMBER*", "*NUMBER*m", "x*NUMBER*y", "*NUMBER*.example"] {
            let mut index = Index::default();
            let usable = (0..2000_u64).filter(|number| {
                index.add(&rule(number + 1, &pattern.replace("NUMBER", &number.to_string())))
            });
            let usable = usable.count();
            let (most, _) = limits::POLICY_ANCHORED;
            assert!(usable <= limits::POLICY_SCANNED + most, "{pattern}: {usable}");
            assert!(candidates(&index, "x7.example") <= usable, "{pattern}");
            for number in 0..2000_u64 {
                index.remove(&rule(number + 1, &pattern.replace("NUMBER", &number.to_string())));
            }
            assert_eq!(candidates(&index, "x7.example"), 0);
            assert!(index.add(&rule(1, "*x*")));
        }
    }
}
