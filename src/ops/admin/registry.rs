//! The acts that the admin socket takes.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    act::{Act, Order, Outcome},
    cluster::ClusterStatus,
    erasures::{ListErasures, ShowErasure},
    media::{DeleteMedia, ListMedia, MediaStatistics, ProtectMedia, QuarantineMedia},
    notices::SendNotice,
    office::{ActError, Office},
    proofs::Prove,
    reports::{ListReports, RemoveReport, ShowReport},
    rooms::{BlockRoom, JoinRoom, ListRooms, MakeRoomAdmin, PurgeRoom, ShowRoom, ShutDownRoom},
    snapshots::{CompareSnapshots, NoteBackup, SnapshotStatus, WriteSnapshot},
    tokens::{
        CreateRegistrationToken, DeleteRegistrationToken, ListRegistrationTokens,
        UpdateRegistrationToken,
    },
    users::{
        CreateUser, Deactivate, EraseUser, ImportUser, ListUsers, LogInAs, LogOut, RenameDevice,
        ResetPassword, SetProfile, SetStatus, ShowUser,
    },
};
use crate::{
    ops::socket::{Client, SocketError},
    record::Origin,
};

/// An order as the socket carries it.
#[derive(Serialize, Deserialize)]
struct Message {
    name: String,
    act: Box<RawValue>,
    reason: Option<String>,
    dry_run: bool,
}

/// Carries out a message. Returns the JSON of the outcome.
type Handler = for<'a> fn(Message, &'a Office, Origin) -> BoxFuture<'a, Result<String, ActError>>;

macro_rules! handlers {
    ($($act:ty),* $(,)?) => { &[$((<$act>::NAME, handle::<$act>)),*] };
}

const HANDLERS: &[(&str, Handler)] = handlers![
    BlockRoom,
    ClusterStatus,
    CompareSnapshots,
    CreateRegistrationToken,
    CreateUser,
    Deactivate,
    DeleteMedia,
    DeleteRegistrationToken,
    EraseUser,
    ImportUser,
    JoinRoom,
    ListErasures,
    ListMedia,
    ListRegistrationTokens,
    ListReports,
    ListRooms,
    ListUsers,
    LogInAs,
    LogOut,
    MakeRoomAdmin,
    MediaStatistics,
    NoteBackup,
    ProtectMedia,
    Prove,
    PurgeRoom,
    QuarantineMedia,
    RemoveReport,
    RenameDevice,
    ResetPassword,
    SendNotice,
    SetProfile,
    SetStatus,
    ShowErasure,
    ShowReport,
    ShowRoom,
    ShowUser,
    ShutDownRoom,
    SnapshotStatus,
    UpdateRegistrationToken,
    WriteSnapshot,
];

fn handle<A: Act>(
    message: Message,
    office: &Office,
    origin: Origin,
) -> BoxFuture<'_, Result<String, ActError>> {
    Box::pin(async move {
        let Message { act, reason, dry_run, .. } = message;
        let act: A = serde_json::from_str(act.get()).map_err(not_an_act)?;
        let outcome = Order { act, reason, dry_run }.carry_out(office, origin).await?;
        serde_json::to_string(&outcome).map_err(ActError::invalid)
    })
}

/// The error does not quote the message, which may contain a password.
fn not_an_act(error: serde_json::Error) -> ActError {
    ActError::Invalid(format!("this is not an act: {error}"))
}

/// Carries out the order in a request of the socket. Returns the JSON of the outcome.
pub(super) async fn answer(
    json: &str,
    office: &Office,
    origin: Origin,
) -> Result<String, ActError> {
    let message: Message = serde_json::from_str(json).map_err(not_an_act)?;
    let handler = HANDLERS.iter().find(|(name, _)| *name == message.name);
    let (_, handler) =
        handler.ok_or_else(|| ActError::invalid("this version has no act of this name"))?;
    handler(message, office, origin).await
}

impl<A: Act> Order<A> {
    /// Has a running server carry out the order.
    ///
    /// # Errors
    /// If the server refuses: then it was not done. If the connection fails: then it may have been.
    pub(crate) fn send(&self, server: &mut Client) -> Result<Outcome<A::Done>, SocketError> {
        let Self { act, reason, dry_run } = self;
        let unwritable = |_| SocketError::Protocol("an act cannot be written");
        let act = serde_json::value::to_raw_value(act).map_err(unwritable)?;
        let message =
            Message { name: A::NAME.to_owned(), act, reason: reason.clone(), dry_run: *dry_run };
        let json = serde_json::to_string(&message).map_err(unwritable)?;
        serde_json::from_slice(&server.act(json)?)
            .map_err(|_| SocketError::Protocol("it does not say what was done"))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn every_act_has_a_handler_under_a_name_of_its_own() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/admin");
        let names: BTreeSet<_> = HANDLERS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), HANDLERS.len());
        assert_eq!(acts_in(&folder), HANDLERS.len());
    }

    fn acts_in(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).expect("the sources are there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let acts = paths.map(|path| match path.is_dir() {
            true => acts_in(&path),
            false => {
                let source = fs::read_to_string(&path).expect("a source file");
                source.lines().filter(|line| line.starts_with("impl Act for ")).count()
            }
        });
        acts.sum()
    }
}
