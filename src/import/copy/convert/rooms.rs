//! What belongs to rooms besides their events.

use ruma::{OwnedRoomAliasId, OwnedUserId, ServerName};

use super::{Made, event, ms, own_user, room, user};
use crate::{copy::writer::Left, facts};
use logcabin_record::{
    Stream,
    command::{
        AliasSet, Receipt, ReportCreate, RoomBlock, RoomForget, RoomNetwork, RoomReceipt,
        RoomVisibility,
    },
};

pub(in crate::copy) fn alias(
    fact: &facts::Alias,
    creator: Option<&str>,
    own: &ServerName,
) -> Result<Made, Left> {
    let odd = || ("it is no alias", format!("`{}` is no alias", fact.alias));
    let alias = OwnedRoomAliasId::try_from(&*fact.alias).map_err(|_| odd())?;
    if alias.server_name() != own {
        return Err(("it is an alias of another server", "it is of another server".to_owned()));
    }
    let room_id = room(&fact.room_id)?;
    // Synapse did not always note who made one.
    let creator = fact.creator.as_deref().or(creator);
    let creator: Result<OwnedUserId, Left> = creator
        .map_or_else(|| Err(("nobody made it", "nobody is said to have made it".to_owned())), user);
    let creator = creator?;
    Ok(Made::one(Stream::alias(&alias), AliasSet { alias, room_id, creator }))
}

pub(in crate::copy) fn published(fact: facts::Published) -> Result<Made, Left> {
    let room_id = room(&fact.room_id)?;
    let stream = Stream::room(&room_id);
    Ok(match fact.network {
        None => Made::one(stream, RoomVisibility { room_id, public: true }),
        Some((service, network_id)) => {
            Made::one(stream, RoomNetwork { room_id, service, network_id, listed: true })
        }
    })
}

pub(in crate::copy) fn block(fact: &facts::RoomBlock) -> Result<Made, Left> {
    let room_id = room(&fact.room_id)?;
    let stream = Stream::room(&room_id);
    Ok(Made::one(stream, RoomBlock { room_id, blocked: true, reason: None }))
}

pub(in crate::copy) fn forgotten(fact: &facts::Membership, own: &ServerName) -> Result<Made, Left> {
    let (user_id, room_id) = (own_user(&fact.user_id, own)?, room(&fact.room_id)?);
    let stream = Stream::user(&user_id);
    Ok(Made::one(stream, RoomForget { user_id, room_id }))
}

/// Receipts of one room: the last one counts of each user, type and thread.
pub(in crate::copy) fn receipts(facts: Vec<facts::Receipt>) -> Result<(Made, Vec<Left>), Left> {
    let Some(first) = facts.first() else { return Ok((Made::default(), Vec::new())) };
    let room_id = room(&first.room_id)?;
    let (mut receipts, mut left): (Vec<Receipt>, Vec<Left>) = (Vec::new(), Vec::new());
    for fact in facts {
        match receipt(fact) {
            Ok(receipt) => {
                receipts.retain(|of| {
                    (&of.user_id, &of.receipt_type, &of.thread_id)
                        != (&receipt.user_id, &receipt.receipt_type, &receipt.thread_id)
                });
                receipts.push(receipt);
            }
            Err(reason) => left.push(reason),
        }
    }
    if receipts.is_empty() {
        return Ok((Made::default(), left));
    }
    let stream = Stream::ephemeral(&room_id);
    Ok((Made::one(stream, RoomReceipt { room_id, receipts }), left))
}

fn receipt(fact: facts::Receipt) -> Result<Receipt, Left> {
    if !matches!(&*fact.receipt_type, "m.read" | "m.read.private") {
        let why = format!("`{}` is no type of receipts", fact.receipt_type);
        return Err(("it is of an unknown type", why));
    }
    Ok(Receipt {
        user_id: user(&fact.user_id)?,
        receipt_type: fact.receipt_type,
        event_id: event(&fact.event_id)?,
        thread_id: fact.thread_id,
        ts: ms(fact.ts_ms),
    })
}

pub(in crate::copy) fn report(fact: facts::Report, own: &ServerName) -> Result<Made, Left> {
    let reporter = own_user(&fact.reporter, own)?;
    let score = fact.score.and_then(|score| i8::try_from(score).ok());
    let stream = Stream::user(&reporter);
    let body = ReportCreate {
        reporter,
        room_id: fact.room_id.as_deref().map(room).transpose()?,
        event_id: fact.event_id.as_deref().map(event).transpose()?,
        user_id: fact.user_id.as_deref().map(user).transpose()?,
        reason: fact.reason,
        score: score.filter(|score| (-100..=0).contains(score)),
    };
    Ok(Made::one(stream, body).at(Some(fact.received_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::Command;

    fn fact(user_id: &str, event_id: &str, receipt_type: &str) -> facts::Receipt {
        facts::Receipt {
            room_id: "!r:a.example".to_owned(),
            user_id: user_id.to_owned(),
            receipt_type: receipt_type.to_owned(),
            event_id: event_id.to_owned(),
            thread_id: None,
            ts_ms: 5,
            stream: 1,
        }
    }

    #[test]
    fn one_record_has_the_last_receipt_of_each_user() {
        let (ann, bob) = ("@ann:a.example", "@bob:b.example");
        let facts = vec![
            fact(ann, "$1", "m.read"),
            fact(bob, "$1", "m.read"),
            fact(ann, "$2", "m.read"),
            fact(ann, "$3", "m.read.private"),
            fact(ann, "$3", "org.example.read"),
        ];
        let (made, left) = receipts(facts).unwrap();
        let Command::RoomReceipt(body) = &made.commands[0].1 else { panic!("no receipts") };
        let ids: Vec<_> = body.receipts.iter().map(|of| of.event_id.as_str()).collect();
        assert_eq!((ids, left.len()), (vec!["$1", "$2", "$3"], 1));
    }
}
