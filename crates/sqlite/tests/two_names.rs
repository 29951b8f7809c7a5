//! One store under two names, or a name that comes to lead elsewhere, with kills: nothing that was acknowledged is
//! lost.
//!
//! What happened: lock, write-ahead log and note of a store went by its name. Through a hard link two processes ran on
//! one file, used the same positions twice, and of 600 acknowledged events 300 were gone, while `gesta verify` found
//! nothing wrong. A folder that was moved or removed under a running process took its events to where nobody looked.
//! Now the second process is refused, whatever the name; a file that was moved without what belongs to it is refused;
//! and a process whose file is gone acknowledges nothing more, and still makes a backup.
//!
//! How: each trial draws what happens, from links of both sorts over mounts to moves, and when; processes append until
//! they are killed or stopped. In the end one set of files must hold all that was acknowledged. Mounts are made in a
//! mount namespace of their own, which needs root; without it, the kinds that need one are skipped, loudly.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

use common::{Author, event, try_open, verify, whole_log};
use gesta_core::backend::{Backend, BatchOutcome};
use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_sqlite::{SqliteBackend, SqliteConfig};

/// Tells the child which store to open.
const STORE: &str = "GESTA_TWO_NAMES_STORE";
/// Is set where mounts are nobody else's.
const OWN_MOUNTS: &str = "GESTA_TWO_NAMES_OWN_MOUNTS";
/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);
const TRIALS: (usize, usize) = (28, 200);

/// How a store gets a second name, or its name leads elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    HardLink,
    HardLinksOfAll,
    LinkToFile,
    LinkToFolder,
    LinkToNothing,
    MoveFile,
    MoveFileAndLog,
    MoveFolder,
    MoveFolderAndLink,
    ReplaceFolder,
    ReplaceFile,
    RemoveFolder,
    RemoveLockFile,
    CopyFolder,
    LinkChain,
    LinkSwitched,
    ExchangeFolders,
    MoveLog,
    ProcessRoot,
    ProcessFile,
    MountFolder,
    MountFile,
    MountFileElsewhere,
    MountOverFolder,
    OverlayUpper,
    OverlayLower,
    ChangedRoot,
    OwnProcessIds,
}

const WITHOUT_MOUNTS: [Kind; 20] = [
    Kind::HardLink,
    Kind::HardLinksOfAll,
    Kind::LinkToFile,
    Kind::LinkToFolder,
    Kind::LinkToNothing,
    Kind::MoveFile,
    Kind::MoveFileAndLog,
    Kind::MoveFolder,
    Kind::MoveFolderAndLink,
    Kind::ReplaceFolder,
    Kind::ReplaceFile,
    Kind::RemoveFolder,
    Kind::RemoveLockFile,
    Kind::CopyFolder,
    Kind::LinkChain,
    Kind::LinkSwitched,
    Kind::ExchangeFolders,
    Kind::MoveLog,
    Kind::ProcessRoot,
    Kind::ProcessFile,
];
const WITH_MOUNTS: [Kind; 8] = [
    Kind::MountFolder,
    Kind::MountFile,
    Kind::MountFileElsewhere,
    Kind::MountOverFolder,
    Kind::OverlayUpper,
    Kind::OverlayLower,
    Kind::ChangedRoot,
    Kind::OwnProcessIds,
];

impl Kind {
    /// Returns whether what the second process opens may be a store of its own: another one, or a whole copy.
    fn gives_another_store(self) -> bool {
        matches!(
            self,
            Self::ReplaceFolder
                | Self::ReplaceFile
                | Self::RemoveFolder
                | Self::CopyFolder
                | Self::LinkSwitched
                | Self::ExchangeFolders
                | Self::MountOverFolder
                | Self::OverlayLower
        )
    }
}

