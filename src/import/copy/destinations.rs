//! How far other servers and application services were told.

use std::collections::BTreeSet;

use super::{convert::peers, index::offsets, sections::Sections};
use crate::{
    ImportError,
    facts::{Destination, Key, Origin},
};
use logcabin_base::limits;
use logcabin_record::{
    Command, Offset, Stream,
    command::{PeerReached, Reached},
};

impl Sections<'_, '_> {
    /// Notes how far each other server was told. One that is not named would be told of everything
    /// from the beginning, so all that have ever had a member in a room are named. The messages to
    /// devices there come later: what is up to such a place counts as told.
    pub(super) fn write_destinations(&mut self) -> Result<(), ImportError> {
        let now = self.writer.log.tip().offset;
        let destinations = std::mem::take(&mut self.gather.destinations);
        self.save_index()?;
        let sent: Vec<i64> =
            destinations.iter().map(|(_, of)| of.sent_up_to.unwrap_or_default()).collect();
        let path = self.writer.files.events();
        let found = offsets(&path, &sent).map_err(|source| ImportError::File {
            what: "read",
            path,
            source,
        })?;
        let (mut all, mut named) = (Vec::new(), BTreeSet::new());
        for ((origin, fact), sent) in destinations.into_iter().zip(found) {
            let up_to = if is_behind(&fact) { sent } else { now };
            match peers::reached(&fact, up_to) {
                Ok(reached) => {
                    if named.insert(reached.server_name.clone()) {
                        all.push(reached);
                    }
                }
                Err((reason, why)) => self.writer.leave(&origin, reason, &why)?,
            }
        }
        let own = self.writer.own.clone();
        let mut servers = BTreeSet::new();
        for room in self.writer.known.all.rooms.values() {
            let members = room.state.get("m.room.member").into_iter().flat_map(|of| of.keys());
            let of = members.filter_map(|user_id| user_id.split_once(':')).map(|(_, of)| of);
            for server in of.filter(|of| *of != own.as_str()) {
                if !servers.contains(server) {
                    servers.insert(server.to_owned());
                }
            }
        }
        for server in servers {
            let Ok(server_name) = ruma::OwnedServerName::try_from(server) else { continue };
            if named.insert(server_name.clone()) {
                let set_aside = Default::default();
                all.push(Reached { server_name, up_to: now, failing: None, set_aside });
            }
        }
        let table = Origin { table: "destinations", key: Key::Number(0) };
        // Each name has at most 255 bytes.
        for servers in all.chunks(limits::IMPORT_GROUP_BYTES / 512) {
            let body = Command::from(PeerReached { servers: servers.to_vec() });
            let stream =
                servers.first().map_or_else(Stream::server, |of| Stream::peer(&of.server_name));
            self.writer.put(&table, None, &[(stream, body)])?;
        }
        Ok(())
    }

    pub(super) fn write_services(&mut self) -> Result<(), ImportError> {
        let services = std::mem::take(&mut self.gather.services);
        self.save_index()?;
        let told: Vec<i64> =
            services.iter().map(|(_, of)| of.told_up_to.unwrap_or(i64::MAX)).collect();
        let path = self.writer.files.events();
        let found = offsets(&path, &told).map_err(|source| ImportError::File {
            what: "read",
            path,
            source,
        })?;
        let (now, newest) = (self.writer.log.tip().offset, self.writer.progress.newest);
        let untaken = std::mem::take(&mut self.gather.untaken);
        for ((origin, fact), told) in services.into_iter().zip(found) {
            // One that was told of all events has nothing to do with the receipts after them.
            let is_behind = fact.told_up_to.is_some_and(|up_to| up_to < newest);
            let told = if is_behind { told } else { now };
            let first = untaken.get(&fact.id).map_or(Offset::MAX, |first| first.prev());
            self.made(&origin, Ok(peers::delivery(&fact.id, told.min(first))))?;
        }
        Ok(())
    }

    /// The positions of others are looked up in the file of the index. Rows without durable records
    /// are cut off if the import is interrupted.
    fn save_index(&mut self) -> Result<(), ImportError> {
        let path = self.writer.files.events();
        let saved = self.writer.known.events.save(&path);
        saved.map_err(|source| ImportError::File { what: "write", path, source })
    }
}

/// Whether a server has not been told of everything: it does not answer, or the source was stopped
/// before it had sent the last events.
fn is_behind(fact: &Destination) -> bool {
    let fails = fact.failing_since_ms.is_some_and(|since| since > 0);
    fact.sent_up_to.is_some_and(|sent| fails || fact.newest.is_some_and(|newest| newest > sent))
}
