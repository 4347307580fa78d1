//! Commands of the server as a whole, in words.

use super::{ActorAndText, Describe};
use logcabin_record::{
    Offset, Record,
    command::{
        AdminReason, AdminUndo, BackupMade, DeliveryAdvance, ImportBegin, ImportEnd, LogCheckpoint,
        LogErase, PolicyApprove, PolicyJudge, PolicySubscribe, PolicyUnsubscribe, ServerIdentity,
        ServerRestore,
    },
};

impl Describe for ServerIdentity {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("is {}, with the signing key {}", self.server_name, self.key_id))
    }
}

impl Describe for ServerRestore {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let undone = self.undone.map_or_else(String::new, |undone| {
            format!(", which went on to record {undone}; what still counts of that follows")
        });
        (who, format!("was restored from its {}, up to record {}{undone}", self.source, self.last))
    }
}

impl Describe for BackupMade {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let removed = match self.removed.len() {
            0 => String::new(),
            count => format!("; {count} older ones were removed"),
        };
        let up_to = self.moment.offset;
        (who, format!("made a backup in {}, up to record {up_to}{removed}", self.destination))
    }
}

impl Describe for LogErase {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, of_erasure(&self))
    }
}

impl Describe for LogCheckpoint {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let root = blake3::Hash::from_bytes(self.root).to_hex();
        (who, format!("signed a checkpoint up to record {}, root {}…", self.upto, &root[..8]))
    }
}

impl Describe for DeliveryAdvance {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let mut told = format!("has told {} of everything up to record {}", self.to, self.done);
        if !self.set_aside.is_empty() {
            told += &format!(" but {} that it does not take", self.set_aside.count);
        }
        let text = match self.under_way {
            Some(on) => {
                format!("{told}, and tells of record {} and before as {}", on.up_to, on.id)
            }
            None => told,
        };
        (who, text)
    }
}

impl Describe for ImportBegin {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { source, version, schema, database, .. } = self;
        let version = if version.is_empty() { version } else { format!(" {version}") };
        let source = source.title();
        (who, format!("began to import from {source}{version}, {database}, schema {schema}"))
    }
}

impl Describe for ImportEnd {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { source, digest, read, left, differing_rooms, rehearsal, .. } = self;
        // The counts are what a record says, whoever wrote it.
        let rows = read.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let left = left.iter().fold(0_u64, |sum, of| sum.saturating_add(of.count));
        let digest = digest.to_string();
        let mut text = format!(
            "completed the import from {}: {rows} row(s) read, digest {}…, {left} left out",
            source.title(),
            &digest[..8]
        );
        if differing_rooms > 0 {
            text += &format!("; the state of {differing_rooms} room(s) differs");
        }
        if rehearsal {
            text += "; it is only for rehearsals";
        }
        (who, text)
    }
}

impl Describe for AdminReason {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("did so because: {}", self.reason))
    }
}

impl Describe for AdminUndo {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("undid record {} so", self.record))
    }
}

impl Describe for PolicySubscribe {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let areas: Vec<_> = self.areas.iter().map(|area| area.name()).collect();
        let mut text = format!("applied the policy list {} to {}", self.room_id, areas.join(", "));
        if !self.except.is_empty() {
            text += &format!(", except {}", self.except.join(", "));
        }
        (who, text)
    }
}

impl Describe for PolicyUnsubscribe {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("stopped applying the policy list {}", self.room_id))
    }
}

impl Describe for PolicyJudge {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let (applied, held) = (self.applied.len(), self.held.len());
        let mut text = format!("looked at new rules of the policy list {}", self.room_id);
        if applied + held > 0 {
            text += &format!(": {applied} hit users or rooms here, {held} wait for approval");
        }
        (who, text)
    }
}

impl Describe for PolicyApprove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let rules: Vec<_> = self.rules.iter().map(|rule| rule.as_str()).collect();
        let text =
            format!("approved rules of the policy list {}: {}", self.room_id, rules.join(", "));
        (who, text)
    }
}

fn of_erasure(body: &LogErase) -> String {
    let reduced = body.reduced.iter().map(|reduced| match reduced.because {
        Offset::ZERO => {
            format!("erased the superseded content of record {}", reduced.offset)
        }
        because => {
            format!("erased the content of record {}, redacted by record {because}", reduced.offset)
        }
    });
    let taken = body.taken.iter().map(|taken| {
        format!("erased records {} to {} for record {}", taken.first, taken.last, taken.because)
    });
    let superseded = body.superseded.iter().map(|(first, last)| match first == last {
        true => format!("erased record {first}, which is superseded"),
        false => format!("erased records {first} to {last}, which are superseded"),
    });
    reduced.chain(superseded).chain(taken).collect::<Vec<_>>().join("; ")
}
