//! Histories as files: what clients asked of a store and what it answered, in a form that others can judge as well.
//!
//! A line of JSON for each operation. Each is of one *key*, which is a stream, a register or a seat, and keys are
//! judged one by one: so an append to two streams is an operation of each of them. `lab/README.md` describes every
//! field.
//! Invariant: nothing is left out but what had no effect: attempts that say that they wrote nothing, and reads without
//! an answer.
//! Not here: how a run is recorded (`history`), what must hold of it (`judge`).

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One operation of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// The stream, the register or the seat.
    pub key: String,
    /// Who asked.
    pub client: u64,
    /// When it was asked. Beginnings and ends of one key are numbers of one counter, which no two share.
    pub call: u64,
    /// When the answer came. None if none came, or one that leaves open what was done: then it may take effect at any
    /// later time, or never.
    #[serde(rename = "return")]
    pub answered: Option<u64>,
    /// What was asked, and the answer.
    #[serde(flatten)]
    pub action: Action,
}

/// What was asked, and the answer; an output is there if, and only if, the operation was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum Action {
    /// Of a stream: to append events. Attempts with the same ids are one append, sent several times.
    Append {
        /// What is to be appended.
        input: Events,
        /// What came of it.
        output: Option<Appended>,
    },
    /// Of a stream: how long it is, and its last events.
    ReadStream {
        /// The answer.
        output: Seen,
    },
    /// Of a register: to write a value, whatever it holds.
    Write {
        /// The value.
        input: Change,
        /// What came of it.
        output: Option<Done>,
    },
    /// Of a register: to write a value if it holds another one.
    CompareAndSet {
        /// The values.
        input: Change,
        /// What came of it.
        output: Option<Done>,
    },
    /// Of a register: what it holds.
    ReadRegister {
        /// The answer.
        output: Held,
    },
    /// Of a seat: to reserve a free one.
    Reserve {
        /// What came of it.
        output: Option<SeatAnswer>,
    },
    /// Of a seat: to free a reserved one.
    Cancel {
        /// What came of it.
        output: Option<SeatAnswer>,
    },
    /// Of a seat: to pay a reserved one.
    Pay {
        /// What came of it.
        output: Option<SeatAnswer>,
    },
    /// Of a seat: to free a reserved one that nobody has paid in time.
    GiveBack {
        /// What came of it.
        output: Option<SeatAnswer>,
    },
    /// Of a seat: how it is.
    ReadSeat {
        /// The answer.
        output: SeatSeen,
    },
}

/// Events to append.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Events {
    /// What the client claims about the stream.
    #[serde(flatten)]
    pub claim: Claim,
    /// The ids of the events.
    pub ids: Vec<Uuid>,
}

/// What a client claims about a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "expected", rename_all = "snake_case")]
pub enum Claim {
    /// Nothing.
    Any,
    /// It does not exist.
    NoStream,
    /// It exists.
    StreamExists,
    /// Its last event has this revision.
    Exact {
        /// The revision.
        revision: u64,
    },
}

impl Claim {
    /// Tells whether it is true of a stream with so many events.
    #[must_use]
    pub fn holds(self, length: u64) -> bool {
        match self {
            Claim::Any => true,
            Claim::NoStream => length == 0,
            Claim::StreamExists => length > 0,
            Claim::Exact { revision } => length == revision.saturating_add(1),
        }
    }
}

/// What came of an append.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Appended {
    /// The events are stored, now or since an earlier attempt.
    Stored {
        /// The revision of the first of them.
        first: u64,
    },
    /// They are not stored.
    Refused {
        /// How long the stream was; none if it was refused for something else than the claim about this stream.
        length: Option<u64>,
    },
}

/// The end of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seen {
    /// How many events it has.
    pub length: u64,
    /// The ids of its last events, in order: one or all of them.
    pub ids: Vec<Uuid>,
}

/// What a register is to hold. No two operations write the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// What it must hold before; none: nothing was ever written. Of no meaning for a write.
    #[serde(default)]
    pub from: Option<Uuid>,
    /// What it is to hold.
    pub to: Uuid,
}

/// What came of a change of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Done {
    /// It is done.
    Done,
    /// It is not, because the register holds something else.
    Refused,
}

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// None if nothing was ever written.
    pub value: Option<Uuid>,
}

/// How a seat is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatState {
    /// Anybody may reserve it.
    Free,
    /// Somebody has it.
    Reserved,
    /// Somebody has it for good.
    Paid,
}

/// What came of a change of a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum SeatAnswer {
    /// It is done.
    Done,
    /// It is not, because the seat does not allow it.
    Refused {
        /// How the seat is; none if the answer does not say it.
        seat: Option<SeatState>,
    },
}

/// A seat that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SeatSeen {
    /// How it is.
    pub seat: SeatState,
}

/// Writes operations, a line each.
///
/// # Errors
/// Those of the writer.
pub fn write(operations: &[Operation], mut to: impl Write) -> std::io::Result<()> {
    for operation in operations {
        serde_json::to_writer(&mut to, operation)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads operations.
///
/// # Errors
/// Those of the reader; a line that is no operation, by its number.
pub fn read(from: impl BufRead) -> std::io::Result<Vec<Operation>> {
    let lines = (1..).zip(from.lines());
    let parsed = lines.map(|(number, line)| {
        serde_json::from_str(&line?).map_err(|error| {
            let text = format!("line {number}: {error}");
            std::io::Error::new(std::io::ErrorKind::InvalidData, text)
        })
    });
    parsed.collect()
}