/// Appends until it is killed or stopped; tells every id once it is acknowledged, and does what it is told to.
#[tokio::test]
async fn child() {
    let Ok(store) = std::env::var(STORE) else {
        return;
    };
    let mut told = fs::File::options()
        .write(true)
        .open("/dev/stderr")
        .expect("opens");
    let mut tell = |text: String| writeln!(told, "{}", text.replace('\n', " ")).expect("writes");
    let mut config = SqliteConfig::file(&store);
    // Short, so that there are many checkpoints.
    config.wal_bytes_max = 256 * 1024;
    config.readers = 2;
    let backend = match SqliteBackend::open(config) {
        Ok(backend) => backend,
        Err(error) => return tell(format!("refused {error}")),
    };
    tell(format!("opened {}", backend.history().incarnation));
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut author = Author::new(&backend).await;
    let name = uuid::Uuid::new_v4();
    let mut is_closed = false;
    loop {
        let command = match is_closed {
            true => commands.recv().ok(),
            false => match commands.try_recv() {
                Ok(command) => Some(command),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return,
            },
        };
        match command
            .as_deref()
            .map(|line| line.split_once(' ').unwrap_or((line, "")))
        {
            Some(("stop", _)) => {
                backend.close().await;
                return;
            }
            Some((_, to)) => {
                let mut copy = backend.backup_file().await.expect("copies");
                let mut bytes = Vec::new();
                copy.read_to_end(&mut bytes).expect("reads");
                fs::write(to, bytes).expect("writes");
                tell("saved".into());
            }
            None if is_closed => return,
            None => {
                let batch = author.batch(&[event(
                    &format!("s-{name}"),
                    &format!("T-{name}"),
                    &"x".repeat(500),
                )]);
                match author.submit(batch.clone()).await {
                    BatchOutcome::Committed => tell(format!("stored {}", batch.rows[0].id)),
                    BatchOutcome::Missed => tell("missed".into()),
                    other => {
                        is_closed = true;
                        tell(format!("closed {other:?}"));
                    }
                }
            }
        }
    }
}

/// A process that has, or wanted, the store.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The incarnation of the store that it has opened.
    opened: Option<String>,
    refused: String,
    acknowledged: BTreeSet<String>,
    closed: Option<String>,
}

impl Process {
    fn start(store: &Path) -> Self {
        Self::run(Command::new(std::env::current_exe().expect("known")), store)
    }

    /// Starts a process in a mount namespace of its own, in which `from` is mounted at `to`.
    fn start_with_mount(from: &Path, to: &Path, store: &Path) -> Self {
        let mut command = Command::new("unshare");
        command
            .args([
                "-m",
                "sh",
                "-c",
                "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"",
                "sh",
            ])
            .args([from, to])
            .arg(std::env::current_exe().expect("known"));
        Self::run(command, store)
    }

    /// Starts a process in namespaces of its own, after a script that gets the folder `home`.
    fn start_apart(namespaces: &str, script: &str, home: &Path, store: &Path) -> Self {
        let script = format!("{script}; exec \"$@\"");
        let mut command = Command::new("unshare");
        command
            .args([namespaces, "--kill-child", "sh", "-ec", &script])
            .arg(home)
            .arg(std::env::current_exe().expect("known"));
        Self::run(command, store)
    }

    fn run(mut command: Command, store: &Path) -> Self {
        let mut child = command
            .args(["--exact", "child", "--nocapture"])
            .env(STORE, store)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let (sender, lines) = channel();
        let from = BufReader::new(child.stderr.take().expect("piped"));
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut process = Self {
            orders: child.stdin.take(),
            child,
            lines,
            opened: None,
            refused: String::new(),
            acknowledged: BTreeSet::new(),
            closed: None,
        };
        while process.opened.is_none() && process.refused.is_empty() {
            assert!(
                process.take_line(),
                "a process says whether it has the store"
            );
        }
        process
    }

