//! `logcabin user`: the accounts of a running or stopped server.

use std::{fmt::Write as _, process::ExitCode};

use ruma::OwnedDeviceId;

use super::{
    act::{ActOptions, Common},
    columns,
    moderation::ChangeMember,
    password::new_password,
};
use logcabin_ops::{
    admin::users::{
        self, ChangeOf, Changed, Created, Deactivated, Filter, ListUsers, LogOut, LoggedOut,
        SetStatus, ShowUser, UserDetails, UserSummary, Users,
    },
    history::{moment::Time, terminal::clean},
};

/// Manage accounts
///
/// A running server applies changes at once, through the socket in its data directory; if none
/// runs, they are made in the data directory itself. Users are named by id or by its part before
/// the colon. Changes are recorded with your name on this machine.
#[derive(Debug, clap::Args)]
pub(super) struct User {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
    Create(Create),
    ResetPassword(ResetPassword),
    /// Make a user an administrator of the server
    SetAdmin(Change),
    /// Remove a user's administrator rights
    UnsetAdmin(Change),
    /// Lock an account: it cannot be used until it is unlocked, and keeps its sessions
    Lock(Change),
    /// Unlock an account
    Unlock(Change),
    /// Suspend an account: the user can read and leave rooms, and nothing else
    Suspend(Change),
    /// Unsuspend an account
    Unsuspend(Change),
    /// Shadow-ban a user: what they do is answered as usual, and reaches nobody
    ShadowBan(Change),
    /// Lift a shadow ban
    LiftShadowBan(Change),
    Approve(super::approval::Approve),
    Refuse(super::approval::Refuse),
    Deactivate(Deactivate),
    Redact(super::redaction::RedactUser),
    /// Kick a user from the rooms that they are in, or from some
    ///
    /// It happens in the name of the most powerful local member who may. Where there is none, a
    /// user of this server leaves, and one of another stays.
    Kick(ChangeMember),
    /// Ban a user from the rooms that they are in, or from some
    ///
    /// It happens in the name of the most powerful local member who may.
    Ban(ChangeMember),
    /// End bans of a user, in all rooms or in some
    Unban(ChangeMember),
    RejectInvites(super::moderation::RejectInvites),
    CleanUp(super::moderation::CleanUp),
    Erase(super::erasure::EraseUser),
    Logout(Logout),
}

/// List users
#[derive(Debug, clap::Args)]
struct List {
    /// Only administrators
    #[arg(long)]
    admin: bool,

    /// Only locked accounts
    #[arg(long)]
    locked: bool,

    /// Only suspended accounts
    #[arg(long)]
    suspended: bool,

    /// Only shadow-banned accounts
    #[arg(long)]
    shadow_banned: bool,

    /// Only accounts that wait for approval, with what is known of their users
    #[arg(long, conflicts_with_all = ["admin", "locked", "suspended", "shadow_banned", "deactivated", "guest"])]
    waiting: bool,

    /// Only deactivated accounts
    #[arg(long)]
    deactivated: bool,

    /// Only guests
    #[arg(long)]
    guest: bool,

    #[command(flatten)]
    common: Common,
}

/// Show a user: the account and its devices
#[derive(Debug, clap::Args)]
struct Show {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    #[command(flatten)]
    common: Common,
}

/// Create an account, even while registration is closed
///
/// The password is prompted for, or read from standard input.
#[derive(Debug, clap::Args)]
struct Create {
    /// The user name
    #[arg(value_name = "USER")]
    user: String,

    /// Make the user an administrator
    #[arg(long)]
    admin: bool,

    /// The display name [default: the user name]
    #[arg(long, value_name = "NAME")]
    display_name: Option<String>,

    /// Set no password: nobody can log in until one is set
    #[arg(long)]
    no_password: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Reset a password and log out all devices
///
/// The password is prompted for, or read from standard input.
#[derive(Debug, clap::Args)]
struct ResetPassword {
    /// The user
    #[arg(value_name = "USER")]
    pub user: String,

