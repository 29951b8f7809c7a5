//! The guide *From Akka or Pekko*, word for word: an old cinema is used while its journal is imported and followed, the
//! blocks of the page are run in their order, and the new cinema goes on with the shows. The ways back are gone, too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use gesta_rig::{Child, find_binaries};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::old_cinema::{Change, OldCinema};
use crate::said;
use crate::support::cinema::{Answer, change, create, get, reserved};
use crate::support::{Server, output_of, stderr, wait_until};

/// The blocks of the page, in their order.
struct Guide {
    types: String,
    look: String,
    import: String,
    follow: String,
    sessions: String,
    rest: String,
    count: String,
    keep: String,
    serve: String,
    empty: String,
}

/// All blocks of the page.
pub(crate) fn blocks() -> [String; 12] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = root.join("docs/guides/from-akka-or-pekko.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split_once("\n```").expect("a block ends").0);
    let blocks: Vec<String> = blocks.map(str::to_owned).collect();
    blocks.try_into().expect("the blocks that are run here")
}

/// A block of the page as somebody runs it in this folder, who has these programs.
pub(crate) fn shell(home: &Path, programs: &[&Path], block: &str) -> Command {
    let folder_of = |program: &&Path| program.parent().unwrap().to_owned();
    let mut folders: Vec<PathBuf> = programs.iter().map(folder_of).collect();
    folders.extend(find_binaries());
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", block]);
    shell
        .current_dir(home)
        .env_remove("GESTA_STORE")
        .env("PATH", std::env::join_paths(folders).unwrap())
        .stdin(Stdio::null());
    shell
}

impl Guide {
    /// But for the last section, which is run with H2.
    fn read() -> Self {
        let [
            types,
            look,
            import,
            follow,
            sessions,
            rest,
            count,
            keep,
            serve,
            empty,
            _,
            _,
        ] = blocks();
        Self {
            types,
            look,
            import,
            follow,
            sessions,
            rest,
            count,
            keep,
            serve,
            empty,
        }
    }
}

/// The reserved seats of each show, by its id.
type Seats = BTreeMap<String, BTreeSet<u32>>;

/// Seats of the old cinema's shows, by their ids.
fn seats_after(changes: &[Change]) -> Seats {
    let mut changes = changes.to_vec();
    changes.sort_unstable();
    let mut seats = Seats::new();
    for change in &changes {
        let show = change.key.strip_prefix("Show|").unwrap().to_owned();
        let reserved = seats.entry(show).or_default();
        let is_new = match change.manifest.as_str() {
            "ShowCreated" => true,
            "SeatReserved" => reserved.insert(change.number),
            "SeatReservationCancelled" => reserved.remove(&change.number),
            other => panic!("{other}"),
        };
        assert!(is_new, "{change:?}");
    }
    seats
}

/// A move that is carried out by the page.
pub(crate) struct Move<'a> {
    guide: Guide,
    home: TempDir,
    old: &'a mut dyn OldCinema,
    journal: &'a str,
    store: &'a str,
    cinema: PathBuf,
    follower: Option<Follower>,
}

impl<'a> Move<'a> {
    pub(crate) fn of(
        old: &'a mut dyn OldCinema,
        journal: &'a str,
        store: &'a str,
        cinema: PathBuf,
    ) -> Self {
        Self {
            guide: Guide::read(),
            home: tempfile::tempdir().unwrap(),
            old,
            journal,
            store,
            cinema,
            follower: None,
        }
    }

    /// A block of the page as somebody runs it.
    fn shell(&self, block: &str) -> Command {
        let gesta = Path::new(env!("CARGO_BIN_EXE_gesta"));
        let mut shell = shell(self.home.path(), &[gesta, &self.cinema], block);
        shell
            .env("JOURNAL", self.journal)
            .env("STORE", self.store)
            // Any port that is free.
            .env("CINEMA_LISTEN", "127.0.0.1:0");
        shell
    }

    fn run(&self, block: &str) -> String {
        said(&mut self.shell(block))
    }

    /// A block of one command that runs until it is told to end.
    fn running(&self, block: &str) -> Command {
        assert!(!block.contains('\n'), "{block}");
        self.shell(&format!("exec {block}"))
    }

    /// The days before: everything is imported, then followed.
    pub(crate) fn begin(&mut self) {
        self.old.start();
        self.old.goes_on();
        self.run(&self.guide.types);
        let look = self.run(&self.guide.look);
        assert!(look.starts_with("would import "), "{look}");
        assert!(!look.contains("cannot be events"), "{look}");
        self.import_and_follow();
    }

    fn import_and_follow(&mut self) {
        let imported = imported(&self.run(&self.guide.import));
        assert!(imported > 0);
        self.follow(imported);
    }

    fn follow(&mut self, imported: u64) {
        let follower = Follower::start(&mut self.running(&self.guide.follow), imported);
        self.old.goes_on();
        follower.wait("it goes on", |all| all > imported);
        self.follower = Some(follower);
    }

    /// The old application is stopped and started again, and the follower goes on.
    pub(crate) fn go_back_from_step_2(&mut self) {
        self.stop_old();
        self.old.start();
        self.old.goes_on();
    }

    /// The old application is started again, and the follower.
    pub(crate) fn go_back_from_step_5(&mut self) {
        let changes = self.leave_old();
        self.old.start();
        self.follow(changes.len() as u64);
    }

    /// The new application is used, and given up.
    pub(crate) fn go_back_from_step_6(&mut self) {
        self.day();
        self.old.start();
        self.old.goes_on();
        let refused = output_of(&mut self.shell(&self.guide.rest));
        assert!(!refused.status.success(), "{refused:?}");
        let why = stderr(&refused);
        assert!(why.contains("that this import did not write"), "{why}");
        self.run(&self.guide.empty);
    }

    /// The old application was used meanwhile, and is left for good.
    pub(crate) fn end(&mut self) {
        self.import_and_follow();
        self.day();
    }

    /// Step 2.
    fn stop_old(&mut self) {
        let is_there = |this: &Self, name: &str| this.run(&this.guide.sessions).contains(name);
        assert!(is_there(self, "gesta"), "the follower");
        if let Some(name) = self.old.session() {
            assert!(is_there(self, name));
        }
        self.old.stop();
        if let Some(name) = self.old.session() {
            wait_until("no session is left", || !is_there(self, name));
        }
    }

    /// Steps 2 to 5. Returns all that the old cinema has confirmed.
    fn leave_old(&mut self) -> Vec<Change> {
        self.stop_old();
        let changes = self.old.confirmed();
        let all = changes.len() as u64;
        let follower = self.follower.take().unwrap();
        follower.wait("it has everything", |imported| imported == all);
        follower.end();
        assert_eq!(imported(&self.run(&self.guide.rest)), 0);
        let counts = self.run(&self.guide.count);
        let counts: Vec<u64> = counts.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(counts, [all, all], "in the journal, and in the store");
        self.run(&self.guide.keep);
        self.compare(&changes);
        changes
    }

    /// All steps.
    fn day(&mut self) {
        let changes = self.leave_old();
        let new = Server::spawn(&mut self.running(&self.guide.serve));
        let shows = seats_after(&changes);
        let free = shows_are(&new, &shows);
        eprintln!(
            "{} changes of {} shows were moved",
            changes.len(),
            shows.len()
        );
        use_new(&new, shows, &free);
        new.stop();
    }

    /// Each show has the events that the old cinema has confirmed, in their order, and no other ones.
    fn compare(&self, changes: &[Change]) {
        let store = ["--store", self.store, "--output", "json"];
        let all = crate::support::succeed(&[&["all", "read"][..], &store].concat());
        let mut stored = Vec::new();
        for line in all.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let stream = text(&event["stream"]);
            if !stream.starts_with('$') {
                let revision = event["revision"].as_u64().unwrap();
                stored.push((stream, revision, text(&event["type"])));
            }
        }
        stored.sort_unstable();
        let types: BTreeMap<&str, &str> = BTreeMap::from([
            ("ShowCreated", "show-created.v1"),
            ("SeatReserved", "seat-reserved.v1"),
            ("SeatReservationCancelled", "seat-reservation-cancelled.v1"),
        ]);
        let expected = |change: &Change| {
            let stream = change.key.replace("Show|", "show-");
            let event_type = types[change.manifest.as_str()].to_owned();
            (stream, change.sequence - 1, event_type)
        };
        let mut expected: Vec<_> = changes.iter().map(expected).collect();
        expected.sort_unstable();
        assert_eq!(stored, expected);
    }
}

/// The new cinema goes on with each show, and takes new ones. `free` says how many seats of each are free.
fn use_new(new: &Server, mut shows: Seats, free: &BTreeMap<String, usize>) {
    let at = new.address();
    let is = |answer: std::io::Result<Answer>, status, text: &str| {
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (status, text));
    };
    for (show, seats) in &mut shows {
        if free[show] > 0 {
            let seat = (0..).find(|seat| !seats.contains(seat)).unwrap();
            let answer = change(at, (show, seat), "RESERVE", "");
            is(answer, 202, "Seat reserved");
            seats.insert(seat);
        }
        for &seat in &*seats {
            let answer = change(at, (show, seat), "RESERVE", "");
            is(answer, 400, "SEAT_NOT_AVAILABLE");
        }
        let seat = seats.pop_last().unwrap();
        let answer = change(at, (show, seat), "CANCEL_RESERVATION", "");
        is(answer, 202, "Reservation cancelled");
        is(create(at, show, 10, ""), 409, "SHOW_ALREADY_EXISTS");
    }
    let show = "ffffffff-0000-4000-8000-000000000000";
    is(create(at, show, 10, ""), 201, "Show created");
    let answer = change(at, (show, 9), "RESERVE", "");
    is(answer, 202, "Seat reserved");
    shows.insert(show.to_owned(), BTreeSet::from([9]));
    let free = shows_are(new, &shows);
    wait_until("the read model counts them", || free_seats(new) == free);
}

/// The new cinema shows these seats as reserved. Returns how many seats of each show are free.
fn shows_are(new: &Server, shows: &Seats) -> BTreeMap<String, usize> {
    let mut free = BTreeMap::new();
    for (show, seats) in shows {
        let shown = get(new.address(), &format!("/shows/{show}")).unwrap();
        assert_eq!(&reserved(&shown), seats, "{show}");
        free.insert(show.clone(), shown.body.matches("AVAILABLE").count());
    }
    free
}

/// So many seats of each show are free by the read model of the new cinema.
fn free_seats(new: &Server) -> BTreeMap<String, usize> {
    let rows = get(new.address(), "/available-seats?limit=1000").unwrap();
    let rows: Vec<Value> = serde_json::from_str(&rows.body).unwrap();
    let row = |row: &Value| {
        let show = row["showId"].as_str().unwrap().to_owned();
        let free = usize::try_from(row["availableSeats"].as_u64().unwrap()).unwrap();
        (show, free)
    };
    rows.iter().map(row).collect()
}

/// How many events an import says that it has stored.
fn imported(report: &str) -> u64 {
    first_number(report.strip_prefix("imported ").expect(report))
}

fn first_number(text: &str) -> u64 {
    text.split(' ').next().unwrap().parse().unwrap()
}

/// An import that follows.
struct Follower {
    child: Child,
    /// What was imported before.
    before: u64,
    /// What it has imported when it had caught up last.
    caught_up: Arc<Mutex<u64>>,
}

impl Follower {
    fn start(command: &mut Command, before: u64) -> Self {
        let mut child = Child::spawn(command.stderr(Stdio::piped())).unwrap();
        let lines = BufReader::new(child.take_errors().unwrap()).lines();
        let caught_up = Arc::<Mutex<u64>>::default();
        let told = Arc::clone(&caught_up);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.strip_prefix("caught up: ") {
                    Some(count) => *told.lock().unwrap() = first_number(count),
                    None => eprintln!("{line}"),
                }
            }
        });
        Self {
            child,
            before,
            caught_up,
        }
    }

    /// Waits until it has caught up with as many events, those imported before included.
    fn wait(&self, what: &str, is_so: impl Fn(u64) -> bool) {
        wait_until(what, || {
            is_so(self.before + *self.caught_up.lock().unwrap())
        });
    }

    /// Ctrl-C.
    fn end(mut self) {
        self.child.signal(Signal::SIGINT);
        assert!(self.child.wait().unwrap().success());
    }
}
