//! The Merkle tree over the headers of a log, as in RFC 9162 (section 2.1), with BLAKE3 as its
//! hash.
//!
//! Leaf number `i`, from 0, is the header of the record with offset `i + 1`. Headers contain the
//! hashes of the payloads, so erasing a payload changes no root.

use serde::{Deserialize, Serialize};

pub type Hash = [u8; 32];

/// Prefixes of what is hashed for a leaf and for a node, so that neither can pass for the other.
const LEAF: u8 = 0;
const NODE: u8 = 1;

/// The hash of a leaf: of a record's encoded header.
pub fn leaf(encoded_header: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[LEAF]).update(encoded_header);
    *hasher.finalize().as_bytes()
}

/// The hash of a node with these children.
pub fn node(left: &Hash, right: &Hash) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[NODE]).update(left).update(right);
    *hasher.finalize().as_bytes()
}

/// The root of the tree without a leaf.
pub fn empty() -> Hash {
    *blake3::hash(&[]).as_bytes()
}

/// All that is needed to add leaves to a tree and to compute its root: the roots of the perfect
/// subtrees that it consists of, the largest first. There are as many as the size has bits set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frontier {
    size: u64,
    roots: Vec<Hash>,
}

impl Frontier {
    /// How many leaves there are.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf. Calls `complete` with the root of each perfect subtree that the leaf completes,
    /// and the logarithm of the subtree's size.
    pub fn push(&mut self, leaf: Hash, mut complete: impl FnMut(u32, &Hash)) {
        let (mut hash, mut level) = (leaf, 0);
        complete(level, &hash);
        while self.size >> level & 1 == 1
            && let Some(left) = self.roots.pop()
        {
            hash = node(&left, &hash);
            level += 1;
            complete(level, &hash);
        }
        self.roots.push(hash);
        self.size += 1;
    }

    pub fn root(&self) -> Hash {
        let folded = self.roots.iter().rev().copied().reduce(|right, left| node(&left, &right));
        folded.unwrap_or_else(empty)
    }
}

/// The largest power of two that is less than `size`, which is at least 2: the number of leaves on
/// the left.
pub fn split(size: u64) -> u64 {
    1 << (u64::BITS - 1 - (size - 1).leading_zeros())
}

/// The proof that leaf `index` is in the tree of `size` leaves: the sibling hashes from the leaf up
/// to the root. `subtree` returns the root over the leaves from its first argument up to, but not
/// including, its second. Empty if the tree has no such leaf.
pub fn inclusion<E>(
    index: u64,
    size: u64,
    mut subtree: impl FnMut(u64, u64) -> Result<Hash, E>,
) -> Result<Vec<Hash>, E> {
    let (mut from, mut to) = (0, size);
    let mut path = Vec::new();
    if index >= size {
        return Ok(path);
    }
    while to - from > 1 {
        let middle = from + split(to - from);
        if index < middle {
            path.push(subtree(middle, to)?);
            to = middle;
        } else {
            path.push(subtree(from, middle)?);
            from = middle;
        }
    }
    path.reverse();
    Ok(path)
}

