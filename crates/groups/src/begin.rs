//! How a process begins to run a group: it reads what is stored of the group, and claims the group.

use std::ops::Range;

use gesta_core::{ExpectedRevision, Filter};
use gesta_pattern::Pattern;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::record::{Configuration, Progressed};
use crate::storage::Storage;

/// A group that this process has claimed.
pub(crate) struct Begun {
    pub(crate) storage: Storage,
    pub(crate) configuration: Configuration,
    pub(crate) filter: Filter,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) run: Uuid,
    /// Expected revision of the checkpoint stream for the next checkpoint.
    pub(crate) expected: ExpectedRevision,
    pub(crate) checkpoint: Option<u64>,
    /// Range of the revisions of the parked stream that are in use.
    pub(crate) parked: Range<u64>,
}

/// How many times a claim is tried. An attempt fails if it meets the checkpoint of another process, perhaps the last
/// one of a process that has died.
const CLAIMS_MAX: usize = 3;

/// Claims a group. From then on no other process that ran the group before can write a checkpoint.
///
/// # Errors
/// `NotFound` if the group does not exist; `TakenOver` if other processes claim the group again and again; `Store` if
/// the store refuses, or if it does not answer for so long that no caller would wait for it.
pub(crate) async fn begin(storage: Storage) -> Result<Begun> {
    let group = storage.group.clone();
    let run = Uuid::new_v4();
    for _ in 0..CLAIMS_MAX {
        let stored = storage.configuration().await?;
        let Some(stored) = stored else {
            return Err(Error::NotFound(group));
        };
        let configuration = stored.configuration;
        let last = storage.last_checkpoint(configuration.life).await?;
        let claim = Progressed {
            life: configuration.life,
            run,
            next: last.next,
        };
        if let Some(revision) = storage.write_checkpoint(claim, last.expected).await? {
            let expected = ExpectedRevision::Exact(revision);
            return claimed(storage, configuration, run, expected, last.next).await;
        }
    }
    Err(Error::TakenOver(group))
}

async fn claimed(
    storage: Storage,
    configuration: Configuration,
    run: Uuid,
    expected: ExpectedRevision,
    checkpoint: Option<u64>,
) -> Result<Begun> {
    Ok(Begun {
        filter: configuration.filter.to_filter()?,
        pattern: configuration
            .pattern
            .clone()
            .map(Pattern::new)
            .transpose()?,
        parked: storage.parked(&configuration).await?,
        expected,
        checkpoint,
        run,
        configuration,
        storage: storage.of_task(),
    })
}
