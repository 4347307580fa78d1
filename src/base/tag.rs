//! Marks, in the ids that clients get, of the process that holds something in memory. In a cluster,
//! a request that names such an id is answered by that process, whichever node it reaches.

/// Separates an id from its mark. No id contains it otherwise.
const MARK: char = '~';

/// The mark of a process; none outside a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(Option<u16>);

impl Tag {
    pub const fn of(tag: u16) -> Self {
        Self(Some(tag))
    }

    pub fn mark(self, id: String) -> String {
        match self.0 {
            Some(tag) => format!("{id}{MARK}{tag:04x}"),
            None => id,
        }
    }

    /// A random number with the mark in its upper 16 bits.
    pub fn mark_number(self, random: u64) -> u64 {
        match self.0 {
            Some(tag) => (random >> 16) | (u64::from(tag) << 48),
            None => random,
        }
    }

    /// The mark of an id, if it has one.
    pub fn in_id(id: &str) -> Option<u16> {
        let (_, tag) = id.rsplit_once(MARK)?;
        (tag.len() == 4).then(|| u16::from_str_radix(tag, 16).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_mark_of_its_process() {
        let tag = Tag::of(0xab);
        assert_eq!(tag.mark("id".to_owned()), "id~00ab");
        assert_eq!(Tag::in_id("id~00ab"), Some(0xab));
        assert_eq!(tag.mark_number(u64::MAX) >> 48, 0xab);
        assert_eq!(Tag::default().mark("id".to_owned()), "id");
        for unmarked in ["", "id", "id~", "id~0", "id~00ab0", "id~000g"] {
            assert_eq!(Tag::in_id(unmarked), None, "{unmarked}");
        }
    }
}
