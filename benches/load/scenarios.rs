//! What clients do, each kind measured by itself. Everything before a measurement (accounts, rooms,
//! messages) is made by the same requests and not counted; every answer is checked.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{StatusCode, header};
use tokio::sync::mpsc;

use crate::{
    Failure,
    report::{NOTHING, Row},
    target::{AT_ONCE, News, Plan, Spent, Target, User, all, milliseconds},
};

/// The most operations of a measurement that time should end.
pub(crate) const MANY: usize = 200_000;

/// The names of the scenarios, which is also the order in which they run.
pub(crate) const ALL: [&str; 9] =
    ["floor", "send", "hot", "deliver", "sync", "pages", "join", "wait", "compression"];

/// How much a scenario does beyond what time allows.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Rooms of somebody who synchronises, with ten members each.
    pub(crate) rooms: usize,
    pub(crate) devices: usize,
    pub(crate) waiting: usize,
    pub(crate) joins: usize,
    pub(crate) messages: usize,
}

impl Target {
    /// Repeats an operation as often as planned, or until the time is up, and checks each answer.
    pub(crate) async fn measure<F: Future<Output = Result<Bytes, Failure>>>(
        &self,
        name: &str,
        plan: Plan,
        each: impl Fn(usize) -> F,
        check: impl Fn(&Bytes) -> Result<(), Failure>,
    ) -> Result<Row, Failure> {
        all(plan.at_once, (0..plan.warm).map(&each)).await?;
        let (clock, next) = (self.clock(), AtomicUsize::new(plan.warm));
        let end = plan.warm.saturating_add(plan.operations);
        let workers = (0..plan.at_once).map(|_| async {
            let (mut times, mut bytes) = (Vec::new(), 0);
            while clock.elapsed() < self.at_most {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= end {
                    break;
                }
                let begun = Instant::now();
                let answer = each(index).await?;
                times.push(milliseconds(begun.elapsed()));
                bytes += answer.len();
                check(&answer)?;
            }
            Ok::<_, Failure>((times, bytes))
        });
        let done = try_join_all(workers).await?;
        let spent = clock.stop();
        let bytes = done.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let times = done.into_iter().flat_map(|(times, _)| times).collect();
        let row = Row::new(self, name, times, spent).with_bytes(bytes);
        Ok(row.with_note(&format!("{} at once", plan.at_once)))
    }
}

/// Runs the scenario of this name.
pub(crate) async fn run(target: &Target, name: &str, sizes: Sizes) -> Result<Vec<Row>, Failure> {
    Ok(match name {
        "floor" => floor(target).await?,
        "send" => vec![send(target).await?],
        "hot" => vec![hot(target).await?],
        "deliver" => {
            let users = target.users(101).await?;
            vec![
                deliver(target, "deliver to one of 50", &users[..51]).await?,
                deliver(target, "deliver to one of 100", &users).await?,
            ]
        }
        "sync" => {
            let users = target.users(10).await?;
            let rooms = rooms(target, &users, sizes.rooms, 10).await?;
            let incremental = incremental(target, &users, &rooms).await?;
            vec![initial(target, &users, rooms.len(), sizes.devices).await?, incremental]
        }
        "pages" => {
            let users = target.users(1).await?;
            let room = target.room(&users).await?;
            messages(target, &users, &room, sizes.messages).await?;
            vec![pages(target, &users[0], &room).await?]
        }
        "join" => vec![join(target, sizes.joins).await?],
        "wait" => {
            let users = target.users(sizes.waiting).await?;
            wait(target, &users, users.len(), None).await?
        }
        "compression" => compression(target, sizes).await?,
        _ => return Err(format!("no scenario is called {name}: {}", ALL.join(", ")).into()),
    })
}

/// The least that a request costs: increasing parts of the path to a decision, but no decision.
async fn floor(target: &Target) -> Result<Vec<Row>, Failure> {
    let plan = Plan { operations: MANY, at_once: AT_ONCE, warm: AT_ONCE };
    let versions = |_| target.get(None, "/versions");
    let get = target.measure("GET that asks nothing", plan, versions, |_| Ok(())).await?;

    let users = &target.users(AT_ONCE).await?;
    // Nothing is there: what is left is the HTTP stack.
    let nowhere = |index: usize| async move {
        let path = "/v3/nowhere/m.room.message/t1";
        let request = target.request("PUT", path, Some(&users[index % AT_ONCE]));
        match target.exchange(request, target.message()).await? {
            (StatusCode::NOT_FOUND, bytes) => Ok(bytes),
            (status, _) => Err(format!("PUT {path}: {status}").into()),
        }
    };
    let put = target.measure(NOTHING, plan, nowhere, |_| Ok(())).await?;

    // Sent before: routed, authenticated, decoded, found and answered.
    let rooms = try_join_all(users.iter().map(|user| target.room(std::slice::from_ref(user))));
    let rooms = &rooms.await?;
    let (transaction, each) = (target.next(), |index: usize| index % AT_ONCE);
    let again = |index| target.send_as(&users[each(index)], &rooms[each(index)], transaction);
    let repeated = target.measure("PUT of what was sent before", plan, again, |_| Ok(())).await?;
    Ok(vec![get, put, repeated])
}