    /// Leave the user's devices logged in
    #[arg(long)]
    pub keep_devices: bool,

    #[command(flatten)]
    options: ActOptions,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    #[command(flatten)]
    options: ActOptions,
}

/// Deactivate an account permanently
///
/// Logs out its devices, leaves its rooms, and removes its password. Nobody can ever register its
/// name again. This cannot be undone.
#[derive(Debug, clap::Args)]
struct Deactivate {
    /// The user
    #[arg(value_name = "USER")]
    pub user: String,

    /// Hide the user's messages from users who join later, and remove profile and account data
    #[arg(long)]
    pub erase: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Log out all devices of a user, or one
#[derive(Debug, clap::Args)]
struct Logout {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// Only this device
    #[arg(long, value_name = "ID")]
    device: Option<OwnedDeviceId>,

    #[command(flatten)]
    options: ActOptions,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl User {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(Show { user, common }) => {
                common.run(ShowUser { user }, |user| details(user))
            }
            Command::Create(create) => create.run(),
            Command::ResetPassword(reset) => {
                let password = match reset.options.dry_run {
                    true => String::new().into(),
                    false => new_password(&reset.user)?,
                };
                let (user, keep_devices) = (reset.user, reset.keep_devices);
                let act = users::ResetPassword { user, password, keep_devices };
                reset
                    .options
                    .run(act, |Changed { user_id, .. }| format!("{user_id} has a new password.\n"))
            }
            Command::SetAdmin(change) => {
                change.run("is an administrator", |act| act.admin = Some(true))
            }
            Command::UnsetAdmin(change) => {
                change.run("is not an administrator", |act| act.admin = Some(false))
            }
            Command::Lock(change) => change.run("is locked", |act| act.locked = Some(true)),
            Command::Unlock(change) => change.run("is not locked", |act| act.locked = Some(false)),
            Command::Suspend(change) => {
                change.run("is suspended", |act| act.suspended = Some(true))
            }
            Command::Unsuspend(change) => {
                change.run("is not suspended", |act| act.suspended = Some(false))
            }
            Command::ShadowBan(change) => {
                change.run("is shadow-banned", |act| act.shadow_banned = Some(true))
            }
            Command::LiftShadowBan(change) => {
                change.run("is not shadow-banned", |act| act.shadow_banned = Some(false))
            }
            Command::Approve(approve) => approve.run(),
            Command::Refuse(refuse) => refuse.run(),
            Command::Deactivate(deactivate) => deactivate.run(),
            Command::Redact(redact) => redact.run(),
            Command::Kick(change) => change.run(ChangeOf::Kick),
            Command::Ban(change) => change.run(ChangeOf::Ban),
            Command::Unban(change) => change.run(ChangeOf::Unban),
            Command::RejectInvites(reject) => reject.run(),
            Command::CleanUp(clean_up) => clean_up.run(),
            Command::Erase(erase) => erase.run(),
            Command::Logout(Logout { user, device, options }) => {
                let devices = device.map(|device| vec![device]);
                options.run(LogOut { user, devices }, logged_out)
            }
        }
    }
}

impl List {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { admin, locked, suspended, shadow_banned, waiting, .. } = self;
        let Self { deactivated, guest, common, .. } = self;
        if waiting {
            return super::approval::list(&common);
        }
        let filter = Filter { admin, locked, suspended, shadow_banned, deactivated, guest };
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let Users { users, next } = common.perform(ListUsers { after, filter })?;
            all.extend(users);
            after = next;
            if after.is_none() {
                break;
            }
        }
        let all = Users { users: all, next: None };
        common.print::<ListUsers>(&all, |all| list(&all.users))
    }
}

impl Create {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { user, admin, display_name, no_password, options } = self;
        let password =
            if no_password || options.dry_run { None } else { Some(new_password(&user)?) };
        let act = users::CreateUser { user, password, display_name, admin };
        options.run(act, |Created { user_id }| format!("Made the account {user_id}.\n"))
    }
}

