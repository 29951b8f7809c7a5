//! Creates, changes and deletes groups.
//!
//! Each of the three is one append to the configuration stream that expects what was read of that stream. So of two
//! callers one succeeds and the other reads again. Not here: the streams (`storage`), running groups (`groups`).

use gesta_core::{ExpectedRevision, Filter, Incarnation};
use gesta_pattern::{Pattern, PatternText};
use uuid::Uuid;

use crate::commands::Stop;
use crate::error::{Error, Result};
use crate::groups::{Groups, TRIES, changed_too_often};
use crate::mark::Mark;
use crate::names::{GroupId, Source};
use crate::record::{Configuration, FilterDocument};
use crate::settings::{Settings, Start};
use crate::storage::{Storage, Stored};
use crate::work::several_logs;

/// A request to create a group.
#[derive(Clone, PartialEq, Debug)]
pub struct Create {
    /// Group to create.
    pub group: GroupId,
    /// Settings of the group.
    pub settings: Settings,
    /// Filter for the events that the group takes. A group on one stream must have [`Filter::ALL`].
    pub filter: Filter,
}

impl Create {
    /// Makes a request for a group with the default settings that takes all events of its source.
    #[must_use]
    pub fn new(group: GroupId) -> Self {
        Self {
            group,
            settings: Settings::default(),
            filter: Filter::ALL,
        }
    }

    /// Sets the settings of the group.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the filter for the events that the group takes: for a group on all events only.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }
}

impl Groups {
    /// Creates a group.
    ///
    /// # Errors
    /// `Exists` if there is such a group; `NotHere`; `Stopping`; `Store`: `InvalidArgument` if a setting or the filter
    /// is out of range, `Unsupported` for a group on all events of a store of several logs.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is created or not.
    pub async fn create(&self, create: Create) -> Result<()> {
        self.create_with(create, None).await
    }

    /// Creates a group on all events that takes only events that pass both `filter` and a pattern.
    ///
    /// # Errors
    /// As [`Groups::create`]; `Store`: `InvalidArgument` if the pattern cannot be used.
    ///
    /// # Cancel safety
    /// As [`Groups::create`].
    pub async fn create_matching(&self, create: Create, pattern: PatternText) -> Result<()> {
        Pattern::new(pattern.clone())?;
        self.create_with(create, Some(pattern)).await
    }

    async fn create_with(&self, create: Create, pattern: Option<PatternText>) -> Result<()> {
        let Create {
            group,
            settings,
            filter,
        } = create;
        settings.validate()?;
        filter.validate()?;
        let storage = self.storage(&group)?;
        match group.source() {
            Source::Stream(_) if filter != Filter::ALL || pattern.is_some() => {
                let rule = "is for groups on all events: a group on a stream takes all its events";
                return Err(gesta_core::Error::invalid("filter", rule).into());
            }
            Source::Stream(_) => {}
            Source::All => {
                let logs = storage.store.info().await?.logs;
                if logs != 1 {
                    return Err(several_logs(logs).into());
                }
            }
        }
        if storage.configuration().await?.is_some() {
            return Err(Error::Exists(group));
        }
        let (begin, incarnation, mark) = begin_of(&storage, settings.start).await?;
        let configuration = Configuration {
            life: Uuid::new_v4(),
            begin,
            incarnation: Some(incarnation.0),
            mark,
            parked_from: storage.parked_end().await?,
            parked_stream: storage.parked_stream().await?.number,
            moved: None,
            settings,
            filter: FilterDocument::from(&filter),
            pattern,
        };
        storage.bound_checkpoints().await?;
        let expected = ExpectedRevision::NoStream;
        if storage.configure(&configuration, expected).await? {
            tracing::info!(%group, "a consumer group was created");
            return Ok(());
        }
        Err(Error::Exists(group))
    }

    /// Changes the settings of a group. Its consumers are told to join again. Its checkpoint stays, and a new start
    /// counts only if the group has no checkpoint yet.
    ///
    /// # Errors
    /// The errors of [`Groups::create`], but `NotFound` instead of `Exists`; `Overloaded` if other callers change the
    /// group again and again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is changed or not. If it is changed, it may still run with the earlier
    /// settings.
    pub async fn update(&self, group: &GroupId, settings: Settings) -> Result<()> {
        settings.validate()?;
        let storage = self.storage(group)?;
        for _ in 0..TRIES {
            let Some(stored) = storage.configuration().await? else {
                return Err(Error::NotFound(group.clone()));
            };
            let Stored {
                mut configuration,
                revision,
                ..
            } = stored;
            if configuration.settings.start != settings.start {
                let (begin, incarnation, mark) = begin_of(&storage, settings.start).await?;
                configuration.begin = begin;
                configuration.incarnation = Some(incarnation.0);
                configuration.mark = mark;
                configuration.moved = Some(Uuid::new_v4());
            }
            configuration.settings = settings.clone();
            let expected = ExpectedRevision::Exact(revision);
            if storage.configure(&configuration, expected).await? {
                self.stop_running(group, Stop::Dropped).await;
                tracing::info!(%group, "a consumer group was changed");
                return Ok(());
            }
        }
        Err(changed_too_often(group))
    }

    /// Deletes a group with its checkpoint and its parked events. Its consumers are told.
    ///
    /// # Errors
    /// `NotFound`; `NotHere`; `Stopping`; `Overloaded` if other callers change the group again and again; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is deleted or not. Streams of a deleted group that remain do no harm to a
    /// new group of the same name.
    pub async fn delete(&self, group: &GroupId) -> Result<()> {
        let storage = self.storage(group)?;
        for _ in 0..TRIES {
            let Some(stored) = storage.configuration().await? else {
                return Err(Error::NotFound(group.clone()));
            };
            self.stop_running(group, Stop::Deleted).await;
            let ends = storage.ends_of_state().await?;
            if storage.delete(stored.revision).await? {
                // A consumer may have joined in between.
                self.stop_running(group, Stop::Deleted).await;
                self.set_halted(group, false);
                storage.delete_state(ends).await?;
                tracing::info!(%group, "a consumer group was deleted");
                return Ok(());
            }
        }
        Err(changed_too_often(group))
    }
}

/// Returns the first place that a group delivers while it has no checkpoint, with the incarnation of the store of which
/// the place is, and the event before it.
async fn begin_of(storage: &Storage, start: Start) -> Result<(u64, Incarnation, Option<Mark>)> {
    let incarnation = storage.incarnation().await?;
    let end = storage.end_of_source().await?;
    let begin = match (start, storage.group.source()) {
        (Start::Start, _) => 0,
        (Start::End, _) => end,
        (Start::At(at), Source::Stream(_)) => at,
        (Start::At(at), Source::All) if at <= end => at,
        (Start::At(at), Source::All) => {
            let rule = format!("must be at most {end}, the next position, found {at}");
            return Err(gesta_core::Error::invalid("start.at", rule).into());
        }
    };
    let mark = match begin.checked_sub(1) {
        Some(before) => storage.mark_at(before, incarnation).await?,
        None => None,
    };
    Ok((begin, incarnation, mark))
}
