//! Operators' orders about unreachable homeservers. They are records, so they reach whichever node
//! delivers.

use ruma::ServerName;

use super::Sender;
use logcabin_record::{Command, Offset, Record};

impl Sender {
    /// Carries out an operator's recorded order.
    pub(super) fn heed(&self, record: &Record) {
        // The server's own records, and imported ones, are no orders.
        let origin = &record.header.origin;
        if origin.user.is_empty() || origin.import().is_some() {
            return;
        }
        let Ok(Some(Command::PeerReached(body))) = record.command() else { return };
        let mut all = self.destinations.lock();
        for reached in body.servers {
            let Some(destination) = all.get_mut(&reached.server_name) else { continue };
            if reached.failing.is_none() {
                destination.give_up(reached.up_to);
            }
            destination.back.notify_one();
        }
    }

    /// Whether some of these records for a homeserver were dropped.
    pub(super) fn is_reset(&self, server: &ServerName, offsets: &[Offset]) -> bool {
        let all = self.destinations.lock();
        all.get(server).is_some_and(|destination| destination.has_given_up(offsets))
    }
}
