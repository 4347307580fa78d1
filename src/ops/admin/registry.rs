//! The acts that the admin socket takes.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{
    act::{Act, Order, Outcome},
    cluster::ClusterStatus,
    console::MakeConsoleLink,
    context::{ActContext, ActError},
    doctor::{Examine, ShowStatus},
    erasures::{ListErasures, ShowErasure},
    federation::{
        ListDestinations, ListRefusedEvents, NewKey, ResetDestination, RetryDestination,
        ShowDestination,
    },
    form::Form,
    media::{
        DeleteMedia, ListMedia, MediaStatistics, ProtectMedia, PurgeRemoteMedia, QuarantineMedia,
    },
    notices::SendNotice,
    policies::{
        ApprovePolicyRules, ListKeptAway, ListPolicyLists, SimulatePolicies, SubscribePolicyList,
        TestPolicy, UnsubscribePolicyList,
    },
    proofs::{ListCheckpoints, Prove},
    reports::{ListReports, RemoveReport, RemoveReports, ShowReport},
    rooms::{
        BlockRoom, JoinRoom, ListRooms, MakeRoomAdmin, PurgeHistory, PurgeRoom, RedactEvent,
        ShowRoom, ShutDownRoom, UpgradeRoom,
    },
    snapshots::{
        CompareSnapshots, ListBackups, ListSnapshots, NoteBackup, SnapshotStatus, WriteSnapshot,
    },
    tokens::{
        CreateRegistrationToken, DeleteRegistrationToken, ListRegistrationTokens,
        UpdateRegistrationToken,
    },
    undo::Undo,
    users::{
        ApproveUsers, ChangeMember, CleanUp, CreateDevice, CreateUser, Deactivate, EraseUser,
        ImportUser, ListUsers, ListWaiting, LogInAs, LogOut, PermitReset, RedactUser, RefuseUsers,
        RejectInvites, RenameDevice, ResetPassword, SetProfile, SetStatus, ShowUser,
    },
    work::ListWork,
};
use crate::socket::{Client, SocketError};
use logcabin_record::Origin;

/// An order as the socket carries it.
#[derive(Serialize, Deserialize)]
pub(super) struct Message {
    name: String,
    act: Box<RawValue>,
    reason: Option<String>,
    dry_run: bool,
}

impl Message {
    pub(super) fn of<A: Act>(order: &Order<A>) -> Result<Self, serde_json::Error> {
        let Order { act, reason, dry_run } = order;
        let act = serde_json::value::to_raw_value(act)?;
        Ok(Self { name: A::NAME.to_owned(), act, reason: reason.clone(), dry_run: *dry_run })
    }

    /// Returns the JSON of the outcome.
    pub(super) async fn carry_out(
        self,
        context: &ActContext,
        origin: Origin,
    ) -> Result<String, ActError> {
        let known = known(&self.name)
            .ok_or_else(|| ActError::invalid("this version has no act of this name"))?;
        (known.handle)(self, context, origin).await
    }
}

/// Carries out a message. Returns the JSON of the outcome.
type Handler =
    for<'a> fn(Message, &'a ActContext, Origin) -> BoxFuture<'a, Result<String, ActError>>;

/// An act, as the socket and the forms know it.
struct KnownAct {
    name: &'static str,
    handle: Handler,
    form: Option<&'static Form>,
    /// The first member of an act's JSON that the act does not have.
    unknown: fn(&Value) -> Option<String>,
    #[cfg(test)]
    reads: fn(&str) -> Result<(), serde_json::Error>,
}

macro_rules! handlers {
    ($($act:ty),* $(,)?) => {
        &[$(KnownAct {
            name: <$act>::NAME,
            handle: handle::<$act>,
            form: <$act>::FORM,
            unknown: unknown::<$act>,
            #[cfg(test)]
            reads: |json| serde_json::from_str::<$act>(json).map(drop),
        }),*]
    };
}

const HANDLERS: &[KnownAct] = handlers![
    ApprovePolicyRules,
    ApproveUsers,
    BlockRoom,
    ChangeMember,
    CleanUp,
    ClusterStatus,
    CompareSnapshots,
    CreateDevice,
    CreateRegistrationToken,
    CreateUser,
    Deactivate,
    DeleteMedia,
    DeleteRegistrationToken,
    EraseUser,
    Examine,
    ImportUser,
    JoinRoom,
    ListBackups,
    ListCheckpoints,
    ListDestinations,
    ListErasures,
    ListKeptAway,
    ListMedia,
    ListPolicyLists,
    ListRefusedEvents,
    ListRegistrationTokens,
    ListReports,
    ListRooms,
    ListSnapshots,
    ListUsers,
    ListWaiting,
    ListWork,
    LogInAs,
    LogOut,
    MakeConsoleLink,
    MakeRoomAdmin,
    MediaStatistics,
    NewKey,
    NoteBackup,
    PermitReset,
    ProtectMedia,
    Prove,
    PurgeHistory,
    PurgeRemoteMedia,
    PurgeRoom,
    QuarantineMedia,
    RedactEvent,
    RedactUser,
    RefuseUsers,
    RejectInvites,
    RemoveReport,
    RemoveReports,
    RenameDevice,
    ResetDestination,
    ResetPassword,
    RetryDestination,
    SendNotice,
    SetProfile,
    SetStatus,
    ShowDestination,
    ShowErasure,
    ShowReport,
    ShowRoom,
    ShowStatus,
    ShowUser,
    ShutDownRoom,
    SimulatePolicies,
    SnapshotStatus,
    SubscribePolicyList,
    TestPolicy,
    Undo,
    UnsubscribePolicyList,
    UpdateRegistrationToken,
    UpgradeRoom,
    WriteSnapshot,
];