/// Into 16 rooms with ten members each, where nobody listens.
async fn send(target: &Target) -> Result<Row, Failure> {
    let users = target.users(AT_ONCE).await?;
    let member = |room: usize| (0..10).map(move |index| (room * 2 + index) % AT_ONCE);
    let members: Vec<Vec<User>> =
        (0..16).map(|room| member(room).map(|index| users[index].clone()).collect()).collect();
    let rooms = all(4, members.iter().map(|members| target.room(members))).await?;
    let row = sends(target, "send a message", &users, &rooms).await?;
    Ok(row.with_note("32 at once, 16 rooms with 10 members"))
}

/// Into one room, by all of its members at once.
async fn hot(target: &Target) -> Result<Row, Failure> {
    let users = target.users(AT_ONCE).await?;
    let rooms = [target.room(&users).await?];
    let row = sends(target, "send, all into one room", &users, &rooms).await?;
    Ok(row.with_note("32 at once, one room with 32 members"))
}

/// Sends by 32 at once, each into one of the rooms; the `index`-th sender is a member of the room
/// `index / (senders / rooms)`.
pub(crate) async fn sends(
    target: &Target,
    name: &str,
    users: &[User],
    rooms: &[String],
) -> Result<Row, Failure> {
    let plan = Plan { operations: MANY, at_once: AT_ONCE, warm: AT_ONCE };
    let each = |index: usize| {
        let sender = index % users.len();
        target.send(&users[sender], &rooms[sender * rooms.len() / users.len()])
    };
    target.measure(name, plan, each, |_| Ok(())).await
}

/// From the sending of a message to the last byte of the answer that tells a waiting member of it.
/// The first user sends, all others wait. The next message is sent when all have this one, and a
/// twentieth of a second after it at the earliest: nobody falls behind, and each delivery is an
/// answer by itself.
pub(crate) async fn deliver(target: &Target, name: &str, users: &[User]) -> Result<Row, Failure> {
    const PAUSE: Duration = Duration::from_millis(50);
    const WARM: usize = 3;
    let room = target.room(users).await?;
    let (sender, readers) = users.split_first().ok_or("nobody")?;
    let tokens = target.tokens(readers).await?;
    let (heard, mut hearing) = mpsc::unbounded_channel();
    let reading = readers
        .iter()
        .zip(tokens)
        .map(|(user, since)| listen(target, user, since, &room, 30_000, heard.clone()));
    let sending = async {
        // Until all of them wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut times, mut clock) = (Vec::new(), target.clock());
        for number in 0.. {
            if number == WARM {
                times.clear();
                clock = target.clock();
            }
            if number > WARM && clock.begun.elapsed() > target.at_most {
                break;
            }
            let sent = Instant::now();
            target.send(sender, &room).await?;
            for _ in readers {
                let at: Instant = hearing.recv().await.ok_or("nobody listens")?;
                times.push(milliseconds(at.saturating_duration_since(sent)));
            }
            tokio::time::sleep(PAUSE.saturating_sub(sent.elapsed())).await;
        }
        Ok::<_, Failure>((times, clock.stop()))
    };
    let (times, spent) = tokio::select! {
        read = try_join_all(reading) => return Err(ended(read)),
        sent = sending => sent?,
    };
    let row = Row::new(target, name, times, spent);
    Ok(row.with_note(&format!("{} wait, at most 20 messages/s, CPU with the send", readers.len())))
}

/// Waits for messages to a room, and reports when each came. Ends only with a failure.
async fn listen(
    target: &Target,
    user: &User,
    mut since: String,
    room: &str,
    timeout_ms: u64,
    heard: mpsc::UnboundedSender<Instant>,
) -> Result<Infallible, Failure> {
    loop {
        let answer = target.sync(user, &since, timeout_ms).await?;
        let now = Instant::now();
        let news = News::of(&answer)?;
        for _ in 0..news.events(room) {
            heard.send(now)?;
        }
        since = news.since();
    }
}

