//! How far those outside who are told of the log, application services among them, have been told.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::Serialize;

use crate::record::{
    Offset,
    command::{DeliveryAdvance, UnderWay},
};

/// How far everyone who is told has been told.
#[derive(Debug, Default)]
pub struct Deliveries(RwLock<BTreeMap<String, (Offset, Position)>>);

/// How far one has been told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Everything up to here has arrived, or is nothing to the receiver.
    pub done: Offset,
    /// What is on its way.
    #[serde(serialize_with = "every_field")]
    pub under_way: Option<UnderWay>,
}

/// With the fields that the log's JSON leaves out named, too.
fn every_field<S: serde::Serializer>(
    under_way: &Option<UnderWay>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    under_way.as_ref().map(|under_way| (&under_way.id, under_way.up_to)).serialize(serializer)
}

impl Deliveries {
    /// How far `to` has been told; `None` for one who never was.
    #[must_use]
    pub fn position(&self, to: &str) -> Option<Position> {
        self.0.read().get(to).map(|(_, position)| position.clone())
    }

    /// Gives the record that said so before.
    pub(super) fn advance(&self, offset: Offset, body: DeliveryAdvance) -> Option<Offset> {
        let DeliveryAdvance { to, done, under_way } = body;
        let before = self.0.write().insert(to, (offset, Position { done, under_way }));
        before.map(|(offset, _)| offset)
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
