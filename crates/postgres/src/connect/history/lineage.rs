//! The timeline on which the store was seen last. It is noted beside the incarnation, so that every process notices a
//! fail-over that may have lost commits which it did not know of.
//!
//! Why: which rows a process has seen, it keeps in memory (`witness`). What another process has acknowledged, and
//! nobody else has seen, nobody can miss if that process died with the primary. A new primary knows where its timeline
//! begins, and only the dead know how far the old one had come. So a promotion counts as harmless only if synchronous
//! standbys were configured on the timeline that was noted. After any other one the first process that finds the new
//! timeline, one that runs or one that opens the store, begins a new incarnation: checkpoints of what may be lost are
//! refused rather than taken for others. Invariants: nothing is concluded from a server that does not tell its
//! timeline, or before a first note; a note and the incarnation that follows from it are written in one transaction; a
//! new timeline is noted only by who has concluded that nothing was lost, or begins an incarnation; a note replaces
//! only the one that it was concluded from. Not here: what a running process compares (`history`).

use gesta_core::{Clock, Error, Incarnation, Position, Result, SystemClock};
use gesta_sql::position_from_sql;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::config::Config;
use crate::connect::hosts::Timeline;
use crate::error;
use crate::message::incarnation_payload;
use crate::sql_numbers::CLOSED;

const READ_NOTED: &str = include_str!("../../../sql/read_noted.sql");
const NOTE_TIMELINE: &str = include_str!("../../../sql/note_timeline.sql");
const REPLACE_INCARNATION: &str = include_str!("../../../sql/replace_incarnation.sql");
const READ_LOG_ENDS: &str = include_str!("../../../sql/read_log_ends.sql");

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// Where the store was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted {
    pub(crate) cluster: i64,
    pub(crate) timeline: i64,
    /// Whether synchronous standbys were configured. A fail-over to one of them loses nothing that was acknowledged.
    pub(crate) synchronous: bool,
}

impl Noted {
    /// Returns what is to be noted of a server; `None` if it does not tell its timeline.
    pub(crate) fn on(timeline: Option<Timeline>, standby_names: &str) -> Option<Self> {
        timeline.map(|timeline| Self {
            cluster: timeline.cluster,
            timeline: timeline.number,
            synchronous: !standby_names.is_empty(),
        })
    }

    pub(crate) fn is_on(self, server: Timeline) -> bool {
        (self.cluster, self.timeline) == (server.cluster, server.number)
    }

    /// Tells whether both are on one timeline of one cluster.
    pub(crate) fn is_beside(self, other: Self) -> bool {
        (self.cluster, self.timeline) == (other.cluster, other.timeline)
    }
}

/// What follows from a note and from where the store is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Conclusion {
    /// Nothing is to be done.
    Same,
    /// The place is to be noted. Nothing was lost.
    Note,
    /// A standby was promoted that need not have had everything, or the store is in another cluster.
    MayBeLost(String),
}

/// Compares where the store was seen last with where it is.
pub(crate) fn conclude(noted: Option<Noted>, found: Option<Noted>) -> Conclusion {
    let (noted, found) = match (noted, found) {
        (_, None) => return Conclusion::Same,
        (None, Some(_)) => return Conclusion::Note,
        (Some(noted), Some(found)) => (noted, found),
    };
    if noted.cluster != found.cluster {
        return Conclusion::MayBeLost(format!(
            "the store was seen last in the database cluster {}, and is in {}",
            noted.cluster, found.cluster
        ));
    }
    match (
        noted.timeline == found.timeline,
        noted.synchronous == found.synchronous,
    ) {
        (true, true) => Conclusion::Same,
        (true, false) => Conclusion::Note,
        (false, _) if noted.synchronous => Conclusion::Note,
        (false, _) => Conclusion::MayBeLost(format!(
            "the store was seen last on timeline {} without synchronous standbys, and is on timeline {}",
            noted.timeline, found.timeline
        )),
    }
}

/// What the database says about the store: where it was seen last, and its incarnation.
#[derive(Debug)]
struct Read {
    noted: Option<Noted>,
    incarnation: Incarnation,
    /// Whether this user may note a place.
    may_note: bool,
}