    /// Takes the next line; false if there will be none.
    fn take_line(&mut self) -> bool {
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => panic!("no line comes"),
        };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("opened", text) => self.opened = Some(text.to_owned()),
            ("refused", text) => self.refused = text.to_owned(),
            ("stored", id) => drop(self.acknowledged.insert(id.to_owned())),
            ("closed", text) => self.closed = Some(text.to_owned()),
            ("missed", _) => panic!("another process has appended to the same file"),
            ("saved", _) => {}
            // What the test harness and the log say.
            _ => eprintln!("    {line}"),
        }
        true
    }

    /// Waits until it has acknowledged some more, or is closed for writing.
    fn go_on(&mut self, events: usize) {
        let until = self.acknowledged.len() + events;
        while self.opened.is_some() && self.closed.is_none() && self.acknowledged.len() < until {
            assert!(self.take_line(), "it goes on: {}", self.refused);
        }
    }

    fn until_closed(&mut self) -> &str {
        while self.closed.is_none() {
            assert!(self.take_line(), "it goes on");
        }
        self.closed.as_deref().expect("closed")
    }

    fn save(&mut self, to: &Path) {
        writeln!(
            self.orders.as_mut().expect("piped"),
            "backup {}",
            to.display()
        )
        .expect("runs");
        while !to.exists() {
            assert!(self.take_line(), "it goes on");
        }
    }

    fn end(mut self, how: End) -> BTreeSet<String> {
        match how {
            End::Kill => self.child.kill().expect("killed"),
            // One that was refused has ended.
            End::Stop => drop(writeln!(self.orders.as_mut().expect("piped"), "stop")),
        }
        // What it told after we stopped listening counts too.
        while self.take_line() {}
        self.child.wait().expect("ended");
        self.acknowledged
    }
}

#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Stop,
}

fn draw_end(random: &mut Random) -> End {
    // Kills are what loses events.
    if random.below(3) == 0 {
        End::Stop
    } else {
        End::Kill
    }
}

fn sh(script: &str, arguments: &[&Path]) {
    let done = Command::new("sh")
        .args(["-ec", script, "sh"])
        .args(arguments)
        .status();
    assert!(done.expect("starts").success(), "{script}");
}

/// The folders of a trial.
struct Folders {
    home: PathBuf,
    a: PathBuf,
    b: PathBuf,
    c: PathBuf,
}

impl Folders {
    fn new(home: &Path) -> Self {
        let folders = Self {
            home: home.to_owned(),
            a: home.join("a"),
            b: home.join("b"),
            c: home.join("c"),
        };
        fs::create_dir(&folders.a).expect("creates");
        fs::create_dir(&folders.b).expect("creates");
        folders
    }

