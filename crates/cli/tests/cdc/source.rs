//! A store whose events are captured, and what a consumer of its database is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gesta_rig::{Server as Postgres, ServerConfig};
use serde_json::Value;

use crate::consumer::{Event, Place};
use crate::pgoutput::{self, Transaction};
use crate::support::{output_of, patient, stderr, succeed, wait_until};

/// The slot of the test's consumer.
pub(crate) const SLOT: &str = "lake";

/// The settings of a server that decodes its log.
pub(crate) fn decoding() -> ServerConfig {
    ServerConfig::default().with("wal_level", "logical")
}

/// A PostgreSQL server of its own, and a folder for what consumers write.
pub(crate) struct World {
    pub(crate) postgres: Postgres,
    pub(crate) folder: tempfile::TempDir,
}

impl World {
    /// `None`, said aloud, where PostgreSQL is not installed.
    pub(crate) fn start(config: ServerConfig) -> Option<Self> {
        Some(Self {
            postgres: Postgres::start_with(config).unwrap()?,
            folder: tempfile::tempdir().unwrap(),
        })
    }

    /// The same, with a store of so many logs, a publication and a slot.
    pub(crate) fn captured(config: ServerConfig, logs: &str) -> Option<Self> {
        let world = Self::start(config)?;
        world.source().capture(logs);
        Some(world)
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source {
            postgres: &self.postgres,
            folder: self.folder.path(),
        }
    }
}

/// A server with a store, as its users and a consumer see it.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) postgres: &'a Postgres,
    pub(crate) folder: &'a Path,
}

impl Source<'_> {
    /// Makes a store of so many logs, a publication and a slot.
    pub(crate) fn capture(self, logs: &str) {
        let url = self.url();
        succeed(&["schema", "create", "--store", &url, "--logs", logs]);
        self.publish();
        self.make_slot();
    }

    /// Makes a publication of the tables of the store.
    pub(crate) fn publish(self) {
        let publication = "CREATE PUBLICATION gesta \
                           FOR TABLE gesta.events, gesta.streams, gesta.types, gesta.store";
        self.postgres.execute(publication).unwrap();
    }

    /// The URL of the store, and of the database.
    pub(crate) fn url(self) -> String {
        patient(&self.postgres.url())
    }

    /// The first value that a query gives.
    pub(crate) fn value(self, sql: &str) -> String {
        let value = self.postgres.query(sql).unwrap();
        value.unwrap_or_else(|| panic!("{sql}: nothing"))
    }

    pub(crate) fn make_slot(self) {
        let make = format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')");
        self.postgres.execute(&make).unwrap();
    }

    /// What a column of `pg_replication_slots` says of the slot.
    pub(crate) fn slot(self, column: &str) -> String {
        self.value(&format!(
            "SELECT {column} FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        ))
    }

    /// Up to where in the write-ahead log the consumer has confirmed.
    pub(crate) fn confirmed(self) -> u64 {
        let confirmed = self.slot("confirmed_flush_lsn");
        let (high, low) = confirmed.split_once('/').unwrap();
        let [high, low] = [high, low].map(|half| u64::from_str_radix(half, 16).unwrap());
        high << 32 | low
    }

    pub(crate) fn append(self, stream: &str, data: &str) {
        append_at(&self.url(), stream, data);
    }

    /// The path of what a run of a consumer writes.
    pub(crate) fn file(self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A consumer at this URL that writes into this file until it is killed, or its connection ends.
    pub(crate) fn receiver(self, url: &str, name: &str) -> Command {
        let programs = gesta_rig::find_binaries().expect("a server runs");
        let mut receiver = Command::new(programs.join("pg_recvlogical"));
        receiver.args(["--dbname", url, "--slot", SLOT, "--start"]);
        receiver.args(["-o", "proto_version=1", "-o", "publication_names=gesta"]);
        receiver.arg("--no-loop").arg("--file").arg(self.file(name));
        receiver.stdin(Stdio::null());
        receiver
    }

    /// What a run of a consumer has written.
    pub(crate) fn written(self, name: &str) -> Vec<Transaction> {
        pgoutput::transactions(&std::fs::read(self.file(name)).unwrap())
    }

    /// What the slot shows now, by SQL, which confirms nothing.
    pub(crate) fn peek(self) -> Vec<Transaction> {
        let peek = format!(
            "SELECT coalesce(string_agg(encode(data, 'hex') || '0a', ''), '') \
             FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, \
                 'proto_version', '1', 'publication_names', 'gesta')"
        );
        pgoutput::transactions(&bytes_of(&self.value(&peek)))
    }

    /// What a consumer gets that runs until it has everything that is stored by now.
    pub(crate) fn receive_as(self, url: &str, name: &str) -> Vec<Transaction> {
        // It goes on when the one before has been noticed to be gone.
        wait_until("the slot is free", || self.slot("active") == "f");
        let end = self.value("SELECT pg_current_wal_flush_lsn()");
        let mut receiver = self.receiver(url, name);
        let received = output_of(receiver.args(["--endpos", &end]));
        assert!(received.status.success(), "{}", stderr(&received));
        self.written(name)
    }

    pub(crate) fn receive(self, name: &str) -> Vec<Transaction> {
        self.receive_as(&self.url(), name)
    }

    /// The rows of the tables that a consumer copies: the events, and then the names, so that it has all of theirs.
    pub(crate) fn copied(self) -> Vec<Transaction> {
        let rows_of = |table: &str, order: &str| {
            let rows = format!(
                "SELECT coalesce(json_agg(t ORDER BY {order}), '[]') FROM gesta.{table} AS t"
            );
            let rows: Vec<BTreeMap<String, Value>> =
                serde_json::from_str(&self.value(&rows)).unwrap();
            let text = |(column, value)| match value {
                Value::String(text) => Some((column, text)),
                Value::Number(number) => Some((column, number.to_string())),
                _ => None,
            };
            let row = |row: BTreeMap<_, _>| row.into_iter().filter_map(text).collect();
            Transaction::of_rows(table, rows.into_iter().map(row).collect())
        };
        let events = rows_of("events", "log, position");
        vec![
            rows_of("streams", "log, id"),
            rows_of("types", "log, id"),
            events,
        ]
    }

    /// What the store holds now.
    pub(crate) fn stored(self) -> BTreeMap<Place, Event> {
        let rows = self.value(
            "SELECT coalesce(json_agg(json_build_array(e.log, e.position, s.name, e.revision, t.name, e.event_id, \
                             e.data)), '[]') FROM gesta.events AS e \
             JOIN gesta.streams AS s ON s.log = e.log AND s.id = e.stream \
             JOIN gesta.types AS t ON t.log = e.log AND t.id = e.type",
        );
        let rows: Vec<(i64, i64, String, i64, String, String, String)> =
            serde_json::from_str(&rows).unwrap();
        let event = |(log, position, stream, revision, kind, id, data)| {
            let event = Event {
                stream,
                revision,
                kind,
                id,
                data,
            };
            ((log, position), event)
        };
        rows.into_iter().map(event).collect()
    }
}

/// Appends one event at a store or a server.
pub(crate) fn append_at(url: &str, stream: &str, data: &str) {
    let event = ["--type", "happened", "--data", data];
    let append = ["stream", "append", stream, "--store", url];
    succeed(&[&append[..], &event].concat());
}

/// The bytes that stand in a text as hexadecimal digits.
pub(crate) fn bytes_of(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}
