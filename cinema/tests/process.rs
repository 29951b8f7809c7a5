//! The binary itself: started, stopped, killed.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gesta_kit::history::{Creation, Entry, NEVER, Reading, SeatEvent, Seats, Ticks};
use gesta_rig::{Child, Listening};
use nix::sys::signal::Signal;
use support::{Client, DEADLINE};
use tempfile::TempDir;

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// Of the show that is reserved while a process is killed.
const SEATS: u16 = 100;

/// A running cinema. Killed when dropped.
struct Process {
    running: Listening,
    address: SocketAddr,
}

fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cinema"));
    command.args(args).current_dir(folder.path()).env_clear();
    // Any port that is free, unless the arguments name another.
    command.env("CINEMA_LISTEN", "127.0.0.1:0");
    command
}

fn start(folder: &TempDir, args: &[&str]) -> Process {
    let running = Listening::start(&mut command(folder, args));
    let running = running.unwrap_or_else(|log| panic!("it ended: {log:?}"));
    let address = running.address().parse().expect("an address");
    Process { running, address }
}

/// Runs to the end.
fn output(folder: &TempDir, args: &[&str]) -> (Option<i32>, String) {
    let mut command = command(folder, args);
    let mut child = Child::spawn(command.stderr(Stdio::piped())).expect("run");
    let mut stderr = child.take_errors().expect("piped");
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let status = child.wait().expect("it ends");
    let text = reading.join().expect("no panic").expect("text");
    (status.code(), text)
}

/// The store on the database of the tests. Its times are longer than a busy machine stands still.
fn url(server: &gesta_rig::Server) -> String {
    let schema = gesta_rig::fresh_schema();
    let times = "answer_timeout=60&connect_timeout=60";
    format!("{}?schema={schema}&{times}", server.url())
}