    /// Does what the kind says. Returns the name by which the second process opens the store.
    fn apply(&self, kind: Kind) -> PathBuf {
        let Self { home, a, b, c } = self;
        let (first, second) = (a.join("gesta.db"), b.join("gesta.db"));
        match kind {
            Kind::HardLink => fs::hard_link(&first, &second).expect("links"),
            Kind::HardLinksOfAll => sh("ln \"$1\"/* \"$2\"", &[a, b]),
            Kind::LinkToFile => symlink(&first, &second).expect("links"),
            Kind::LinkToFolder => {
                symlink(a, c).expect("links");
                return c.join("gesta.db");
            }
            Kind::LinkChain => {
                symlink("two", b.join("one")).expect("links");
                symlink("../b/three", b.join("two")).expect("links");
                symlink(a, b.join("three")).expect("links");
                return b.join("one/gesta.db");
            }
            Kind::LinkSwitched => {
                fs::remove_file(&second).expect("removes");
                fs::create_dir(c).expect("creates");
                symlink(c.join("gesta.db"), &second).expect("links");
            }
            Kind::ExchangeFolders => {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    a,
                    rustix::fs::CWD,
                    b,
                    rustix::fs::RenameFlags::EXCHANGE,
                )
                .expect("exchanges");
                return first;
            }
            Kind::MoveLog => {
                // A store that was closed has no log.
                let _ = fs::rename(a.join("gesta.db-wal"), b.join("gesta.db-wal"));
                return first;
            }
            Kind::ProcessRoot => {
                let root = PathBuf::from(format!("/proc/{}/root", std::process::id()));
                return root.join(first.strip_prefix("/").expect("absolute"));
            }
            Kind::ProcessFile => {
                // Our own handle: another one of a process that has the store would drop that one's locks.
                let file = fs::File::open(&first).expect("opens");
                let number = std::os::fd::AsRawFd::as_raw_fd(&file);
                std::mem::forget(file);
                return PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
            }
            Kind::ChangedRoot => sh("mount --rbind / \"$1\"", &[b]),
            Kind::OwnProcessIds => return first,
            // The first process has come by the link, which led to nothing then.
            Kind::LinkToNothing | Kind::RemoveLockFile => {
                if kind == Kind::RemoveLockFile {
                    fs::remove_file(a.join("gesta.db.lock")).expect("removes");
                }
                return first;
            }
            Kind::MoveFile => fs::rename(&first, &second).expect("moves"),
            Kind::MoveFileAndLog => {
                for suffix in ["", "-wal"] {
                    let name = format!("gesta.db{suffix}");
                    // A store that was closed has no log.
                    let _ = fs::rename(a.join(&name), b.join(&name));
                }
            }
            Kind::MoveFolder => {
                fs::rename(a, c).expect("moves");
                return c.join("gesta.db");
            }
            Kind::MoveFolderAndLink => {
                fs::rename(a, c).expect("moves");
                symlink(c, a).expect("links");
                return first;
            }
            Kind::ReplaceFolder => {
                fs::rename(a, c).expect("moves");
                fs::create_dir(a).expect("creates");
                return first;
            }
            Kind::ReplaceFile => {
                fs::rename(&first, b.join("old.db")).expect("moves");
                return first;
            }
            Kind::RemoveFolder => {
                fs::remove_dir_all(a).expect("removes");
                return first;
            }
            Kind::CopyFolder => {
                sh("cp -a \"$1\" \"$2\"", &[a, c]);
                return c.join("gesta.db");
            }
            Kind::MountFolder => sh("mount --bind \"$1\" \"$2\"", &[a, b]),
            Kind::MountFile => sh(
                "touch \"$2\"; mount --bind \"$1\" \"$2\"",
                &[&first, &second],
            ),
            Kind::MountFileElsewhere => fs::write(&second, "").expect("writes"),
            Kind::MountOverFolder => {
                sh("mount -t tmpfs none \"$1\"", &[a]);
                return first;
            }
            Kind::OverlayUpper => {
                let folders = [home.join("lower"), a.clone(), home.join("work"), b.clone()];
                overlay(&folders);
            }
            Kind::OverlayLower => {
                let folders = [a.clone(), home.join("upper"), home.join("work"), b.clone()];
                overlay(&folders);
            }
        }
        second
    }
}

fn overlay(folders: &[PathBuf; 4]) {
    sh(
        "mkdir -p \"$1\" \"$2\" \"$3\"; mount -t overlay overlay -o \"lowerdir=$1,upperdir=$2,workdir=$3\" \"$4\"",
        &folders.each_ref().map(PathBuf::as_path),
    );
}

/// Reads the events of a store made of a database, a write-ahead log and a note; `None` if it is refused or damaged, as
/// one of files that do not belong together is.
async fn read_together(main: &Path, beside: [Option<&PathBuf>; 2]) -> Option<BTreeSet<String>> {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    fs::copy(main, &path).expect("copies");
    for (suffix, from) in ["-wal", "-end"].into_iter().zip(beside) {
        if let Some(from) = from {
            fs::copy(from, home.path().join(format!("gesta.db{suffix}"))).expect("copies");
        }
    }
    let backend = try_open(&path).ok()?;
    let read = backend.read_log(whole_log()).await;
    let is_healthy = read.is_ok() && verify(&backend).await.is_healthy();
    backend.close().await;
    let events = read.ok()?.events;
    is_healthy.then(|| events.iter().map(|event| event.id.to_string()).collect())
}

