//! How far those outside who are told of the log, application services among them, have been told.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{
    Offset,
    command::{DeliveryAdvance, UnderWay},
};

/// How far everyone who is told has been told.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Deliveries(#[serde(with = "kept::locked")] RwLock<BTreeMap<String, (Offset, Position)>>);

/// How far one has been told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Everything up to here has arrived, or is nothing to the receiver.
    pub done: Offset,
    /// What is on its way.
    #[serde(with = "kept::json")]
    pub under_way: Option<UnderWay>,
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
