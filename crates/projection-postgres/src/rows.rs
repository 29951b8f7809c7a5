//! The rows of Gesta's tables as values.

use std::str::FromStr;

use gesta_core::{Checkpoint, EventId, LogId, Position};
use gesta_projection::{
    Attempt, Command, Order, Parked, ProjectionId, Stored, TargetError, TargetErrorKind,
    filter_from_text,
};

use crate::binary;
use crate::driver::RowBytes;
use crate::failure::Failure;

/// Reads the columns of a row one after the other.
pub(crate) struct Columns<'a, R> {
    row: &'a R,
    next: usize,
}

impl<'a, R: RowBytes> Columns<'a, R> {
    pub(crate) fn of(row: &'a R) -> Self {
        Self { row, next: 0 }
    }

    fn bytes(&mut self) -> Result<Option<&'a [u8]>, Failure> {
        self.next += 1;
        self.row.bytes(self.next - 1)
    }

    fn read<T>(
        &mut self,
        read: impl FnOnce(&'a [u8]) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        self.bytes()?.map(read).transpose()
    }

    fn need<T>(
        &mut self,
        read: impl FnOnce(&'a [u8]) -> Result<T, Failure>,
    ) -> Result<T, TargetError> {
        let found = self.read(read)?;
        found.ok_or_else(|| unreadable("a column", "it holds nothing"))
    }

    pub(crate) fn int(&mut self) -> Result<i64, TargetError> {
        self.need(binary::int)
    }

    pub(crate) fn int_or_null(&mut self) -> Result<Option<i64>, TargetError> {
        Ok(self.read(binary::int)?)
    }

    pub(crate) fn boolean(&mut self) -> Result<bool, TargetError> {
        self.need(binary::boolean)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, TargetError> {
        self.need(binary::text)
    }

    pub(crate) fn text_or_null(&mut self) -> Result<Option<String>, TargetError> {
        Ok(self.read(binary::text)?.map(str::to_owned))
    }

    fn parse<T: FromStr<Err: std::fmt::Display>>(&mut self, what: &str) -> Result<T, TargetError> {
        let text = self.text()?;
        text.parse().map_err(|error| unreadable(what, error))
    }

    fn number<T: TryFrom<i64, Error: std::fmt::Display>>(
        &mut self,
        what: &str,
    ) -> Result<T, TargetError> {
        T::try_from(self.int()?).map_err(|error| unreadable(what, error))
    }

    fn id(&mut self) -> Result<ProjectionId, TargetError> {
        let name = self.text()?.to_owned();
        let version = self.number("a version")?;
        Ok(ProjectionId { name, version })
    }
}

/// The error of a row that this program cannot have written.
fn unreadable(what: &str, error: impl std::fmt::Display) -> TargetError {
    TargetError::new(
        TargetErrorKind::Unusable,
        format!("{what} of a projection cannot be read: {error}"),
    )
}

pub(crate) fn stored<R: RowBytes>(row: &R) -> Result<Stored, TargetError> {
    let mut columns = Columns::of(row);
    Ok(Stored {
        id: columns.id()?,
        life: columns.parse("what a version is to readers")?,
        state: columns.parse("the state")?,
        epoch: columns.int()?,
        owner: columns.read(binary::uuid)?,
        owned: columns.boolean()?,
        checkpoint: columns.parse::<Checkpoint>("the checkpoint")?,
        floor: columns.parse::<Checkpoint>("the floor")?,
        made_with: columns.int()?,
        resets: columns.int()?,
        events: columns.int()?,
        attempt: attempt(&mut columns)?,
        applied_at: columns.read(binary::timestamp)?,
        error: columns.text_or_null()?,
        read_as: names(columns.text()?),
        filter: columns
            .text_or_null()?
            .as_deref()
            .and_then(filter_from_text),
        definition: columns.text_or_null()?,
    })
}

/// An attempt, unless there is none, or one that a program has announced that did not tell the event.
fn attempt<R: RowBytes>(columns: &mut Columns<'_, R>) -> Result<Option<Attempt>, TargetError> {
    let number: u32 = columns.number("the number of an attempt")?;
    let events = columns.number("the events of an attempt")?;
    let (log, position) = (columns.int_or_null()?, columns.int_or_null()?);
    let is_replay = columns.boolean()?;
    let (Some(log), Some(position), 1..) = (log, position, number) else {
        return Ok(None);
    };
    let log = u16::try_from(log).map_err(|error| unreadable("the log", error))?;
    let position = u64::try_from(position).map_err(|error| unreadable("the position", error))?;
    Ok(Some(Attempt {
        number,
        events,
        first: (LogId(log), Position(position)),
        is_replay,
    }))
}

fn names(joined: &str) -> Vec<String> {
    let names = joined.split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

pub(crate) fn parked<R: RowBytes>(row: &R) -> Result<Parked, TargetError> {
    let mut columns = Columns::of(row);
    Ok(Parked {
        log: LogId(columns.number("the log")?),
        position: Position(columns.number("the position")?),
        key: columns.text_or_null()?,
        event: EventId(columns.need(binary::uuid)?),
        error: columns.text()?.to_owned(),
        attempts: columns.number("the number of attempts")?,
        at: columns.need(binary::timestamp)?,
    })
}

/// Reads the place of an event.
pub(crate) fn place<R: RowBytes>(row: &R) -> Result<(LogId, Position), TargetError> {
    let mut columns = Columns::of(row);
    let log = LogId(columns.number("the log")?);
    Ok((log, Position(columns.number("the position")?)))
}

/// Reads a command; `None` if it is none that this program knows, which whoever knows it will answer.
pub(crate) fn command<R: RowBytes>(row: &R) -> Result<Option<Command>, TargetError> {
    let mut columns = Columns::of(row);
    let number = columns.int()?;
    let id = columns.id()?;
    let order = Order::from_text(columns.text()?);
    Ok(order.map(|order| Command {
        number,
        id,
        order,
        answer: None,
    }))
}
