//! The world of a seed: homeservers, their users, and what goes wrong.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::Path,
    rc::Rc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::sleep};
use turmoil::{Builder, Sim};

use super::{
    dice::Dice,
    homeserver::{Authority, Failure, Homeserver},
    hostile::{Hostile, Neighbour},
    http::Client,
    ledger::Ledger,
    os,
    promises::Promises,
    story::Story,
    user::{Crowd, User},
};
use logcabin_base::planted::{self, Fault};
use logcabin_log::modelled::DiskFault;
use logcabin_record::{Header, Payload};

/// The grain of time: a message takes at least as long.
const TICK: Duration = Duration::from_millis(10);

/// How long news may take where nothing goes wrong. Syncs last longer.
const PROMPT: Duration = Duration::from_secs(10);

/// The same where a homeserver is hostile. Others give up a transaction after a minute.
const PROMPT_AMONG_HOSTILE: Duration = Duration::from_secs(60);

/// When the last fault begins.
const TROUBLES: Duration = Duration::from_secs(120);

/// How long it may take after the last fault until everybody has everything: homeservers that were
/// not reached are tried again after a while.
const RECOVERY: Duration = Duration::from_secs(40 * 60);

/// The same from when everybody has done all, where nothing went wrong.
const ARRIVAL: Duration = Duration::from_secs(5 * 60);

/// What a world has.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) homeservers: usize,
    /// On each homeserver.
    pub(crate) users: usize,
    /// Of each user.
    pub(crate) actions: usize,
    pub(crate) has_faults: bool,
    /// Whether a homeserver is hostile.
    pub(crate) is_hostile: bool,
    /// Whether what a server knew when it stopped is compared with a replay of its log.
    pub(crate) replays: bool,
    /// The faults that are left out, by number.
    pub(crate) without: BTreeSet<usize>,
    /// Faults of the program itself.
    pub(crate) planted: Option<Fault>,
}

impl Plan {
    /// The world of a seed in which nothing goes wrong.
    pub(crate) const fn of(seed: u64) -> Self {
        Self {
            seed,
            homeservers: 3,
            users: 4,
            actions: 30,
            has_faults: false,
            is_hostile: false,
            replays: false,
            without: BTreeSet::new(),
            planted: None,
        }
    }
}

/// What came of a world.
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    /// How long the world existed.
    pub(crate) lasted: Duration,
    /// How many faults there were, with those that were left out.
    pub(crate) faults: usize,
}

/// Runs the world of a plan to its end, or to the first claim that does not hold.
pub(crate) fn run(plan: Plan, story: &Story, dump: Option<&Path>) -> Result<Outcome, Failure> {
    os::seed(plan.seed);
    planted::plant(plan.planted);
    os::set_elapsed(Duration::ZERO);
    let dir = tempfile::tempdir()?;
    let mut sim = Builder::new()
        .rng_seed(plan.seed)
        .epoch(SystemTime::now())
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(150))
        .simulation_duration(Duration::from_secs(24 * 3600))
        .tcp_capacity(1 << 16)
        .build();
    let authority = Authority::new(dir.path())?;
    let mut homeservers = Vec::new();
    for number in 0..plan.homeservers {
        let host = format!("hs{number}");
        let ip = sim.lookup(&*host);
        let homeserver = Homeserver::new(host, ip, dir.path(), &authority, plan.seed, story)?;
        let process = homeserver.clone();
        sim.host(&*homeserver.host, move || process.clone().run());
        homeservers.push(homeserver);
    }
    let (end, ending) = watch::channel(false);
    let (peace, at_peace) = watch::channel(false);
    let user_ids = (0..plan.homeservers * plan.users)
        .map(|number| format!("@u{number}:{}", homeservers[number / plan.users].name))
        .collect();
    let crowd = Rc::new(Crowd {
        story: story.clone(),
        ledger: Ledger::default(),
        promises: Promises::default(),
        user_ids,
        rooms: plan.homeservers,
        actions: plan.actions,
        prompt: match (plan.has_faults, plan.is_hostile) {
            (true, _) => None,
            (false, true) => Some(PROMPT_AMONG_HOSTILE),
            (false, false) => Some(PROMPT),
        },
        is_hostile: plan.is_hostile,
        peace: at_peace,
        ending,
    });
    if plan.is_hostile {
        let ip = sim.lookup("hostile");
        let neighbours = homeservers.iter();
        let neighbours = neighbours.map(|of| Neighbour { name: of.name.clone(), ip: of.ip });
        let (neighbours, people) = (neighbours.collect(), crowd.user_ids.clone());
        let hostile = Hostile::new(ip, &authority, plan.seed, story, neighbours, people)?;
        let (hostile, crowd) = (Rc::new(hostile), Rc::clone(&crowd));
        sim.client("hostile", async move {
            let acting = Rc::clone(&hostile);
            tokio::task::spawn_local(async move {
                while crowd.ledger.rooms().len() < crowd.rooms {
                    sleep(Duration::from_millis(200)).await;
                }
                acting.live(crowd.ledger.places(), crowd.peace.clone()).await;
            });
            hostile.serve().await
        });
    }
    for (server, homeserver) in homeservers.iter().enumerate() {
        let (crowd, ip) = (Rc::clone(&crowd), homeserver.ip);
        let Plan { seed, users, .. } = plan;
        sim.client(format!("users{server}"), async move {
            for nth in 0..users {
                let number = server * users + nth;
                let dice = Dice::new(seed, &format!("user {number}"));
                let client = Client { server: ip, token: None };
                let user = User::new(number, nth == 0, &crowd, dice, client);
                tokio::task::spawn_local(user.live());
            }
            std::future::pending().await
        });
    }
    let [faults, dice] = ["times of faults", "no fault"].map(|part| Dice::new(plan.seed, part));
    let (strikes, mending) = (0, Vec::new());
    let mut world = World { plan, sim, homeservers, crowd, faults, dice, strikes, mending };
    let lived = world.live(&peace, &end);
    if let Some(dir) = dump {
        world.dump(dir)?;
    }
    lived?;
    let lasted = world.sim.elapsed();
    Ok(Outcome { requests: world.crowd.ledger.requests(), lasted, faults: world.strikes })
}

