//! Delivery positions of outside receivers, such as application services.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{DeliveryAdvance, SetAside, UnderWay},
};

/// The delivery position of every receiver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Deliveries(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<String, (Offset, Position)>>,
);

/// A delivery position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Everything up to here has been delivered or does not concern the receiver.
    pub done: Offset,
    /// The delivery in progress.
    #[serde(with = "serializers::json")]
    pub under_way: Option<UnderWay>,
    /// What never arrives.
    #[serde(with = "serializers::json")]
    pub set_aside: SetAside,
}

impl Deliveries {
    /// The position of `to`; `None` if nothing was ever delivered to it.
    pub fn position(&self, to: &str) -> Option<Position> {
        self.0.read().get(to).map(|(_, position)| position.clone())
    }

    /// Returns the superseded record.
    pub(super) fn advance(&self, offset: Offset, body: DeliveryAdvance) -> Option<Offset> {
        let DeliveryAdvance { to, done, under_way, set_aside } = body;
        let position = Position { done, under_way, set_aside };
        let before = self.0.write().insert(to, (offset, position));
        before.map(|(offset, _)| offset)
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

pub(super) mod former {
    use super::*;

    /// Version 1, in which nothing was set aside.
    #[derive(Deserialize)]
    pub(crate) struct V1(BTreeMap<String, (Offset, Told)>);

    #[derive(Deserialize)]
    struct Told {
        done: Offset,
        #[serde(deserialize_with = "serializers::json::deserialize")]
        under_way: Option<UnderWay>,
    }

    impl From<V1> for Deliveries {
        fn from(V1(all): V1) -> Self {
            let now = |(to, (offset, Told { done, under_way }))| {
                (to, (offset, Position { done, under_way, set_aside: SetAside::default() }))
            };
            Self(RwLock::new(all.into_iter().map(now).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_version_1_are_kept() {
        let under_way = r#"{"id":"5","up_to":8}"#;
        let all = BTreeMap::from([("appservice/irc", (9_u64, (7_u64, under_way)))]);
        let stored = postcard::to_allocvec(&all).unwrap();
        let kept = Deliveries::from(postcard::from_bytes::<former::V1>(&stored).unwrap());
        let under_way = Some(UnderWay { id: "5".to_owned(), up_to: Offset::new(8) });
        let expected = Position { done: Offset::new(7), under_way, ..Position::default() };
        assert_eq!(kept.position("appservice/irc"), Some(expected));
    }
}