/// The proof that the tree of `first` leaves is a prefix of the tree of `second` leaves. Empty if
/// either is empty, if they are equal, or if the first is the larger.
///
/// # Errors
/// Those of `subtree`, which is as for [`inclusion`].
pub fn consistency<E>(
    first: u64,
    second: u64,
    mut subtree: impl FnMut(u64, u64) -> Result<Hash, E>,
) -> Result<Vec<Hash>, E> {
    let mut path = Vec::new();
    if first == 0 || first >= second {
        return Ok(path);
    }
    let (mut from, mut to) = (0, second);
    // Down to the node where the first tree ends with a subtree of the second.
    while first < to {
        let middle = from + split(to - from);
        if first <= middle {
            path.push(subtree(middle, to)?);
            to = middle;
        } else {
            path.push(subtree(from, middle)?);
            from = middle;
        }
    }
    // If that subtree is the whole first tree, the verifier knows its root already.
    if from > 0 {
        path.push(subtree(from, to)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether `path` proves that `leaf` is number `index` in the tree of `size` leaves with this root.
#[must_use]
pub fn includes(index: u64, leaf: Hash, size: u64, root: &Hash, path: &[Hash]) -> bool {
    if index >= size {
        return false;
    }
    lead(leaf, path, index, size - 1).is_some_and(|(_, found)| found == *root)
}

/// Whether `path` proves that the tree of `first` leaves with the root `first_root` is a prefix of
/// the tree of `second` leaves with the root `second_root`.
#[cfg(test)]
fn extends(first: u64, first_root: &Hash, second: u64, second_root: &Hash, path: &[Hash]) -> bool {
    if first == 0 || first > second {
        return false;
    }
    if first == second {
        return path.is_empty() && first_root == second_root;
    }
    let (mut at, mut last) = (first - 1, second - 1);
    while at & 1 == 1 {
        (at, last) = (at >> 1, last >> 1);
    }
    let begin = if first.is_power_of_two() { Some((first_root, path)) } else { path.split_first() };
    let Some((begin, path)) = begin else { return false };
    lead(*begin, path, at, last).is_some_and(|found| found == (*first_root, *second_root))
}

/// The roots that `path` leads to from node `at` of a level whose last node is `last`: of the tree
/// that ends with that node, and of the whole tree. `None` if the length of `path` does not fit.
fn lead(begin: Hash, path: &[Hash], mut at: u64, mut last: u64) -> Option<(Hash, Hash)> {
    let (mut old, mut new) = (begin, begin);
    for beside in path {
        if last == 0 {
            return None;
        }
        if at & 1 == 1 || at == last {
            (old, new) = (node(beside, &old), node(beside, &new));
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            new = node(&new, beside);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    (last == 0).then_some((old, new))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leaves(count: u64, seed: u64) -> Vec<Hash> {
        (0..count).map(|number| leaf(format!("{seed}/{number}").as_bytes())).collect()
    }

    /// The definition.
    fn root(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => empty(),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(split(leaves.len() as u64) as usize);
                node(&root(left), &root(right))
            }
        }
    }

    fn frontier(leaves: &[Hash]) -> Frontier {
        let mut frontier = Frontier::default();
        leaves.iter().for_each(|leaf| frontier.push(*leaf, |_, _| ()));
        frontier
    }

    fn subtree(leaves: &[Hash]) -> impl FnMut(u64, u64) -> Result<Hash, ()> {
        |from, to| Ok(root(&leaves[from as usize..to as usize]))
    }

    #[test]
    fn a_frontier_has_the_root_of_the_definition() {
        let leaves = leaves(70, 0);
        for size in 0..=leaves.len() {
            let mut complete = Vec::new();
            let mut frontier = Frontier::default();
            for (index, leaf) in leaves[..size].iter().enumerate() {
                frontier.push(*leaf, |level, hash| complete.push((index, level, *hash)));
            }
            assert_eq!((frontier.size(), frontier.root()), (size as u64, root(&leaves[..size])));
            for (index, level, hash) in complete {
                let from = index + 1 - (1 << level);
                assert_eq!(hash, root(&leaves[from..=index]), "{from} to {index}");
            }
        }
    }

    #[test]
    fn inclusion_proofs_hold_for_every_leaf_and_no_other() {
        let leaves = leaves(40, 1);
        for size in 1..=40 {
            let root = root(&leaves[..size as usize]);
            for index in 0..size {
                let path = inclusion(index, size, subtree(&leaves)).unwrap();
                let leaf = leaves[index as usize];
                assert!(includes(index, leaf, size, &root, &path), "{index} of {size}");
                for other in (0..=size).filter(|other| *other != index) {
                    let of_other = leaves.get(other as usize).copied().unwrap_or_default();
                    assert!(!includes(index, of_other, size, &root, &path), "{other} for {index}");
                    assert!(!includes(other, leaf, size, &root, &path), "{index} as {other}");
                }
            }
        }
    }

    #[test]
    fn consistency_proofs_hold_for_every_later_tree_and_no_other() {
        let (leaves, others) = (leaves(40, 2), leaves(40, 3));
        for second in 1..=40_u64 {
            let now = root(&leaves[..second as usize]);
            for first in 1..=second {
                let path = consistency(first, second, subtree(&leaves)).unwrap();
                let then = root(&leaves[..first as usize]);
                assert!(extends(first, &then, second, &now, &path), "{first} to {second}");
                let changed = root(&others[..first as usize]);
                assert!(!extends(first, &changed, second, &now, &path));
                assert!(!extends(second + 1, &now, second, &now, &path));
                if first > 1 {
                    assert!(!extends(first - 1, &then, second, &now, &path));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_path_with_any_bit_changed_proves_nothing(
            size in 2_u64..2000,
            (a, b) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            (at, bit) in (any::<prop::sample::Index>(), 0..256_usize),
            how in 0..3,
        ) {
            let leaves = leaves(size, 4);
            let now = frontier(&leaves).root();
            let changed = |path: &[Hash]| {
                let mut path = path.to_vec();
                match how {
                    0 if !path.is_empty() => {
                        let at = at.index(path.len());
                        path[at][bit / 8] ^= 1 << (bit % 8);
                    }
                    1 if !path.is_empty() => drop(path.remove(at.index(path.len()))),
                    _ => path.insert(at.index(path.len() + 1), leaves[0]),
                }
                path
            };
            let index = a.index(size as usize) as u64;
            let path = inclusion(index, size, subtree(&leaves)).unwrap();
            let leaf = leaves[index as usize];
            prop_assert!(includes(index, leaf, size, &now, &path));
            prop_assert!(!includes(index, leaf, size, &now, &changed(&path)));
            let first = b.index(size as usize - 1) as u64 + 1;
            let then = frontier(&leaves[..first as usize]).root();
            let path = consistency(first, size, subtree(&leaves)).unwrap();
            prop_assert!(extends(first, &then, size, &now, &path));
            prop_assert!(!extends(first, &then, size, &now, &changed(&path)));
        }
    }
}