struct World<'a> {
    plan: Plan,
    sim: Sim<'a>,
    homeservers: Vec<Homeserver>,
    crowd: Rc<Crowd>,
    /// When faults come.
    faults: Dice,
    /// What the newest fault is.
    dice: Dice,
    /// How many faults there were.
    strikes: usize,
    /// What ends a fault, and when.
    mending: Vec<(Duration, Mend)>,
}

/// What ends a fault. Homeservers are named by number.
#[derive(Clone, Copy, Debug)]
enum Mend {
    Start(usize),
    /// What was held arrives.
    Release(usize, usize),
    Repair(usize, usize),
    Disk(usize),
}

impl World<'_> {
    fn live(
        &mut self,
        peace: &watch::Sender<bool>,
        end: &watch::Sender<bool>,
    ) -> Result<(), Failure> {
        let everybody = self.plan.homeservers * self.plan.users;
        let mut next_fault = self.faults.between_ms(2_000, 10_000);
        let has_troubles = self.plan.has_faults || self.plan.is_hostile;
        while self.sim.elapsed() < TROUBLES && has_troubles && self.goes_on() {
            self.step()?;
            if self.plan.has_faults && self.sim.elapsed() >= next_fault {
                self.strike();
                next_fault = self.sim.elapsed() + self.faults.between_ms(500, 15_000);
            }
        }
        peace.send_replace(true);
        let mut healed = self.sim.elapsed() + RECOVERY;
        while self.goes_on() {
            self.step()?;
            // Looking costs more than a step.
            if self.sim.elapsed().subsec_millis() != 0 {
                continue;
            }
            let is_done = self.crowd.ledger.how_many_done() == everybody;
            let missing = self.crowd.ledger.missing().or_else(|| self.crowd.promises.missing());
            if is_done && missing.is_none() && self.mending.is_empty() {
                break;
            }
            if !self.plan.has_faults && !is_done {
                healed = self.sim.elapsed() + ARRIVAL;
            }
            if self.sim.elapsed() > healed {
                let what = missing.unwrap_or_else(|| "not everybody has done all".to_owned());
                self.note("claim", &format!("BROKEN after the recovery: {what}"));
                self.crowd.story.broken("what was acknowledged arrives", &what);
            }
        }
        // States are asked for once all is quiet.
        let quiet = self.sim.elapsed() + Duration::from_secs(60);
        while self.sim.elapsed() < quiet && self.goes_on() {
            self.step()?;
        }
        end.send_replace(true);
        let asked = self.sim.elapsed() + Duration::from_secs(60);
        while self.sim.elapsed() < asked && self.goes_on() {
            self.step()?;
        }
        if self.plan.replays {
            self.stop_all()?;
        }
        let users = self.plan.users;
        self.crowd.promises.check(&self.crowd.story);
        self.crowd.ledger.check(&self.crowd.story, everybody, |user| user / users);
        Ok(())
    }

    /// Stops all homeservers, and compares what each knew with what its log says.
    fn stop_all(&mut self) -> Result<(), Failure> {
        self.homeservers.iter().for_each(Homeserver::stop);
        let patience = self.sim.elapsed() + Duration::from_secs(60);
        let hosts: Vec<_> = self.homeservers.iter().map(|of| of.host.clone()).collect();
        while hosts.iter().any(|host| self.sim.is_host_running(&**host)) && self.goes_on() {
            if self.sim.elapsed() > patience {
                self.crowd.story.broken("a server stops when it is asked to", &hosts.join(", "));
            }
            self.step()?;
        }
        for homeserver in self.homeservers.iter().filter(|_| self.goes_on()) {
            if let Err(how) = homeserver.replay() {
                let how = format!("{}: {how}", homeserver.host);
                self.crowd.story.broken("a server knows what a replay of its log makes", &how);
            }
        }
        Ok(())
    }

    /// Writes what the disks hold: a file for each homeserver, with a line for each record.
    fn dump(&self, dir: &Path) -> Result<(), Failure> {
        fs::create_dir_all(dir)?;
        for homeserver in &self.homeservers {
            let mut text = String::new();
            for record in homeserver.disk.records() {
                let Header { offset, time_ms, stream, kind, .. } = &record.header;
                let payload = match &record.payload {
                    Payload::Present(payload) | Payload::Reduced(payload) => {
                        String::from_utf8_lossy(payload).into_owned()
                    }
                    Payload::Erased => "(erased)".to_owned(),
                };
                let stream = stream.as_str();
                let _ = writeln!(text, "{offset}\t{time_ms}\t{stream}\t{kind}\t{payload}");
            }
            fs::write(dir.join(&homeserver.host), text)?;
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        self.crowd.story.is_broken().is_none()
    }

    fn step(&mut self) -> Result<(), Failure> {
        os::set_elapsed(self.sim.elapsed());
        self.sim.step()?;
        let now = self.sim.elapsed();
        let due: Vec<_> = self.mending.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, mend) in due {
            self.mend(mend);
        }
        Ok(())
    }

    fn note(&self, who: &str, what: &str) {
        self.crowd.story.note_at(self.sim.elapsed(), who, what);
    }

    /// Something goes wrong. Each fault has dice of its own, so that without one of them the others
    /// stay as they are.
    fn strike(&mut self) {
        self.strikes += 1;
        if self.plan.without.contains(&self.strikes) {
            return;
        }
        self.dice = Dice::new(self.plan.seed, &format!("fault {}", self.strikes));
        let number = self.dice.below(self.homeservers.len());
        let host = self.homeservers[number].host.clone();
        let now = self.sim.elapsed();
        let is_up = self.sim.is_host_running(&*host)
            && !self
                .mending
                .iter()
                .any(|(_, mend)| matches!(mend, Mend::Start(of) if *of == number));
        match self.dice.below(6) {
            0 | 1 if is_up => self.crash(number),
            2 if is_up => {
                self.note(&host, "is stopped");
                self.homeservers[number].stop();
                let until = now + self.dice.between_ms(5_000, 20_000);
                self.mending.push((until, Mend::Start(number)));
            }
            3 if is_up => {
                let (fault, what) = match self.dice.happens(50) {
                    true => (DiskFault::Full, "has a full disk"),
                    false => (DiskFault::Failing, "has a failing disk"),
                };
                self.note(&host, what);
                self.homeservers[number].disk.set_fault(Some(fault));
                let until = now + self.dice.between_ms(1_000, 10_000);
                self.mending.push((until, Mend::Disk(number)));
            }
            4 => {
                let other = self.dice.below(self.homeservers.len());
                let name = other_name(&self.homeservers, number, other);
                self.note(&host, &format!("does not reach {name}, for now"));
                self.sim.hold(&*host, &*name);
                let until = now + self.dice.between_ms(500, 20_000);
                self.mending.push((until, Mend::Release(number, other)));
            }
            5 => {
                let other = self.dice.below(self.homeservers.len());
                let name = other_name(&self.homeservers, number, other);
                self.note(&host, &format!("loses all that is said with {name}"));
                self.sim.partition(&*host, &*name);
                let until = now + self.dice.between_ms(500, 40_000);
                self.mending.push((until, Mend::Repair(number, other)));
            }
            _ => {}
        }
    }

    fn crash(&mut self, number: usize) {
        let Homeserver { host, disk, .. } = &self.homeservers[number];
        let (host, disk) = (host.clone(), std::sync::Arc::clone(disk));
        self.sim.crash(&*host);
        let unsynced = disk.unsynced();
        let kept = self.dice.below(unsynced + 1);
        disk.lose_power(kept);
        self.note(&host, &format!("crashes; {kept} of {unsynced} unsynced batches are kept"));
        let until = self.sim.elapsed() + self.dice.between_ms(100, 20_000);
        self.mending.push((until, Mend::Start(number)));
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Start(number) => {
                let host = self.homeservers[number].host.clone();
                self.note(&host, "is started");
                // One that did not stop in time is killed.
                self.homeservers[number].disk.lose_power(usize::MAX);
                self.sim.bounce(&*host);
            }
            Mend::Release(number, other) => {
                let host = self.homeservers[number].host.clone();
                let other = other_name(&self.homeservers, number, other);
                self.note(&host, &format!("reaches {other} again"));
                self.sim.release(&*host, &*other);
            }
            Mend::Repair(number, other) => {
                let host = self.homeservers[number].host.clone();
                let other = other_name(&self.homeservers, number, other);
                self.note(&host, &format!("is heard by {other} again"));
                self.sim.repair(&*host, &*other);
            }
            Mend::Disk(number) => {
                let host = self.homeservers[number].host.clone();
                self.note(&host, "has its disk back");
                self.homeservers[number].disk.set_fault(None);
                // A log that has failed takes no more writes until a restart.
                self.crash(number);
            }
        }
    }
}

/// The name of the other end of a link: another homeserver, or the users of this one, which have
/// its number.
fn other_name(homeservers: &[Homeserver], number: usize, other: usize) -> String {
    match other == number {
        true => format!("users{number}"),
        false => homeservers[other].host.clone(),
    }
}