/// Compares the place of the store, `found`, with the note, and begins a new incarnation if commits may be lost.
/// Returns the incarnation that the store has then, and the place that is noted if it is that of the store.
///
/// # Errors
/// `Unavailable` if the database does not answer, or a new incarnation is needed and this user may not begin one.
pub(crate) async fn settle(
    client: &Client,
    found: Option<Noted>,
    config: &Config,
) -> Result<(Incarnation, Option<Noted>)> {
    loop {
        let known = read(client).await.map_err(|error| error::general(&error))?;
        let incarnation = known.incarnation;
        let why = match conclude(known.noted, found) {
            Conclusion::Same => return Ok((incarnation, found)),
            Conclusion::Note => {
                let Some(place) = found else {
                    return Ok((incarnation, None));
                };
                let is_noted = write(client, &known, place).await;
                return Ok((incarnation, found.filter(|_| is_noted)));
            }
            Conclusion::MayBeLost(why) => why,
        };
        let Some(found) = found else {
            return Ok((incarnation, None));
        };
        let new = incarnation.after(greatest_end(client).await?, SystemClock.now());
        let begun = begin(client, config, (&known, new), found).await;
        let begun = begun.map_err(|error| {
            let cause = error::text(&error);
            Error::unavailable(format!(
                "commits may be lost ({why}), and a new incarnation could not be begun ({cause}): allow UPDATE \
                 (incarnation, cluster, timeline, synchronous) ON store to this user, or run `gesta schema new-incarnation`"
            ))
        })?;
        if begun {
            tracing::warn!(
                old = %incarnation, %new, why,
                "commits may be lost: a new incarnation was begun, older checkpoints are refused"
            );
            return Ok((new, Some(found)));
        }
        // Another process has begun one, or has noted the place.
    }
}

/// Returns the greatest position of the logs that lie in this database.
///
/// # Errors
/// `Unavailable` if the database does not answer.
pub(crate) async fn greatest_end(client: &Client) -> Result<Position> {
    let ends = client.query(READ_LOG_ENDS, &[]).await;
    let mut end = Position::START;
    for row in ends.map_err(|error| error::general(&error))? {
        let found: Option<i64> = row.try_get(0).map_err(|error| error::general(&error))?;
        // The log of a row that says so lies in another database, and counts there.
        if let Some(found) = found.filter(|found| *found != CLOSED) {
            end = end.max(position_from_sql(found)?);
        }
    }
    Ok(end)
}

/// Notes where the store is, unless that would hide a promotion from the next process. Returns whether the place is
/// noted now.
pub(crate) async fn note(client: &Client, place: Noted, incarnation: Incarnation) -> bool {
    let known = match read(client).await {
        Ok(known) => known,
        Err(error) => {
            not_noted(&error);
            return false;
        }
    };
    if known.incarnation != incarnation {
        // What this process has compared was another life of the store.
        return false;
    }
    match conclude(known.noted, Some(place)) {
        Conclusion::Same => true,
        Conclusion::Note => write(client, &known, place).await,
        Conclusion::MayBeLost(_) => false,
    }
}

/// Notes where the store is within the transaction that has begun an incarnation, if this user may do so.
pub(crate) async fn note_begun(client: &Client, place: Noted) -> Driver<()> {
    let known = read(client).await?;
    if known.may_note {
        write_note(client, &known, place).await?;
    }
    Ok(())
}

/// Notes the place instead of what was read. A user who may not do this, or a database that is read-only, has nothing
/// noted. Returns whether the place is noted.
async fn write(client: &Client, known: &Read, place: Noted) -> bool {
    // The server would log a refusal as an error, again and again.
    if !known.may_note {
        return false;
    }
    match write_note(client, known, place).await {
        Ok(is_noted) => is_noted,
        Err(error) => {
            not_noted(&error);
            false
        }
    }
}

fn not_noted(error: &tokio_postgres::Error) {
    let cause = error::text(error);
    tracing::debug!(cause, "the timeline of the database could not be noted");
}

