//! The process manager: a reservation that is not paid within its time is given back.
//!
//! An effect follows the events of shows: a reservation sets a timer, a payment and a cancellation cancel it. A timer
//! that fires gives a command to the show, which decides whether there is still something to give back. Both may happen
//! again after a crash: the timer has the same id then, and the command the same key.
//! After a restore of the store, or a fail-over that lost commits, the effect begins again with the first event and
//! says so in the log, at level error: the show refuses to give back what was paid or given back before.
//! Invariant: what is decided is decided by the show alone; this module only reminds it.

use std::sync::Arc;
use std::time::Duration;

use gesta::entity::Error as CommandError;
use gesta::projection::{ApplyError, BeginAt, Effect, Effects, RunningEffects};
use gesta::timers::{FireError, NewTimer, RunningTimers, Status, Timer, Timers};
use gesta::{Clock, EventStore, EventType, Filter, Query, RecordedEvent, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::domain::{Command, Rejection};
use crate::error::Error;
use crate::events::{self, CATEGORY, SEAT_PAID, SEAT_RESERVATION_CANCELLED, SEAT_RESERVED};
use crate::shows::Shows;

/// Name of the timers.
const TIMERS: &str = "unpaid_reservations";

/// For how long a process that was killed keeps the work from the others.
const LEASE: Duration = Duration::from_secs(10);

/// What a timer carries: which reservation is to be given back.
#[derive(Debug, Serialize, Deserialize)]
struct Reservation {
    show_id: Uuid,
    seat: u32,
    reserved_at: i64,
}

/// What sets and cancels the timers.
struct Watch {
    timers: Timers,
    pay_within: Duration,
}

impl Effect for Watch {
    const NAME: &'static str = "unpaid_reservations";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        let types = [SEAT_RESERVED, SEAT_PAID, SEAT_RESERVATION_CANCELLED];
        let types = types.map(|name| EventType::from_stored(name.into()));
        Query {
            types: types.into(),
            ..Query::category(CATEGORY)
        }
        .into()
    }

    async fn perform(&self, event: &RecordedEvent, _attempt: u32) -> Result<(), ApplyError> {
        let (show_id, seat, at) = match events::change_of_seat(&event.data) {
            Ok(change) => change,
            // To try it again is of no use, and nobody would watch the reservations after it.
            Err(why) => {
                let (stream, position) = (&event.stream, event.position);
                tracing::error!(%stream, %position, %why, "a change of a seat cannot be read, and is not watched");
                return Ok(());
            }
        };
        let key = format!("{show_id}/{seat}");
        if event.event_type.as_str() != SEAT_RESERVED {
            self.timers.cancel_because_of(event, &key).await?;
            return Ok(());
        }
        let within = i64::try_from(self.pay_within.as_micros()).unwrap_or(i64::MAX);
        let due = Timestamp(at.0.saturating_add(within)).min(Timestamp::MAX);
        let reservation = Reservation {
            show_id,
            seat,
            reserved_at: at.0,
        };
        let timer = NewTimer::because_of(event, key, due).with_data(&reservation)?;
        self.timers.set(&timer).await?;
        Ok(())
    }
}

/// Gives a reservation back, if it is still there and not paid.
async fn give_back(shows: Shows, timer: Timer) -> Result<(), FireError> {
    let Reservation {
        show_id,
        seat,
        reserved_at,
    } = timer.json()?;
    let command = Command::GiveBackUnpaid { seat, reserved_at };
    match shows
        .execute(show_id, command, Some(timer.command_key()))
        .await
    {
        // Of a show that is not there, nothing is to be given back.
        Ok(()) | Err(CommandError::Rejected(Rejection::ShowNotExists)) => Ok(()),
        Err(error) => Err(error.to_string().into()),
    }
}

/// The running process manager.
#[derive(Debug)]
pub struct Payments {
    effects: RunningEffects,
    timers: RunningTimers,
}

impl Payments {
    /// Starts it. Of several processes on one store one is at work, and the others stand by.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn start(
        store: &Arc<dyn EventStore>,
        shows: &Shows,
        pay_within: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let timers = Timers::on(store, TIMERS)?.clock(clock);
        let timers = timers.config(gesta::timers::Config {
            lease: LEASE,
            ..gesta::timers::Config::default()
        });
        let watch = Watch {
            timers: timers.clone(),
            pay_within,
        };
        // Reservations that were made before anybody watched are watched as well.
        let effects = Effects::on(store).effect(watch, BeginAt::Start);
        let effects = effects.config(gesta::projection::Config {
            // A store that is away for long is no reason to stop.
            attempts_max: u32::MAX,
            lease: LEASE,
            ..gesta::projection::Config::default()
        });
        // Else nobody would watch reservations that are made after a restore of the store. Of the timers that are set
        // again those of seats that were paid, or given back, have nothing to do.
        let effects = effects.after_restore(BeginAt::Start);
        let effects = effects.start().await?;
        let shows = shows.clone();
        let timers = timers.run(move |timer| give_back(shows.clone(), timer))?;
        Ok(Self { effects, timers })
    }

    /// Returns what its timers do in this process.
    #[must_use]
    pub fn timers(&self) -> watch::Receiver<Status> {
        self.timers.status()
    }

    /// Ends it in good order.
    pub async fn shutdown(self) {
        self.effects.shutdown().await;
        self.timers.shutdown().await;
    }
}
