//! A map that mostly has few entries. The first entry of a B-tree takes the memory of eleven, and
//! of the members of a large room, nearly all are in that room only.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, btree_map},
    slice,
};

use serde::{Serialize, Serializer};

/// As many entries are few. To find one among them takes three comparisons.
const FEW: usize = 7;

/// A map in the order of its keys, which is written as a B-tree is.
#[derive(Debug)]
pub(super) enum FewMap<K, V> {
    Few(Vec<(K, V)>),
    Many(BTreeMap<K, V>),
}

impl<K, V> Default for FewMap<K, V> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<K: Ord, V> FewMap<K, V> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match self {
            Self::Few(few) => few.get(place(few, key).ok()?).map(|(_, value)| value),
            Self::Many(many) => many.get(key),
        }
    }

    /// The value of this key, which is added if it is not there.
    pub(super) fn get_or_default<Q: Ord + ToOwned<Owned = K> + ?Sized>(&mut self, key: &Q) -> &mut V
    where
        K: Borrow<Q>,
        V: Default,
    {
        if let Self::Few(few) = self
            && few.len() == FEW
            && place(few, key).is_err()
        {
            *self = Self::Many(std::mem::take(few).into_iter().collect());
        }
        match self {
            Self::Few(few) => {
                let at = place(few, key).unwrap_or_else(|at| {
                    // No more than it takes.
                    few.reserve_exact(1);
                    few.insert(at, (key.to_owned(), V::default()));
                    at
                });
                &mut few[at].1
            }
            Self::Many(many) => many.entry(key.to_owned()).or_default(),
        }
    }

    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        match self {
            Self::Few(few) => Iter::Few(few.iter()),
            Self::Many(many) => Iter::Many(many.iter()),
        }
    }
}

/// Where the key is, or is to be.
fn place<K: Borrow<Q>, V, Q: Ord + ?Sized>(few: &[(K, V)], key: &Q) -> Result<usize, usize> {
    few.binary_search_by(|(other, _)| other.borrow().cmp(key))
}

/// The entries in the order of their keys.
pub(super) enum Iter<'a, K, V> {
    Few(slice::Iter<'a, (K, V)>),
    Many(btree_map::Iter<'a, K, V>),
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Few(few) => few.next().map(|(key, value)| (key, value)),
            Self::Many(many) => many.next(),
        }
    }

    // A map is written with its length.
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Few(few) => few.size_hint(),
            Self::Many(many) => many.size_hint(),
        }
    }
}

impl<K: Ord, V> From<BTreeMap<K, V>> for FewMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        if map.len() > FEW { Self::Many(map) } else { Self::Few(map.into_iter().collect()) }
    }
}

impl<K: Ord + Serialize, V: Serialize> Serialize for FewMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_and_is_written_as_one(
            keys in prop::collection::vec("[a-d]{1,2}", 0..40),
            sought in "[a-d]{1,2}",
        ) {
            let (mut few, mut map) = (FewMap::<String, u32>::default(), BTreeMap::new());
            for key in &keys {
                *few.get_or_default(key.as_str()) += 1;
                *map.entry(key.clone()).or_default() += 1;
            }
            prop_assert_eq!(few.len(), map.len());
            prop_assert_eq!(few.get(sought.as_str()), map.get(&sought));
            prop_assert!(few.iter().eq(map.iter()));
            let bytes = postcard::to_stdvec(&few).unwrap();
            prop_assert_eq!(&bytes, &postcard::to_stdvec(&map).unwrap());
            let again = FewMap::from(map);
            prop_assert!(few.iter().eq(again.iter()));
            prop_assert_eq!(matches!(few, FewMap::Few(_)), matches!(again, FewMap::Few(_)));
        }
    }

    #[test]
    fn a_single_entry_takes_no_more_than_itself() {
        let mut few = FewMap::<String, u64>::default();
        few.get_or_default("a");
        let FewMap::Few(entries) = few else { panic!("one entry is not few") };
        assert_eq!(entries.capacity(), 1);
    }
}