/// Begins the second incarnation in place of the first, and notes the place. Returns false if the store has another one
/// already, or another process has noted a place.
async fn begin(
    client: &Client,
    config: &Config,
    (known, new): (&Read, Incarnation),
    place: Noted,
) -> Driver<bool> {
    // This does not wait for a standby: it may be away, and what is lost here is found out again.
    let begin = "BEGIN; SET LOCAL synchronous_commit = local";
    client.batch_execute(begin).await?;
    let outcome = async {
        // First, because it tells whether another process was faster.
        if !write_note(client, known, place).await? {
            return Ok(false);
        }
        let (channel, payload) = (config.channel(), incarnation_payload(Uuid::new_v4(), new));
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&known.incarnation.0, Type::UUID),
            (&new.0, Type::UUID),
            (&channel, Type::TEXT),
            (&payload, Type::TEXT),
        ];
        let replaced = client.query_typed(REPLACE_INCARNATION, &params).await?;
        Ok(!replaced.is_empty())
    }
    .await;
    let ending = match outcome {
        Ok(true) => "COMMIT",
        Ok(false) | Err(_) => "ROLLBACK",
    };
    client.batch_execute(ending).await?;
    outcome
}

/// Writes a note instead of the one that is known. Returns false if another one is there meanwhile.
async fn write_note(client: &Client, known: &Read, place: Noted) -> Driver<bool> {
    let before = known.noted;
    let params: [(&(dyn ToSql + Sync), Type); 7] = [
        (&place.cluster, Type::INT8),
        (&place.timeline, Type::INT8),
        (&place.synchronous, Type::BOOL),
        (&known.incarnation.0, Type::UUID),
        (&before.map(|before| before.cluster), Type::INT8),
        (&before.map(|before| before.timeline), Type::INT8),
        (&before.map(|before| before.synchronous), Type::BOOL),
    ];
    let noted = client.query_typed(NOTE_TIMELINE, &params).await?;
    Ok(!noted.is_empty())
}

async fn read(client: &Client) -> Driver<Read> {
    let row = client.query_one(READ_NOTED, &[]).await?;
    Ok(Read {
        noted: noted_in(&row)?,
        incarnation: Incarnation(row.try_get("incarnation")?),
        may_note: row.try_get("may_note")?,
    })
}

pub(crate) fn noted_in(row: &Row) -> Driver<Option<Noted>> {
    let place: (Option<i64>, Option<i64>) = (row.try_get("cluster")?, row.try_get("timeline")?);
    let synchronous: Option<bool> = row.try_get("synchronous")?;
    Ok(match place {
        (Some(cluster), Some(timeline)) => Some(Noted {
            cluster,
            timeline,
            synchronous: synchronous.unwrap_or(false),
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Noted = Noted {
        cluster: 7,
        timeline: 1,
        synchronous: false,
    };

    #[test]
    fn only_another_place_without_synchronous_standbys_may_have_lost_commits() {
        let promoted = Noted {
            timeline: 2,
            ..BEFORE
        };
        let synchronous = Noted {
            synchronous: true,
            ..BEFORE
        };
        let moved = Noted {
            cluster: 8,
            ..BEFORE
        };
        let may_be_lost = |conclusion| matches!(conclusion, Conclusion::MayBeLost(_));
        assert_eq!(conclude(Some(BEFORE), Some(BEFORE)), Conclusion::Same);
        assert_eq!(conclude(None, Some(BEFORE)), Conclusion::Note);
        assert_eq!(conclude(Some(BEFORE), Some(synchronous)), Conclusion::Note);
        assert_eq!(
            conclude(Some(synchronous), Some(promoted)),
            Conclusion::Note
        );
        assert_eq!(
            conclude(Some(BEFORE), None),
            Conclusion::Same,
            "it is not told"
        );
        assert_eq!(conclude(None, None), Conclusion::Same);
        assert!(may_be_lost(conclude(Some(BEFORE), Some(promoted))));
        assert!(may_be_lost(conclude(Some(promoted), Some(BEFORE))));
        // A restore may be of any moment, whatever its standbys were.
        assert!(may_be_lost(conclude(Some(BEFORE), Some(moved))));
        assert!(may_be_lost(conclude(Some(synchronous), Some(moved))));
    }
}