/// Checks that one store that can be found holds all that was acknowledged: as it lies there, or, if it is refused,
/// after somebody has brought the files together that belong together.
async fn judge(what: &str, acknowledged: &BTreeSet<String>, names: &[PathBuf]) {
    let there = |suffix: &str| -> Vec<PathBuf> {
        let all = names.iter().map(|name| {
            let mut name = name.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        });
        all.filter(|name| name.is_file()).collect()
    };
    let (mains, logs, notes) = (there(""), there("-wal"), there("-end"));
    let or_none = |names: &'_ [PathBuf]| -> Vec<Option<PathBuf>> {
        names.iter().cloned().map(Some).chain([None]).collect()
    };
    let mut best = 0;
    for main in &mains {
        for log in or_none(&logs) {
            for note in or_none(&notes) {
                let found = read_together(main, [log.as_ref(), note.as_ref()]).await;
                let found = found.unwrap_or_default();
                best = best.max(found.intersection(acknowledged).count());
                if best == acknowledged.len() {
                    return;
                }
            }
        }
    }
    panic!(
        "{what}: {} acknowledged, and at most {best} of them in one store",
        acknowledged.len()
    );
}

async fn trial(kind: Kind, random: &mut Random) {
    let home = tempfile::tempdir().expect("dir");
    let home = fs::canonicalize(home.path()).expect("exists");
    let folders = Folders::new(&home);
    let mut first_name = folders.a.join("gesta.db");
    if matches!(kind, Kind::LinkToNothing | Kind::LinkSwitched) {
        symlink(&first_name, folders.b.join("gesta.db")).expect("links");
        first_name = folders.b.join("gesta.db");
    }
    // Events by the incarnation of their store, and by the process if a store may be a whole copy.
    let mut acknowledged = BTreeMap::<String, BTreeSet<String>>::new();
    let mut first = Process::start(&first_name);
    let incarnation = first.opened.clone().expect("a new store");
    first.go_on(random.below(30));
    // A store that nobody has open can be replaced or removed as one likes.
    let must_run = matches!(kind, Kind::RemoveFolder | Kind::MountOverFolder);
    let mut running = None;
    if must_run || random.below(3) > 0 {
        running = Some(first);
    } else {
        let told = first.end(draw_end(random));
        acknowledged
            .entry(incarnation.clone())
            .or_default()
            .extend(told);
    }
    let second_name = folders.apply(kind);
    let saved = home.join("saved.db");
    if kind == Kind::RemoveFolder {
        let first = running.as_mut().expect("runs");
        let text = first.until_closed().to_owned();
        assert!(
            text.contains("was removed") && text.contains("gesta backup"),
            "{text}"
        );
        first.save(&saved);
        // What was saved is a backup, and becomes a store as a restored one does.
        SqliteBackend::new_incarnation(&SqliteConfig::file(&saved)).expect("a backup");
    }
    let mut second = match kind {
        Kind::MountFileElsewhere => {
            let first = folders.a.join("gesta.db");
            Process::start_with_mount(&first, &second_name, &second_name)
        }
        Kind::ChangedRoot => {
            // Below the other root the store has the name that it has here.
            let script = "root=\"$0/b\"; exec chroot \"$root\" \"$@\"";
            let first = folders.a.join("gesta.db");
            Process::start_apart("-m", script, &home, &first)
        }
        Kind::OwnProcessIds => {
            Process::start_apart("-mpf", "mount -t proc proc /proc", &home, &second_name)
        }
        _ => Process::start(&second_name),
    };
    let (said, has_first) = (second.opened.clone(), running.is_some());
    if has_first && !kind.gives_another_store() {
        assert_eq!(said, None, "{kind:?}: two processes have one store");
    }
    if said.is_none() {
        assert!(second.refused.contains("gesta.db"), "{}", second.refused);
    }
    if let Some(first) = running.as_mut() {
        first.go_on(random.below(20));
    }
    second.go_on(random.below(30));
    let mut ends = vec![second];
    ends.extend(running);
    if random.below(2) == 0 {
        ends.reverse();
    }
    let copies = matches!(kind, Kind::CopyFolder | Kind::OverlayLower);
    for process in ends {
        let opened = process.opened.clone();
        let told = process.end(draw_end(random));
        let of_copy = copies && opened == said && !told.is_empty() && !has_first;
        let store = opened.unwrap_or_default();
        let store = if of_copy {
            format!("copy of {store}")
        } else {
            store
        };
        acknowledged.entry(store).or_default().extend(told);
    }
    // Once more by either name, after all that.
    let again = if random.below(2) == 0 {
        &first_name
    } else {
        &second_name
    };
    if !copies && kind != Kind::MountFileElsewhere {
        let mut third = Process::start(again);
        third.go_on(random.below(20));
        let store = third.opened.clone().unwrap_or_default();
        acknowledged
            .entry(store)
            .or_default()
            .extend(third.end(End::Kill));
    }
    let mut names = vec![
        folders.a.join("gesta.db"),
        folders.b.join("gesta.db"),
        folders.b.join("old.db"),
        folders.c.join("gesta.db"),
        saved,
    ];
    if kind == Kind::MountOverFolder {
        let above = folders.home.join("above");
        sh("cp -a \"$1\" \"$2\"; umount \"$1\"", &[&folders.a, &above]);
        names.push(above.join("gesta.db"));
    }
    for (store, events) in &acknowledged {
        judge(&format!("{kind:?}, store {store}"), events, &names).await;
    }
    if matches!(
        kind,
        Kind::MountFolder | Kind::OverlayUpper | Kind::OverlayLower
    ) {
        sh("umount \"$1\"", &[&folders.b]);
    }
    if kind == Kind::ChangedRoot {
        sh("umount -l \"$1\"", &[&folders.b]);
    }
    if kind == Kind::MountFile {
        sh("umount \"$1\"", &[&folders.b.join("gesta.db")]);
    }
    fs::remove_dir_all(&home).expect("removes");
}

