//! States of a room that share their common parts.
//!
//! A state maps the number of each key to the record that holds it. Changing one key copies a few
//! nodes, so thousands of states of a large room, each slightly different, take little more memory
//! than one of them. What differs between two states is found without looking at what they share.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, LazyLock},
};

/// How many children a node has: the lower, the less a change copies; the higher, the fewer levels.
const WIDTH: usize = 16;
const BITS: u32 = WIDTH.trailing_zeros();

/// A state: the record that holds each key, by the key's number.
#[derive(Clone, Debug, Default)]
pub struct StateTree {
    root: Option<Arc<Node>>,
    /// How many levels are above the leaves.
    levels: u32,
    len: usize,
    hash: u128,
}

#[derive(Clone, Debug)]
enum Node {
    Inner([Option<Arc<Self>>; WIDTH]),
    /// 0 is no record.
    Leaf([u64; WIDTH]),
}

impl Node {
    const fn empty(level: u32) -> Self {
        if level == 0 { Self::Leaf([0; WIDTH]) } else { Self::Inner([const { None }; WIDTH]) }
    }
}

/// Secret, so that nobody can look for states with the same hash.
static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

/// The part of one entry in the hash of a state.
fn part(key: u32, record: u64) -> u128 {
    if record == 0 {
        return 0;
    }
    let [high, low] = &*HASHERS;
    u128::from(high.hash_one((key, record))) << 64 | u128::from(low.hash_one((key, record)))
}