fn known(name: &str) -> Option<&'static KnownAct> {
    HANDLERS.iter().find(|known| known.name == name)
}

fn handle<A: Act>(
    message: Message,
    context: &ActContext,
    origin: Origin,
) -> BoxFuture<'_, Result<String, ActError>> {
    Box::pin(async move {
        let Message { act, reason, dry_run, .. } = message;
        let act: A = serde_json::from_str(act.get()).map_err(not_an_act)?;
        let outcome = Order { act, reason, dry_run }.carry_out(context, origin).await?;
        serde_json::to_string(&outcome).map_err(ActError::invalid)
    })
}

/// The error does not quote the message, which may contain a password.
fn not_an_act(error: serde_json::Error) -> ActError {
    ActError::Invalid(format!("The act cannot be read: {error}."))
}

/// Carries out the order in a request of the socket. Returns the JSON of the outcome.
pub(super) async fn answer(
    json: &str,
    context: &ActContext,
    origin: Origin,
) -> Result<String, ActError> {
    let message: Message = serde_json::from_str(json).map_err(not_an_act)?;
    message.carry_out(context, origin).await
}

/// The first member that an act was given and does not have. Members that are only left out when
/// they are written have a default.
fn unknown<A: Act>(given: &Value) -> Option<String> {
    let act: A = serde_json::from_value(given.clone()).ok()?;
    let read = serde_json::to_value(&act).ok()?;
    let mut names = given.as_object()?.keys();
    names.find(|name| read.get(name.as_str()).is_none()).cloned()
}

/// Refuses an act of this name with members that it does not have.
pub fn check(name: &str, act: &Value) -> Result<(), ActError> {
    match known(name).and_then(|known| (known.unknown)(act)) {
        Some(unknown) => {
            Err(ActError::Invalid(format!("The act `{name}` has no field `{unknown}`.")))
        }
        None => Ok(()),
    }
}

/// The acts that have a form, by name.
pub fn forms() -> impl Iterator<Item = (&'static str, &'static Form)> {
    HANDLERS.iter().filter_map(|known| Some((known.name, known.form?)))
}

/// The form of the act of this name, if it has one.
pub fn form(name: &str) -> Option<&'static Form> {
    known(name)?.form
}

/// Carries out the act of this name, as its form was filled in.
pub async fn carry_out(
    name: &str,
    order: Order<Value>,
    context: &ActContext,
    origin: Origin,
) -> Result<Outcome<Value>, ActError> {
    if form(name).is_none() {
        return Err(ActError::invalid("there is no form for this act"));
    }
    let Order { act, reason, dry_run } = order;
    let act = serde_json::value::to_raw_value(&act).map_err(not_an_act)?;
    let message = Message { name: name.to_owned(), act, reason, dry_run };
    let json = message.carry_out(context, origin).await?;
    serde_json::from_str(&json).map_err(ActError::invalid)
}

impl<A: Act> Order<A> {
    /// Has a running server carry out the order.
    ///
    /// # Errors
    /// If the server refuses: then it was not done. If the connection fails: then it may have been.
    pub fn send(&self, server: &mut Client) -> Result<Outcome<A::Done>, SocketError> {
        let unwritable = |_| SocketError::Protocol("an act cannot be written");
        let message = Message::of(self).map_err(unwritable)?;
        let json = serde_json::to_string(&message).map_err(unwritable)?;
        serde_json::from_slice(&server.act(json)?)
            .map_err(|_| SocketError::Protocol("the answer does not say what was done"))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::admin::form::Kind;

    #[test]
    fn every_act_has_a_handler_under_a_name_of_its_own() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("admin");
        let names: BTreeSet<_> = HANDLERS.iter().map(|known| known.name).collect();
        assert_eq!(names.len(), HANDLERS.len());
        assert_eq!(acts_in(&folder), HANDLERS.len());
    }

    /// What is filled in becomes an act of the type, not only an object.
    #[test]
    fn every_form_makes_its_act() {
        for known in HANDLERS {
            let Some(form) = known.form else { continue };
            let filled = form.act(|name| {
                let field = form.fields.iter().find(|field| field.name == name)?;
                Some(match field.kind {
                    Kind::Flag | Kind::FlagIfAny => "yes".to_owned(),
                    Kind::Number | Kind::NumberIfAny | Kind::Change => "7".to_owned(),
                    Kind::OneOf(texts) => (*texts.first()?).to_owned(),
                    _ => "some".to_owned(),
                })
            });
            let act = filled.unwrap_or_else(|error| panic!("{}: {error}", known.name));
            let read = (known.reads)(&act.to_string());
            assert!(read.is_ok(), "{}: {act}: {read:?}", known.name);
        }
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
