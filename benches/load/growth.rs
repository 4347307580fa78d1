//! How costs grow: each operation at several sizes, each size on a server of its own.

use crate::{
    Failure,
    report::{Growth, Row},
    scenarios::{deliver, incremental, initial, messages, pages, rooms, sends, wait},
    target::Target,
};

/// What grows.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// Rooms of a user, with two members each.
    Rooms,
    /// Members of a busy room, of whom one waits.
    Members,
    /// Members of a room who all wait.
    Readers,
    /// Messages in a room.
    Messages,
    /// Accounts of the server.
    Users,
    /// Users who wait, in rooms with a hundred members.
    Waiting,
}

pub(crate) const ALL: [(&str, What, &[usize]); 6] = [
    ("rooms of a user", What::Rooms, &[10, 100, 1_000, 10_000]),
    ("members of a room", What::Members, &[10, 100, 1_000, 10_000]),
    ("members who wait", What::Readers, &[10, 100, 1_000]),
    ("messages in a room", What::Messages, &[200, 2_000, 20_000, 200_000]),
    ("accounts", What::Users, &[100, 10_000, 100_000]),
    ("syncs that wait", What::Waiting, &[100, 1_000, 10_000]),
];

/// Whether a cost may grow with the size, because the answer does.
fn may_grow(what: What, operation: &str) -> bool {
    matches!((what, operation), (What::Rooms | What::Members, "initial sync"))
}

/// The measurements at one size.
async fn at(target: &Target, what: What, size: usize) -> Result<Vec<Row>, Failure> {
    // These are the same at every size.
    let few = &target.users(10).await?[..];
    Ok(match what {
        What::Rooms => {
            let users = &few[..2];
            let all = rooms(target, users, size, 2).await?;
            let send = sends(target, "send a message", users, &all[size - 1..]).await?;
            let incremental = incremental(target, users, &all).await?;
            vec![initial(target, users, size, 100).await?, incremental, send]
        }
        What::Members => {
            let users = target.users(size).await?;
            let room = rooms(target, &users, 1, size).await?;
            let senders = &users[..10];
            // So that there is a page.
            messages(target, senders, &room[0], 100).await?;
            vec![
                initial(target, senders, 1, 100).await?,
                incremental(target, senders, &room).await?,
                pages(target, &users[0], &room[0]).await?,
                sends(target, "send a message", senders, &room).await?,
            ]
        }
        What::Readers => {
            let users = target.users(size + 1).await?;
            vec![deliver(target, "deliver to each", &users).await?]
        }
        What::Messages => {
            let room = [target.room(few).await?];
            messages(target, few, &room[0], size).await?;
            vec![
                initial(target, few, 1, 100).await?,
                incremental(target, few, &room).await?,
                pages(target, &few[0], &room[0]).await?,
                sends(target, "send a message", few, &room).await?,
            ]
        }
        What::Users => {
            target.users(size).await?;
            let room = [target.room(few).await?];
            vec![
                initial(target, few, 1, 100).await?,
                incremental(target, few, &room).await?,
                sends(target, "send a message", few, &room).await?,
            ]
        }
        What::Waiting => {
            let users = target.users(size).await?;
            let room = [target.room(few).await?];
            wait(target, &users, 100, Some((few, &room))).await?
        }
    })
}

/// Starts servers with `start`, and measures everything at each of its sizes.
pub(crate) async fn run<F: Future<Output = Result<Target, Failure>>>(
    only: &[String],
    start: impl Fn() -> F,
) -> Result<Vec<Growth>, Failure> {
    let mut all = Vec::new();
    for (name, what, sizes) in ALL {
        if !only.is_empty() && !only.iter().any(|only| name.contains(only)) {
            continue;
        }
        let mut grown = Vec::<Growth>::new();
        for &size in sizes {
            eprintln!("{name}: {size}");
            let target = start().await?;
            for (index, row) in at(&target, what, size).await?.into_iter().enumerate() {
                if index == grown.len() {
                    let operation = row.operation.clone();
                    let may_grow = may_grow(what, &operation);
                    let what = name.to_owned();
                    grown.push(Growth { what, operation, may_grow, rows: Vec::new() });
                }
                eprintln!("  {}: {:.4} ms of CPU each", row.operation, row.cpu_ms);
                if let Some(growth) = grown.get_mut(index) {
                    growth.rows.push((size, row));
                }
            }
        }
        all.extend(grown);
    }
    Ok(all)
}