impl StateTree {
    /// Distinguishes this state from others within this process. It is the sum of a hash for each
    /// entry, and therefore cheap to keep up to date.
    pub const fn hash(&self) -> u128 {
        self.hash
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The record that holds a key; 0 if there is none.
    pub fn get(&self, key: u32) -> u64 {
        if u64::from(key) >> (BITS * (self.levels + 1)) != 0 {
            return 0;
        }
        let (mut level, mut node) = (self.levels, self.root.as_deref());
        loop {
            match node {
                None => return 0,
                Some(Node::Leaf(records)) => return records[at(key, 0)],
                Some(Node::Inner(children)) => {
                    node = children[at(key, level)].as_deref();
                    level = level.saturating_sub(1);
                }
            }
        }
    }

    /// Sets the record that holds a key; 0 removes it.
    pub fn set(&mut self, key: u32, record: u64) {
        let old = self.get(key);
        if old == record {
            return;
        }
        while u64::from(key) >> (BITS * (self.levels + 1)) != 0 {
            self.raise();
        }
        let (mut level, mut node) = (self.levels, &mut self.root);
        loop {
            match Arc::make_mut(node.get_or_insert_with(|| Arc::new(Node::empty(level)))) {
                Node::Leaf(records) => {
                    records[at(key, 0)] = record;
                    break;
                }
                Node::Inner(children) => {
                    node = &mut children[at(key, level)];
                    level = level.saturating_sub(1);
                }
            }
        }
        self.hash = self.hash.wrapping_sub(part(key, old)).wrapping_add(part(key, record));
        self.len = self.len + usize::from(record != 0) - usize::from(old != 0);
    }

    /// Adds a level at the top.
    fn raise(&mut self) {
        self.levels += 1;
        if let Some(root) = self.root.take() {
            let mut children = [const { None }; WIDTH];
            children[0] = Some(root);
            self.root = Some(Arc::new(Node::Inner(children)));
        }
    }

    /// Calls `each` with each key that two states hold differently, and the two records, in the
    /// order of the keys' numbers. Returns how many nodes were examined.
    pub fn differences(&self, other: &Self, mut each: impl FnMut(u32, u64, u64)) -> usize {
        let (mut one, mut two) = (self.clone(), other.clone());
        while one.levels < two.levels {
            one.raise();
        }
        while two.levels < one.levels {
            two.raise();
        }
        let mut looked = 0;
        compare(one.root.as_ref(), two.root.as_ref(), one.levels, 0, &mut looked, &mut each);
        looked
    }

    /// All keys that are held, each with its record, in the order of the keys' numbers.
    pub fn entries(&self) -> Vec<(u32, u64)> {
        let mut all = Vec::with_capacity(self.len);
        self.differences(&Self::default(), |key, record, _| all.push((key, record)));
        all
    }
}

/// Two states are the same if they have the same hash.
impl PartialEq for StateTree {
    fn eq(&self, other: &Self) -> bool {
        (self.hash, self.len) == (other.hash, other.len)
    }
}

impl Eq for StateTree {}

const fn at(key: u32, level: u32) -> usize {
    (key >> (BITS * level)) as usize % WIDTH
}

fn compare(
    one: Option<&Arc<Node>>,
    two: Option<&Arc<Node>>,
    level: u32,
    first: u32,
    looked: &mut usize,
    each: &mut impl FnMut(u32, u64, u64),
) {
    match (one, two) {
        (None, None) => return,
        (Some(one), Some(two)) if Arc::ptr_eq(one, two) => return,
        _ => {}
    }
    *looked += 1;
    if level == 0 {
        let records = |node: Option<&Arc<Node>>| match node.map(|node| &**node) {
            Some(Node::Leaf(records)) => *records,
            _ => [0; WIDTH],
        };
        let pairs = records(one).into_iter().zip(records(two));
        for ((one, two), key) in pairs.zip(first..) {
            if one != two {
                each(key, one, two);
            }
        }
        return;
    }
    let child = |node: Option<&Arc<Node>>, index: usize| match node.map(|node| &**node) {
        Some(Node::Inner(children)) => children[index].clone(),
        _ => None,
    };
    for (index, number) in (0..WIDTH).zip(0_u32..) {
        let first = first | number << (BITS * level);
        let (one, two) = (child(one, index), child(two, index));
        compare(one.as_ref(), two.as_ref(), level - 1, first, looked, each);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn made(entries: &[(u32, u64)]) -> (StateTree, BTreeMap<u32, u64>) {
        let (mut tree, mut map) = (StateTree::default(), BTreeMap::new());
        for (key, record) in entries {
            tree.set(*key, *record);
            map.insert(*key, *record);
        }
        map.retain(|_, record| *record != 0);
        (tree, map)
    }

    proptest! {
        #[test]
        fn a_tree_is_a_map_and_knows_how_it_differs_from_another(
            one in proptest::collection::vec((0..5000_u32, 0..4_u64), 0..80),
            more in proptest::collection::vec((0..5000_u32, 0..4_u64), 0..20),
        ) {
            let (tree, map) = made(&one);
            prop_assert_eq!(tree.entries(), map.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(tree.len(), map.len());
            let (mut other, mut other_map) = (tree.clone(), map.clone());
            for (key, record) in &more {
                other.set(*key, *record);
                other_map.insert(*key, *record);
            }
            other_map.retain(|_, record| *record != 0);
            let mut found = Vec::new();
            tree.differences(&other, |key, one, two| found.push((key, one, two)));
            let of = |map: &BTreeMap<u32, u64>, key| map.get(&key).copied().unwrap_or(0);
            let all = (0..5000).map(|key| (key, of(&map, key), of(&other_map, key)));
            prop_assert_eq!(&found, &all.filter(|(_, one, two)| one != two).collect::<Vec<_>>());
            prop_assert_eq!(found.is_empty(), tree == other);
            let again = made(&other_map.into_iter().collect::<Vec<_>>()).0;
            prop_assert_eq!(again.hash(), other.hash());
        }
    }

    #[test]
    fn a_change_of_a_large_state_is_found_without_looking_at_all_of_it() {
        let (tree, _) = made(&(0..50_000).map(|key| (key, 7)).collect::<Vec<_>>());
        let mut other = tree.clone();
        other.set(33_333, 8);
        let looked = tree.differences(&other, |key, one, two| {
            assert_eq!((key, one, two), (33_333, 7, 8));
        });
        assert!(looked < 10, "{looked}");
    }
}
