//! Serde helpers for projections in snapshots, for types that serde or its binary format does not
//! cover.
//!
//! Derived data (an index, a list in another order) is not written but rebuilt. Unordered
//! collections are written ordered by key, so that equal projections have equal bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// For a value behind a lock.
pub(super) mod locked {
    use parking_lot::RwLock;

    use super::*;

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &RwLock<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.read().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<RwLock<T>, D::Error> {
        T::deserialize(deserializer).map(RwLock::new)
    }
}

/// For a map whose values have locks of their own.
pub(super) mod by_key {
    use std::{hash::Hash, sync::Arc};

    use dashmap::DashMap;
    use parking_lot::RwLock;

    use super::*;

    struct Locked<T>(Arc<RwLock<T>>);

    impl<T: Serialize> Serialize for Locked<T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.read().serialize(serializer)
        }
    }

    pub(crate) fn serialize<K, V, S>(
        map: &DashMap<K, Arc<RwLock<V>>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        K: Serialize + Eq + Hash + Ord + Clone,
        V: Serialize,
        S: Serializer,
    {
        let mut entries: Vec<_> =
            map.iter().map(|e| (e.key().clone(), Locked(Arc::clone(e.value())))).collect();
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        serializer.collect_seq(&entries)
    }

    pub(crate) fn deserialize<'de, K, V, D>(
        deserializer: D,
    ) -> Result<DashMap<K, Arc<RwLock<V>>>, D::Error>
    where
        K: Deserialize<'de> + Eq + Hash,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let entries = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(entries.into_iter().map(|(key, value)| (key, Arc::new(RwLock::new(value)))).collect())
    }
}

/// For a concurrent map, ordered by key.
pub(super) mod shared {
    use std::hash::Hash;

    use dashmap::DashMap;

    use super::*;

    pub(crate) fn serialize<K, V, S>(map: &DashMap<K, V>, serializer: S) -> Result<S::Ok, S::Error>
    where
        K: Serialize + Eq + Hash + Ord,
        V: Serialize,
        S: Serializer,
    {
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        serializer.collect_map(entries.iter().map(dashmap::mapref::multiple::RefMulti::pair))
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<DashMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Eq + Hash,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        DashMap::deserialize(deserializer)
    }
}

/// For a hash map, ordered by key.
pub(super) mod sorted {
    use std::{
        collections::HashMap,
        hash::{BuildHasher, Hash},
    };

    use super::*;

    pub(crate) fn serialize<K, V, H, S>(
        map: &HashMap<K, V, H>,
        serializer: S,
    ) -> Result<S::Ok, S::Error>
    where
        K: Serialize + Ord,
        V: Serialize,
        S: Serializer,
    {
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        serializer.collect_map(entries)
    }

    pub(crate) fn deserialize<'de, K, V, H, D>(
        deserializer: D,
    ) -> Result<HashMap<K, V, H>, D::Error>
    where
        K: Deserialize<'de> + Eq + Hash,
        V: Deserialize<'de>,
        H: BuildHasher + Default,
        D: Deserializer<'de>,
    {
        HashMap::deserialize(deserializer)
    }
}

/// For a type that only serializes to JSON, such as the bodies of commands: its JSON text.
pub(super) mod json {
    use super::*;

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(value).map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        serde_json::from_str(&text).map_err(serde::de::Error::custom)
    }
}
