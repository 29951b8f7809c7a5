//! How a process begins to run a group: it reads what is stored of the group, and claims the group.

use std::ops::Range;

use gesta_core::{ExpectedRevision, Filter, Incarnation};
use gesta_pattern::Pattern;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::history::Standing;
use crate::mark::{Mark, ParkedMark};
use crate::record::{Configuration, Course, Progressed};
use crate::storage::Storage;

/// A group that this process has claimed.
pub(crate) struct Begun {
    pub(crate) storage: Storage,
    pub(crate) configuration: Configuration,
    pub(crate) course: Course,
    pub(crate) filter: Filter,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) run: Uuid,
    /// Expected revision of the checkpoint stream for the next checkpoint.
    pub(crate) expected: ExpectedRevision,
    /// Place with which the group goes on, whether from a checkpoint, and the events before it.
    pub(crate) next: u64,
    pub(crate) has_checkpoint: bool,
    pub(crate) marks: Vec<Mark>,
    /// Incarnation of the store of which the place is.
    pub(crate) incarnation: Incarnation,
    /// Range of the revisions of the parked stream that are in use.
    pub(crate) parked: Range<u64>,
    /// The last link in the parked stream.
    pub(crate) last_parked: Option<ParkedMark>,
}

/// How many times a claim is tried. An attempt fails if it meets the checkpoint of another process, perhaps the last
/// one of a process that has died.
const CLAIMS_MAX: usize = 3;

/// Claims a group. From then on no other process that ran the group before can write a checkpoint.
///
/// # Errors
/// `NotFound` if the group does not exist; `Halted` if its place is not of the present history of the store;
/// `TakenOver` if other processes claim the group again and again; `Store` if the store refuses, or if it does not
/// answer for so long that no caller would wait for it.
pub(crate) async fn begin(storage: Storage) -> Result<Begun> {
    let group = storage.group.clone();
    let run = Uuid::new_v4();
    for _ in 0..CLAIMS_MAX {
        let stored = storage.configuration().await?;
        let Some(stored) = stored else {
            return Err(Error::NotFound(group));
        };
        let incarnation = storage.incarnation().await?;
        let last = storage.last_checkpoint(stored.configuration.life).await?;
        if last.is_hidden {
            tracing::error!(
                %group, stream = %group.checkpoint_stream(),
                "metadata hide the last checkpoint ($tb, $maxAge or $maxCount), so the group begins where its settings say"
            );
        }
        let has_checkpoint = last.place.is_some();
        let course = stored.course(&last);
        let place = last.place.unwrap_or_else(|| stored.place());
        let (next, marks) = match place.judge(&storage, incarnation).await? {
            Standing::Stands { next, marks } => (next, marks),
            Standing::Lost(halt) => return Err(Error::Halted { group, halt }),
        };
        if place.incarnation != Some(incarnation) && place.incarnation.is_some() {
            tracing::warn!(
                %group, place = place.next, next,
                "the store has another history than when the group came to its place: it goes on from what is left of it"
            );
        }
        let configuration = stored.configuration;
        let claim = Progressed {
            life: configuration.life,
            run,
            next: has_checkpoint.then_some(next),
            incarnation: Some(incarnation.0),
            marks: marks.clone(),
            moved: has_checkpoint.then_some(course.moved).flatten(),
        };
        if let Some(revision) = storage.write_checkpoint(claim, last.expected).await? {
            // A group of this name that was deleted at the same time may have taken the bound with it.
            storage.bound_checkpoints().await?;
            return Ok(Begun {
                filter: configuration.filter.to_filter()?,
                pattern: configuration
                    .pattern
                    .clone()
                    .map(Pattern::new)
                    .transpose()?,
                parked: storage.parked(&configuration).await?,
                last_parked: storage.last_parked().await?,
                expected: ExpectedRevision::Exact(revision),
                next,
                has_checkpoint,
                marks,
                incarnation,
                run,
                course,
                configuration,
                storage: storage.of_task(),
            });
        }
    }
    Err(Error::TakenOver(group))
}