impl Process {
    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

/// Reserves seats without a pause on a connection of its own, until the connection ends; tells what became of it.
async fn reserve_until_killed(address: SocketAddr, ticks: Ticks) -> Seats {
    let mut client = Client::connect(address).await;
    let mut history = Seats::counting(SEATS, &ticks);
    history.create(0, Creation::Created);
    let body = r#"{"action":"RESERVE"}"#;
    let all = (0..SEATS).map(|seat| {
        let length = body.len();
        format!("PATCH /shows/{ID}/seats/{seat} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
    });
    let begin = history.tick();
    client.send(all.collect::<String>().as_bytes()).await;
    let mut is_open = true;
    for seat in 0..SEATS {
        let answer = match is_open {
            true => client.answer().await,
            false => None,
        };
        is_open = answer.is_some();
        let (what, end) = match answer {
            Some(answer) if answer.status == 202 => (SeatEvent::Reserved, history.tick()),
            Some(answer) => panic!("{answer:?}"),
            None => (SeatEvent::MaybeReserved, NEVER),
        };
        history.record(Entry {
            place: history.place(0, seat),
            begin,
            end,
            what,
        });
    }
    history
}

/// Looks at the show: what is told, and that as a fact.
async fn look(client: &mut Client, ticks: &Ticks) -> (BTreeSet<u32>, Reading) {
    let tick = || u32::try_from(ticks.next()).expect("small");
    let (show, begin) = (0, tick());
    let shown = client.get(&format!("/shows/{ID}")).await;
    let found = reserved(&shown.body);
    let reading = Reading {
        show,
        begin,
        end: tick(),
        reserved: found.iter().map(|seat| 1_u128 << seat).sum(),
    };
    (found, reading)
}

/// No acknowledged reservation is lost, and no seat reserved that nobody asked for.
fn judge(mut history: Seats, looks: &[Reading]) {
    looks.iter().for_each(|look| history.read(*look));
    let name = |_: u32, seat: u16| format!("seat {seat}");
    gesta_kit::judge::seats::judge(&history, 0, name).assert_clean();
}

fn reserved(shown: &str) -> BTreeSet<u32> {
    let show: serde_json::Value = serde_json::from_str(shown).expect("JSON");
    let seats = show["seats"].as_array().expect("seats").iter();
    let numbers = seats
        .filter(|seat| seat["status"] == "RESERVED")
        .map(|seat| u32::try_from(seat["number"].as_u64().expect("a number")).expect("small"));
    numbers.collect()
}

/// Kill -9 under load: after the restart every acknowledged reservation is there.
async fn survives_kill(folder: &TempDir, args: &[&str]) {
    let mut process = start(folder, args);
    assert_eq!(process.client().await.create(ID, 100).await.status, 201);
    let ticks = Ticks::default();
    let reserving = tokio::spawn(reserve_until_killed(process.address, ticks.clone()));
    let mut watching = process.client().await;
    let three = async {
        loop {
            let (found, reading) = look(&mut watching, &ticks).await;
            if found.len() >= 3 {
                return reading;
            }
        }
    };
    let three = tokio::time::timeout(DEADLINE, three).await;
    let before = three.expect("three seats are reserved");
    process.running.kill();
    let history = reserving.await.expect("no panic");

    let process = start(folder, args);
    let mut client = process.client().await;
    let (found, after) = look(&mut client, &ticks).await;
    judge(history, &[before, after]);
    let taken = *found.first().expect("at least three");
    assert_eq!(client.reserve(ID, taken).await.body, "SEAT_NOT_AVAILABLE");
    let available = 100 - found.len();
    let counted = format!(r#"[{{"showId":"{ID}","availableSeats":{available}}}]"#);
    client.get_until("/available-seats", &counted).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().expect("temporary folder");
    survives_kill(&folder, &[]).await;
    assert!(folder.path().join("cinema-data/cinema.db").exists());
    assert!(folder.path().join("cinema-data/cinema.views.db").exists());
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_on_postgres() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let folder = tempfile::tempdir().expect("temporary folder");
    let url = url(server);
    survives_kill(&folder, &["--store", &url, "--snapshot-every", "10"]).await;
}

#[tokio::test]
async fn two_processes_share_a_database() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let folder = tempfile::tempdir().expect("temporary folder");
    let url = url(server);
    let processes = [
        start(&folder, &["--store", &url]),
        start(&folder, &["--store", &url]),
    ];
    let mut clients = [processes[0].client().await, processes[1].client().await];
    assert_eq!(clients[0].create(ID, 20).await.status, 201);
    assert_eq!(clients[1].create(ID, 20).await.status, 409);
    // Each in turn sees what the other has just done.
    for seat in 0..20_u32 {
        let turn = usize::try_from(seat % 2).expect("small");
        assert_eq!(clients[turn].reserve(ID, seat).await.status, 202);
        let other = &mut clients[1 - turn];
        assert_eq!(other.reserve(ID, seat).await.body, "SEAT_NOT_AVAILABLE");
        let shown = other.get(&format!("/shows/{ID}")).await.body;
        assert_eq!(
            reserved(&shown).len(),
            usize::try_from(seat + 1).expect("small")
        );
    }
    let counted = format!(r#"[{{"showId":"{ID}","availableSeats":0}}]"#);
    for client in &mut clients {
        client.get_until("/available-seats", &counted).await;
    }
}

/// What happened: a cinema that was no node any more, because another process had taken its address, went on.
#[tokio::test]
async fn who_is_no_node_any_more_ends() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("secret"), "a secret of the tests").expect("written");
    let url = url(server);
    let address = gesta_rig::free_address().expect("a port").to_string();
    let mut args = vec!["--store", &url, "--advertise", &address];
    args.extend(["--node=127.0.0.1:0", "--cluster-secret-file=secret"]);
    let mut older = start(&folder, &args);
    let _newer = start(&folder, &args);
    assert_eq!(older.running.wait().code(), Some(1));
}

#[tokio::test]
async fn signals_stop_it_after_running_requests() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut process = start(&folder, &[]);
        let mut client = process.client().await;
        client.create(ID, 100).await;
        let ticks = Ticks::default();
        let reserving = tokio::spawn(reserve_until_killed(process.address, ticks.clone()));
        let (_, before) = look(&mut client, &ticks).await;
        process.running.signal(signal);
        let history = reserving.await.expect("no panic");
        let status = process.running.wait();
        assert_eq!(status.code(), Some(0), "{signal}");
        let process = start(&folder, &[]);
        let mut client = process.client().await;
        let (found, after) = look(&mut client, &ticks).await;
        judge(history, &[before, after]);
        for seat in found {
            client.change(ID, seat, "CANCEL_RESERVATION").await;
        }
    }
}

