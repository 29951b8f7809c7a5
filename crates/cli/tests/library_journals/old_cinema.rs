//! Applications that use the journal of a cinema: one on Pekko, and one that only writes rows as Pekko would.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gesta_rig::{find_binaries, shared};

use crate::said;
use crate::support::{Limit, wait_until};

/// A change that the old cinema has confirmed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Change {
    pub(crate) key: String,
    /// The number of the event, from 1.
    pub(crate) sequence: u64,
    pub(crate) manifest: String,
    /// The seat, or the number of all seats of a new show.
    pub(crate) number: u32,
}

/// The cinema that is to be replaced.
pub(crate) trait OldCinema {
    fn start(&mut self);
    /// Lets it confirm some more changes.
    fn goes_on(&mut self);
    fn stop(&mut self);
    /// All changes that it has confirmed so far, in no order.
    fn confirmed(&self) -> Vec<Change>;
    /// What its sessions are called in `pg_stat_activity`, if it has any.
    fn session(&self) -> Option<&'static str>;
}

/// `journal_programs/pekko/Cinema.java`.
pub(crate) struct Pekko {
    classpath: String,
    database: String,
    running: Option<(Child, JoinHandle<()>)>,
    confirmed: Arc<Mutex<Vec<Change>>>,
}

/// So many changes at least come before and after each step.
const CHANGES: usize = 300;

impl Pekko {
    pub(crate) fn of(classpath: String, url: &str) -> Self {
        Self {
            classpath,
            database: url.rsplit_once('/').unwrap().1.to_owned(),
            running: None,
            confirmed: Arc::default(),
        }
    }

    fn count(&self) -> usize {
        self.confirmed.lock().unwrap().len()
    }
}

/// Reads a line that the program prints.
fn told(line: &str) -> Change {
    let parts: Vec<&str> = line.split(' ').collect();
    let [key, sequence, manifest, number] = parts.try_into().expect(line);
    Change {
        key: key.to_owned(),
        sequence: sequence.parse().unwrap(),
        manifest: manifest.to_owned(),
        number: number.parse().unwrap(),
    }
}

impl OldCinema for Pekko {
    fn start(&mut self) {
        let address = shared().unwrap().addr();
        let mut java = Command::new("java");
        java.args(["-cp", &self.classpath, "Cinema"])
            .arg(address.ip().to_string())
            .arg(address.port().to_string())
            .args([&self.database, "postgres"]);
        let pipes = java.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let confirmed = Arc::clone(&self.confirmed);
        let reading = std::thread::spawn(move || {
            for line in lines {
                confirmed.lock().unwrap().push(told(&line.unwrap()));
            }
        });
        self.running = Some((child, reading));
    }

    fn goes_on(&mut self) {
        let before = self.count();
        wait_until("the old cinema goes on", || {
            let (child, _) = self.running.as_mut().unwrap();
            assert_eq!(child.try_wait().unwrap(), None, "it has ended");
            self.count() >= before + CHANGES
        });
    }

    fn stop(&mut self) {
        let (mut child, reading) = self.running.take().unwrap();
        let _limit = Limit::of(&child);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        reading.join().unwrap();
    }

    fn confirmed(&self) -> Vec<Change> {
        self.confirmed.lock().unwrap().clone()
    }

    fn session(&self) -> Option<&'static str> {
        Some("PostgreSQL JDBC Driver")
    }
}

impl Drop for Pekko {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Writes rows as Pekko would, by statements.
pub(crate) struct Rows {
    url: String,
    shows: Vec<String>,
    confirmed: Vec<Change>,
}

/// Seats of its shows.
const SEATS: u8 = 10;

impl Rows {
    pub(crate) fn of(url: &str) -> Self {
        let this = Self {
            url: url.to_owned(),
            shows: Vec::new(),
            confirmed: Vec::new(),
        };
        this.execute(
            "CREATE TABLE event_journal (ordering bigserial UNIQUE, persistence_id varchar(255) NOT NULL,
                 sequence_number bigint NOT NULL, deleted boolean NOT NULL DEFAULT false, writer varchar(255) NOT NULL
                 DEFAULT 'w', write_timestamp bigint DEFAULT 1700000000000, adapter_manifest varchar(255),
                 event_ser_id int NOT NULL DEFAULT 4711, event_ser_manifest varchar(255) NOT NULL,
                 event_payload bytea NOT NULL, meta_ser_id int, meta_ser_manifest varchar(255), meta_payload bytea,
                 PRIMARY KEY (persistence_id, sequence_number))",
        );
        this
    }

    fn execute(&self, sql: &str) {
        let mut psql = Command::new(find_binaries().unwrap().join("psql"));
        said(psql.args([&self.url, "-qc", sql]));
    }

    /// Returns the statement that writes an event of a show after those that it has.
    fn persist(&mut self, show: &str, manifest: &str, number: u8) -> String {
        let change = Change {
            key: format!("Show|{show}"),
            sequence: self.events_of(show) + 1,
            manifest: manifest.to_owned(),
            number: number.into(),
        };
        let bytes = match manifest {
            "ShowCreated" => created(show, number),
            _ => [text(1, show), seat_number(2, number), vec![3 << 3, 1]].concat(),
        };
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let insert = format!(
            "INSERT INTO event_journal (persistence_id, sequence_number, event_ser_manifest, event_payload)
             VALUES ('{}', {}, '{manifest}', '\\x{hex}');",
            change.key, change.sequence
        );
        self.confirmed.push(change);
        insert
    }

    fn events_of(&self, show: &str) -> u64 {
        let key = format!("Show|{show}");
        let events = self.confirmed.iter().filter(|change| change.key == key);
        events.count() as u64
    }
}

fn text(field: u8, text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[field << 3 | 2, length], text.as_bytes()].concat()
}

/// Fields without a value are not written.
fn seat_number(field: u8, number: u8) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        number => vec![field << 3, number],
    }
}

fn created(show: &str, seats: u8) -> Vec<u8> {
    let price = [text(1, "100.00"), text(2, "EUR")].concat();
    let price = [&[3 << 3 | 2, u8::try_from(price.len()).unwrap()], &*price].concat();
    let seat = |number| {
        let seat = [seat_number(1, number), vec![2 << 3, 1], price.clone()].concat();
        [vec![3 << 3 | 2, u8::try_from(seat.len()).unwrap()], seat].concat()
    };
    let seats: Vec<u8> = (0..seats).flat_map(seat).collect();
    [text(1, show), text(2, "Ran"), seats, vec![4 << 3, 1]].concat()
}

impl OldCinema for Rows {
    fn start(&mut self) {}

    /// Creates a show, and reserves a seat of each or gives it back.
    fn goes_on(&mut self) {
        let show = format!("01890a5d-ac96-774b-bcce-{:012}", self.shows.len());
        let mut inserts = self.persist(&show, "ShowCreated", SEATS);
        self.shows.push(show);
        for show in self.shows.clone() {
            let is_free = self.events_of(&show) % 2 == 1;
            let manifest = if is_free {
                "SeatReserved"
            } else {
                "SeatReservationCancelled"
            };
            inserts += &self.persist(&show, manifest, SEATS - 1);
        }
        let show = self.shows[0].clone();
        for seat in 0..2 {
            if self.events_of(&show) < 4 {
                inserts += &self.persist(&show, "SeatReserved", seat);
            }
        }
        self.execute(&inserts);
    }

    fn stop(&mut self) {}

    fn confirmed(&self) -> Vec<Change> {
        self.confirmed.clone()
    }

    fn session(&self) -> Option<&'static str> {
        None
    }
}