/// Why the listeners ended.
fn ended(listening: Result<Vec<Infallible>, Failure>) -> Failure {
    listening.err().unwrap_or_else(|| "nobody listens".into())
}

/// Rooms, each with the first `members` of the users, and a message of each.
pub(crate) async fn rooms(
    target: &Target,
    users: &[User],
    count: usize,
    members: usize,
) -> Result<Vec<String>, Failure> {
    let mut rooms = Vec::new();
    for _ in 0..count {
        let room = target.room(&users[..members]).await?;
        try_join_all(users.iter().take(members).map(|user| target.send(user, &room))).await?;
        rooms.push(room);
    }
    Ok(rooms)
}

/// Each from a new device, because some servers remember what they told a device. The first one of
/// each user is not counted: it computes what is cached for a user, such as unread counts.
pub(crate) async fn initial(
    target: &Target,
    users: &[User],
    rooms: usize,
    devices: usize,
) -> Result<Row, Failure> {
    let warm = users.len().min(10);
    let some = users.iter().take(warm).cycle().take(devices + warm);
    let devices = target.devices(some).await?;
    let plan = Plan { operations: devices.len() - warm, at_once: 4, warm };
    let each = |index: usize| target.sync(&devices[index], "", 0);
    let check = |answer: &Bytes| match News::of(answer)?.rooms() {
        told if told == rooms => Ok(()),
        told => Err(format!("an initial sync told of {told} rooms of {rooms}").into()),
    };
    let row = target.measure("initial sync", plan, each, check).await?;
    let note = format!("{rooms} rooms, {}", row.note);
    Ok(row.with_note(&note))
}

/// After one message in one of the rooms, in which all are: the cost for each of (at most) ten.
pub(crate) async fn incremental(
    target: &Target,
    users: &[User],
    rooms: &[String],
) -> Result<Row, Failure> {
    const WARM: usize = 3;
    let readers = &users[..users.len().min(10)];
    let mut tokens = target.tokens(readers).await?;
    let (mut times, mut spent, mut bytes) = (Vec::new(), Spent::default(), 0);
    let begun = Instant::now();
    for (number, room) in rooms.iter().cycle().enumerate() {
        if number > WARM && begun.elapsed() > target.at_most {
            break;
        }
        target.send(&users[0], room).await?;
        // The work that the send started is not counted.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let clock = target.clock();
        let syncs = readers.iter().zip(&tokens).map(|(user, since)| async move {
            let begun = Instant::now();
            let answer = target.sync(user, since, 0).await?;
            Ok::<_, Failure>((milliseconds(begun.elapsed()), answer))
        });
        let answers = try_join_all(syncs).await?;
        let round = clock.stop();
        for ((time, answer), token) in answers.into_iter().zip(&mut tokens) {
            let news = News::of(&answer)?;
            if (news.rooms(), news.events(room)) != (1, 1) {
                return Err("an incremental sync told of something else than a message".into());
            }
            *token = news.since();
            if number >= WARM {
                bytes += answer.len();
                times.push(time);
            }
        }
        if number >= WARM {
            spent += round;
        }
    }
    let note = format!("one of {} rooms has a message, {} at once", rooms.len(), readers.len());
    Ok(Row::new(target, "incremental sync", times, spent).with_bytes(bytes).with_note(&note))
}

/// Sends `count` messages into one room.
pub(crate) async fn messages(
    target: &Target,
    users: &[User],
    room: &str,
    count: usize,
) -> Result<(), Failure> {
    let sends = (0..count).map(|index| target.send(&users[index % users.len()], room));
    all(AT_ONCE, sends).await.map(drop)
}

pub(crate) async fn pages(target: &Target, user: &User, room: &str) -> Result<Row, Failure> {
    let path = format!("/v3/rooms/{room}/messages?dir=b&limit=100");
    let plan = Plan { operations: MANY, at_once: AT_ONCE, warm: AT_ONCE };
    target
        .measure("page of 100 messages", plan, |_| target.get(Some(user), &path), |_| Ok(()))
        .await
}

async fn join(target: &Target, operations: usize) -> Result<Row, Failure> {
    let users = target.users(operations + 1).await?;
    let room = target.room(&users[..1]).await?;
    let plan = Plan { operations, at_once: 10, warm: 0 };
    let each = |index: usize| target.join(&users[index + 1], &room);
    target.measure("join a public room", plan, each, |_| Ok(())).await
}