/// Reserves a seat and pays it, once more if this machine has stood still for longer than a reservation lasts.
async fn reserve_and_pay(client: &mut Client, seat: u32) {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        assert_eq!(client.reserve(ID, seat).await.status, 202);
        let answer = client.change(ID, seat, "PAY").await;
        if answer.status == 202 {
            return assert_eq!(answer.body, "Seat paid");
        }
        assert_eq!(answer.body, "SEAT_NOT_RESERVED");
        let is_late = asked.elapsed() >= Duration::from_secs(2) && begun.elapsed() < DEADLINE;
        assert!(is_late, "given back after {:?}", asked.elapsed());
    }
}

/// Goal: a reservation that is not paid is given back although the process is killed meanwhile; what is paid stays.
#[tokio::test]
async fn what_is_not_paid_is_given_back_after_a_kill() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let args = ["--pay-within", "2s"];
    let path = format!("/shows/{ID}");
    let process = start(&folder, &args);
    let mut client = process.client().await;
    client.create(ID, 100).await;
    let rounds = gesta_kit::depth::count(1, 10);
    let mut process = Some(process);
    for round in 0..rounds {
        let (paid, unpaid) = (3 * round, 3 * round + 1);
        let running = process.take().expect("runs");
        let mut client = running.client().await;
        assert_eq!(client.reserve(ID, unpaid).await.status, 202);
        reserve_and_pay(&mut client, paid).await;
        // It is killed.
        drop(running);
        let running = start(&folder, &args);
        let mut client = running.client().await;
        let given_back = format!(r#"{{"number":{unpaid},"status":"AVAILABLE""#);
        let shown = client.get_until_it_has(&path, &given_back).await;
        for round in 0..=round {
            let paid = format!(r#"{{"number":{},"status":"PAID""#, 3 * round);
            assert!(shown.body.contains(&paid), "{}", shown.body);
        }
        process = Some(running);
    }
}

/// An address that is refused is refused before anything is made.
#[test]
fn a_refused_address_leaves_no_store_behind() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (code, text) = output(&folder, &["--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--insecure"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("read").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn wrong_usage_has_its_exit_code() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for (args, code, message) in [
        (&["--store", "mysql://u:secret@h/d"][..], 2, "sqlite:PATH"),
        (&["--listen", "nowhere"], 2, "--listen"),
        (&["--listen", "8080"], 2, "such as 127.0.0.1:8080"),
        (&["--log", "a=b=c"], 2, "log filter"),
        (
            &["--store", "sqlite::memory:", "--listen", "0.0.0.0:0"],
            1,
            "--insecure",
        ),
        (
            &["--store", "postgres://127.0.0.1:1/d?connect_timeout=1"],
            5,
            "connect",
        ),
    ] {
        let (found, text) = output(&folder, args);
        assert_eq!(found, Some(code), "{args:?}: {text}");
        assert!(text.contains(message), "{args:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    let _first = start(&folder, &[]);
    let (code, text) = output(&folder, &[]);
    assert_eq!(
        code,
        Some(5),
        "a store in a file is for one process: {text}"
    );
}