impl Change {
    fn run(self, is: &str, set: impl FnOnce(&mut SetStatus)) -> Result<ExitCode, Failure> {
        let Self { user, options } = self;
        let (admin, locked, suspended, shadow_banned) = (None, None, None, None);
        let mut act = SetStatus { user, admin, locked, suspended, shadow_banned };
        set(&mut act);
        options.run(act, |Changed { user_id, changed }| {
            format!("{user_id} {is} {}.\n", if *changed { "now" } else { "already" })
        })
    }
}

impl Deactivate {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { user, erase, yes, options } = self;
        let act = users::Deactivate { user: user.clone(), erase };
        options.run_if_meant(act, yes, &user, deactivated)
    }
}

fn deactivated(done: &Deactivated) -> String {
    let Deactivated { user_id, changed, rooms, still_bound } = done;
    let mut text = if *changed {
        format!("Deactivated the account {user_id}, which has left {rooms} room(s).\n")
    } else {
        format!("The account {user_id} was deactivated already.\n")
    };
    for bound in still_bound {
        let _ = writeln!(text, "It could not be unbound: {bound}.");
    }
    text
}

fn logged_out(LoggedOut { user_id, devices }: &LoggedOut) -> String {
    if devices.is_empty() {
        return format!("{user_id} is not logged in.\n");
    }
    let devices: Vec<_> = devices.iter().map(AsRef::<str>::as_ref).collect();
    format!("Logged {user_id} out of {}.\n", devices.join(", "))
}

fn list(users: &[UserSummary]) -> String {
    let rows: Vec<[String; 4]> = users
        .iter()
        .map(|user| {
            let name = clean(user.display_name.as_deref().unwrap_or("-"));
            let devices = format!("{} device(s)", user.devices);
            [user.user_id.to_string(), name, devices, status(user)]
        })
        .collect();
    let mut text = columns(&rows);
    let _ = writeln!(text, "{} user(s)", users.len());
    text
}

fn status(user: &UserSummary) -> String {
    let words = [
        (user.guest, "guest"),
        (user.admin, "administrator"),
        (user.locked, "locked"),
        (user.suspended, "suspended"),
        (user.shadow_banned, "shadow-banned"),
        (user.waiting, "waiting for approval"),
        (user.deactivated, "deactivated"),
    ];
    let words: Vec<_> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    words.join(", ")
}

fn details(user: &UserDetails) -> String {
    let summary = &user.summary;
    let mut status = status(summary);
    if summary.erased {
        status += ", erased";
    }
    let mut text = format!(
        "User      {}\nName      {}\nAccount   {}\nCreated   {}\nPassword  {}\nRooms     {}\nDevices   {}\n",
        summary.user_id,
        clean(summary.display_name.as_deref().unwrap_or("-")),
        if status.is_empty() { "in order" } else { status.as_str() },
        Time(user.created_ms).to_second() + " UTC",
        if user.has_password { "yes" } else { "no" },
        user.joined_rooms,
        user.logged_in.len(),
    );
    for threepid in &user.threepids {
        let _ = writeln!(text, "Address   {} ({})", clean(&threepid.address), threepid.medium);
    }
    if user.media_count > 0 {
        let _ =
            writeln!(text, "Media     {} file(s), {} bytes", user.media_count, user.media_bytes);
    }
    for (device_id, device) in &user.logged_in {
        let name = clean(device.display_name.as_deref().unwrap_or("-"));
        let since = Time(device.since_ms).to_second() + " UTC";
        let seen = device.seen_ms.map_or_else(String::new, |ms| {
            let from = device.seen_ip.as_deref().unwrap_or("an unknown address");
            format!(", last in use {} UTC from {}", Time(ms).to_second(), clean(from))
        });
        let _ = writeln!(text, "  {}  {name}  since {since}{seen}", clean(device_id.as_str()));
    }
    text
}