/// How many messages wake the waiting: with several, the server's other work weighs less.
const WAKES: usize = 10;

/// All wait, in rooms of `members`, and nothing comes for a while. Then `others` send to their own
/// rooms, which does not concern the waiting. Finally, messages come to the first room, each once
/// all wait again.
pub(crate) async fn wait(
    target: &Target,
    users: &[User],
    members: usize,
    others: Option<(&[User], &[String])>,
) -> Result<Vec<Row>, Failure> {
    let members: Vec<&[User]> = users.chunks(members).collect();
    let rooms = all(4, members.iter().map(|members| target.room(members))).await?;
    let tokens = target.tokens(users).await?;
    let memory = target.memory();
    let first = members.first().map_or(0, |members| members.len());
    let (heard, mut hearing) = mpsc::unbounded_channel();
    let (astray, mut strayed) = mpsc::unbounded_channel();
    let rooms_of_users = rooms
        .iter()
        .zip(&members)
        .flat_map(|(room, members)| members.iter().map(move |user| (user, room)));
    let listening = rooms_of_users.zip(tokens).enumerate().map(|(index, ((user, room), since))| {
        let heard = if index < first { &heard } else { &astray };
        listen(target, user, since, room, 180_000, heard.clone())
    });
    let sending = async {
        until_all_wait(target).await;
        let each = (target.memory() - memory).max(0.0) / users.len() as f64;
        let clock = target.clock();
        tokio::time::sleep(target.at_most.max(Duration::from_secs(3))).await;
        let idle = clock.stop();
        let meanwhile = match others {
            Some((users, rooms)) => Some(sends(target, "send to others", users, rooms).await?),
            None => None,
        };
        let (mut times, mut spent) = (Vec::new(), Spent::default());
        for _ in 0..WAKES {
            until_all_wait(target).await;
            let clock = target.clock();
            target.send(&users[0], &rooms[0]).await?;
            for _ in 0..first {
                let at: Instant = hearing.recv().await.ok_or("nobody listens")?;
                times.push(milliseconds(at.saturating_duration_since(clock.begun)));
            }
            spent += clock.stop();
        }
        if strayed.try_recv().is_ok() {
            return Err("somebody heard of what was elsewhere".into());
        }
        Ok::<_, Failure>((each, idle.cpu_ms / idle.seconds / 10.0, meanwhile, times, spent))
    };
    let (each, percent, meanwhile, times, spent) = tokio::select! {
        listening = try_join_all(listening) => return Err(ended(listening)),
        sent = sending => sent?,
    };
    let row = Row::new(target, "wake one of many who wait", times, spent);
    let note = format!(
        "{} wait: {percent:.2} % of a core, {:.1} KiB each; a message wakes {first}",
        users.len(),
        each / 1024.0
    );
    let row = row.with_note(&note).with_waiting(each, percent);
    Ok(std::iter::once(row).chain(meanwhile).collect())
}

/// Waits until the server does next to nothing for half a second, though not forever.
async fn until_all_wait(target: &Target) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        let clock = target.clock();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if clock.stop().cpu_ms < 15.0 {
            return;
        }
    }
}

/// Large and small answers, by what compression the client takes.
async fn compression(target: &Target, sizes: Sizes) -> Result<Vec<Row>, Failure> {
    let users = target.users(10).await?;
    let rooms = rooms(target, &users, sizes.rooms, 10).await?;
    messages(target, &users, &rooms[0], sizes.messages).await?;
    let page = format!("/v3/rooms/{}/messages?dir=b&limit=100", rooms[0]);
    let asked = [
        ("initial sync", "/v3/sync?set_presence=offline&timeout=0", 4),
        ("page of 100 messages", &page, AT_ONCE),
        ("who am I", "/v3/account/whoami", AT_ONCE),
    ];
    let mut rows = Vec::new();
    for (name, path, at_once) in asked {
        for encoding in ["identity", "gzip", "zstd"] {
            let users = &users;
            let each = |index: usize| async move {
                let request = target.request("GET", path, Some(&users[index % users.len()]));
                let request = request.header(header::ACCEPT_ENCODING, encoding);
                match target.exchange(request, Bytes::new()).await? {
                    (StatusCode::OK, bytes) => Ok(bytes),
                    (status, _) => Err(format!("GET {path}: {status}").into()),
                }
            };
            let plan = Plan { operations: MANY, at_once, warm: at_once };
            let name = format!("{name}, {encoding}");
            rows.push(target.measure(&name, plan, each, |_| Ok(())).await?);
        }
    }
    Ok(rows)
}