async fn run_trials(kinds: &[Kind]) {
    let seed = depth::seed();
    println!("seed {seed} (GESTA_SEED)");
    let mut random = Random::new(seed);
    let trials = depth::count(TRIALS.0, TRIALS.1);
    let begin = random.below(kinds.len());
    let mut done = BTreeMap::<Kind, usize>::new();
    for number in 0..trials {
        // Each kind has its turn, also in few trials.
        let kind = kinds[(begin + number) % kinds.len()];
        eprintln!("  trial {number}: {kind:?}");
        trial(kind, &mut random).await;
        *done.entry(kind).or_default() += 1;
    }
    println!("{trials} trials: {done:?}");
}

/// Runs a test of this program once more where mounts are nobody else's. Returns false if this user may not do that.
fn run_with_own_mounts(test: &str) -> bool {
    let alone = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs none /mnt"])
        .status();
    if !alone.is_ok_and(|status| status.success()) {
        println!("skipped: what needs mounts, since this user may not make a mount namespace");
        return false;
    }
    let done = Command::new("unshare")
        .args(["-m", "--"])
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", test, "--nocapture"])
        .env(OWN_MOUNTS, "1")
        .status()
        .expect("starts");
    assert!(done.success(), "see above");
    true
}

/// Goal: whatever second name a store gets, and whatever becomes of its name, no acknowledged event is lost.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_under_two_names() {
    if std::env::var_os(OWN_MOUNTS).is_some() {
        let kinds: Vec<_> = WITHOUT_MOUNTS.into_iter().chain(WITH_MOUNTS).collect();
        return run_trials(&kinds).await;
    }
    if !run_with_own_mounts("nothing_is_lost_under_two_names") {
        run_trials(&WITHOUT_MOUNTS).await;
    }
}

/// Goal: a store whose disk is read-only is not ready and says so, and appends again once the disk can be written.
#[tokio::test]
async fn a_disk_may_be_read_only_for_a_while() {
    if std::env::var_os(OWN_MOUNTS).is_none() {
        run_with_own_mounts("a_disk_may_be_read_only_for_a_while");
        return;
    }
    let home = tempfile::tempdir().expect("dir");
    let home = fs::canonicalize(home.path()).expect("exists");
    let backend = try_open(&home.join("gesta.db")).expect("opens");
    let mut author = Author::new(&backend).await;
    author.store(&[event("a", "T", "1")]).await;
    // The mount through which the files were opened cannot become read-only while they are open.
    sh(
        "mount --bind \"$1\" \"$1\"; mount -o remount,ro,bind \"$1\"",
        &[&home],
    );
    let text = backend.ready().expect_err("read-only").to_string();
    assert!(
        text.contains("read-only") && text.contains("remount,rw"),
        "{text}"
    );
    let batch = author.batch(&[event("a", "T", "2")]);
    let refused = author.submit(batch.clone()).await;
    assert!(matches!(refused, BatchOutcome::Failed(_)), "{refused:?}");
    sh("mount -o remount,rw,bind \"$1\"", &[&home]);
    backend.ready().expect("ready again");
    let stored = author.submit(batch).await;
    assert!(matches!(stored, BatchOutcome::Committed), "{stored:?}");
    sh("umount \"$1\"", &[&home]);
    backend.close().await;
}

/// Goal: a store whose file system has failed is not ready, although nobody appends and nothing says that the disk is
/// read-only.
#[tokio::test]
async fn a_disk_that_takes_no_writes_is_noticed_without_an_append() {
    if std::env::var_os(OWN_MOUNTS).is_none() {
        run_with_own_mounts("a_disk_that_takes_no_writes_is_noticed_without_an_append");
        return;
    }
    let home = tempfile::tempdir().expect("dir");
    let make = "cd \"$1\"; truncate -s 16M image; mkfs.ext4 -q image; mkdir disk; mount -o loop image disk";
    let made = Command::new("sh")
        .args(["-ec", make, "sh"])
        .arg(home.path())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: this machine mounts no disk from a file");
        return;
    }
    let disk = home.path().join("disk");
    let backend = try_open(&disk.join("gesta.db")).expect("opens");
    backend.ready().expect("ready");
    // As the kernel does when it finds an error in the file system.
    sh("mount -o remount,abort \"$1\"", &[&disk]);
    let told = async {
        loop {
            match backend.ready() {
                Err(error) => return error.to_string(),
                Ok(()) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let text = tokio::time::timeout(PATIENCE, told).await.expect("told");
    assert!(text.contains("takes no writes"), "{text}");
    backend.close().await;
    sh("umount \"$1\"", &[&disk]);
}

/// Goal: a name in the mounts of another process never leads to the file that has this name here.
///
/// What happened: a link below `/proc/PID/root` was resolved to a path of ours. So `gesta schema new-incarnation` of a
/// store in a container changed the store that had the same path outside of it.
#[tokio::test]
async fn a_name_in_the_mounts_of_another_process_is_no_name_here() {
    if std::env::var_os(OWN_MOUNTS).is_none() {
        run_with_own_mounts("a_name_in_the_mounts_of_another_process_is_no_name_here");
        return;
    }
    let home = tempfile::tempdir().expect("dir");
    let home = fs::canonicalize(home.path()).expect("exists");
    let path = home.join("gesta.db");
    try_open(&path).expect("opens").close().await;
    let before = fs::read(&path).expect("reads");
    let script = "mount -t tmpfs none \"$0\"; echo; exec sleep 600";
    let mut other = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(&home)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut line = String::new();
    BufReader::new(other.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("is mounted");
    let root = PathBuf::from(format!("/proc/{}/root", other.id()));
    let there = root.join(path.strip_prefix("/").expect("absolute"));
    fs::copy(&path, &there).expect("copies");
    let config = SqliteConfig::file(&there);
    let refused = [
        SqliteBackend::open(config.clone()).map(drop),
        SqliteBackend::new_incarnation(&config).map(drop),
        SqliteBackend::compact(&config).map(drop),
        gesta_sqlite::Restoring::begin(&there, &home.join("new.db"), &|| false).map(drop),
    ];
    for refused in refused {
        let error = refused.expect_err("no name here").to_string();
        assert!(error.contains("/proc/PID/root"), "{error}");
    }
    assert_eq!(fs::read(&path).expect("reads"), before);
    other.kill().expect("killed");
    other.wait().expect("ended");
}
