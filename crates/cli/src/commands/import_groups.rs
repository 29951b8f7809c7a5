//! Consumer groups in `gesta all import`: they are not copied event by event, but made anew at the place that they had.
//!
//! Why: see `GroupsOfCopy`. A place counts only if the event before it is the same in the copy, which its id tells:
//! that of a group on a stream is looked up at the same revision. That of a group on all events has another position in
//! the copy, so the line of the event is looked for in the file first.
//! A group is made before what it has parked is appended, for only what comes later in its parked stream is its own. So
//! an import that was stopped in between leaves a group without them, and the next import appends what is missing.
//! Invariant: every group of which the input has a line is named in the report with what became of it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use gesta_client::HttpGroups;
use gesta_core::{
    Append, ErrorKind, EventData, EventId, EventStore, ExpectedRevision, Position, Revision,
    StreamId,
};
use gesta_groups::{
    Config, ConsumerGroups, Error, FoundGroup, GroupId, GroupToMake, Groups, GroupsOfCopy, Source,
    document,
};
use gesta_wire::request::QueryBody;
use serde::Serialize;

use super::appending::append_surely;
use super::import_target::read_target;
use crate::exit::Outcome;
use crate::input::{Feed, Ids, LineEvent};
use crate::output::{count, counted};

/// How often the making of a group is tried at most when its answer is lost.
const TRIES: u32 = 5;

/// What has become of a group.
#[derive(Serialize)]
pub(super) struct GroupReport {
    group: String,
    /// `made`, `there`, `deleted` or `left_out`.
    outcome: &'static str,
    /// First revision or position that a group which was made delivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    /// How many parked events the group has in the copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    parked: Option<usize>,
    /// What is not as it was, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl GroupReport {
    fn new(group: &GroupId, outcome: &'static str, note: Option<String>) -> Self {
        Self {
            group: group.to_string(),
            outcome,
            next: None,
            parked: None,
            note,
        }
    }

    /// Returns the report as people read it.
    pub(super) fn pretty(&self) -> String {
        let what = match self.outcome {
            "made" => {
                let parked = match self.parked.unwrap_or(0) {
                    0 => String::new(),
                    parked => format!(" and has {}", count(parked as u64, "parked event")),
                };
                format!(
                    "was created: it goes on at {}{parked}",
                    self.next.unwrap_or(0)
                )
            }
            "there" => "exists already, and stays as it is".to_owned(),
            "deleted" => "was deleted, and was not created".to_owned(),
            _ => "was not created".to_owned(),
        };
        let note = self.note.as_ref().map(|note| format!("; {note}"));
        format!("group {} {what}{}", self.group, note.unwrap_or_default())
    }
}

/// Where groups are made.
pub(super) enum Home {
    /// A server runs them.
    Server(Box<HttpGroups>),
    /// They lie in a store that this process has opened.
    Store(Arc<dyn EventStore>),
}

impl Home {
    async fn create(&self, group: &GroupToMake, next: u64) -> Result<(), Error> {
        let create = group.beginning_at(next);
        match (self, group.pattern.clone()) {
            (Self::Server(groups), None) => groups.create(&create).await.map(|_| ()),
            (Self::Server(_), Some(_)) => {
                let why = "a group with a pattern is made over gRPC, or by an import into the database itself";
                Err(gesta_core::Error::from(ErrorKind::Unsupported(why.into())).into())
            }
            (Self::Store(store), pattern) => {
                let groups = Groups::start(Arc::clone(store), Config::default());
                let created = match pattern {
                    None => groups.create(create).await,
                    Some(pattern) => groups.create_matching(create, pattern).await,
                };
                groups.shutdown().await;
                created
            }
        }
    }

    async fn info(&self, id: &GroupId) -> Result<document::Group, Error> {
        match self {
            Self::Server(groups) => groups.info(id).await,
            Self::Store(store) => {
                let groups = Groups::start(Arc::clone(store), Config::default());
                let info = groups.info(id).await;
                groups.shutdown().await;
                info.map(|info| document::Group::from(&info))
            }
        }
    }
}

/// An event of the input that is in the copy.
#[derive(Clone)]
struct Line {
    /// Revision or position in the original.
    at: u64,
    stream: StreamId,
    revision: Revision,
    id: Option<EventId>,
}

/// Makes the groups that the original had, and returns what became of each.
pub(super) async fn make(
    found: GroupsOfCopy,
    store: &dyn EventStore,
    home: &Home,
    file: Option<File>,
) -> Outcome<Vec<GroupReport>> {
    let found = found.finish();
    let on_all = |(_, found): &(GroupId, FoundGroup)| match found {
        FoundGroup::Present(group) if *group.create.group.source() == Source::All => {
            Some(group.next)
        }
        _ => None,
    };
    let mut places: Vec<u64> = found.iter().filter_map(on_all).collect();
    places.sort_unstable();
    places.dedup();
    let lines = match file {
        Some(file) if !places.is_empty() => Some(lines_before(file, &places).await?),
        _ => None,
    };
    let mut reports = Vec::new();
    for (id, found) in found {
        let left_out = |why: String| GroupReport::new(&id, "left_out", Some(why));
        reports.push(match found {
            FoundGroup::Deleted => GroupReport::new(&id, "deleted", None),
            FoundGroup::Unreadable(why) => {
                left_out(format!("what is stored of it cannot be read: {why}"))
            }
            FoundGroup::WithoutConfiguration => {
                left_out("the input has no settings of it: was it exported whole?".to_owned())
            }
            FoundGroup::Present(group) => match place_in_copy(&group, store, lines.as_ref()).await?
            {
                Ok(next) => create(&id, *group, next, store, home).await?,
                Err(why) => left_out(format!("{why}; {}", how_to_make(&group))),
            },
        });
    }
    Ok(reports)
}

/// Finds the place of a group in the copy. The inner error says why it is not known.
async fn place_in_copy(
    group: &GroupToMake,
    store: &dyn EventStore,
    lines: Option<&HashMap<u64, Option<Line>>>,
) -> Outcome<Result<u64, String>> {
    let next = group.next;
    if next == 0 {
        return Ok(Ok(0));
    }
    match group.create.group.source() {
        Source::Stream(stream) => {
            let Some((at, id)) = group.last_read else {
                let why = format!("it had come to {next}, and nothing says which event that is");
                return Ok(Err(why));
            };
            Ok(
                match position_of(store, stream, Revision(at), Some(id)).await? {
                    Some(_) => Ok(at + 1),
                    None => Err(format!(
                        "it had come to {next}, and other events stand there now"
                    )),
                },
            )
        }
        Source::All => match lines.and_then(|lines| lines.get(&next)) {
            None => Ok(Err(format!(
                "it had come to position {next}, which is another one here: only an import from a file can tell which"
            ))),
            // All that is before the place are events which are not copied.
            Some(None) => Ok(Ok(0)),
            Some(Some(line)) => Ok(
                match position_of(store, &line.stream, line.revision, line.id).await? {
                    Some(position) => Ok(position.0 + 1),
                    None => Err(format!(
                        "it had come to position {next}, and event {} of {:?} before it has another revision here",
                        line.revision,
                        line.stream.as_str()
                    )),
                },
            ),
        },
    }
}

/// Returns the position of the event with this id at this revision; `None` if it is not there.
async fn position_of(
    store: &dyn EventStore,
    stream: &StreamId,
    revision: Revision,
    id: Option<EventId>,
) -> Outcome<Option<Position>> {
    use gesta_core::EventStoreExt;
    match store.read_event(stream.clone(), revision).await {
        Ok(event) => Ok((id == Some(event.id)).then_some(event.position)),
        Err(error) => match error.kind() {
            ErrorKind::EventNotFound { .. }
            | ErrorKind::StreamNotFound(_)
            | ErrorKind::StreamTombstoned(_) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// Says how an operator makes a group whose place is not known.
fn how_to_make(group: &GroupToMake) -> String {
    let id = &group.create.group;
    let settings = serde_json::to_string(&group.create.settings).unwrap_or_default();
    let parked = match group.parked.len() {
        0 => String::new(),
        parked => {
            let left_out = counted(parked as u64, "parked event is", "parked events are");
            format!(" (its {left_out} left out too)")
        }
    };
    format!(
        "make it with gesta group create '{id}' --settings '{settings}', and say where it goes on with \
         gesta group reset '{id}' --to …{parked}"
    )
}

async fn create(
    id: &GroupId,
    group: GroupToMake,
    next: u64,
    store: &dyn EventStore,
    home: &Home,
) -> Outcome<GroupReport> {
    let mut tries = 1;
    let outcome = loop {
        match home.create(&group, next).await {
            // Whether it was made shows when it is tried again.
            Err(Error::Store(error)) if error.is_retryable() && tries < TRIES => {
                tokio::time::sleep(Duration::from_millis(200 * u64::from(tries))).await;
                tries += 1;
            }
            outcome => break outcome,
        }
    };
    match outcome {
        Ok(()) => {}
        Err(Error::Exists(_)) => {
            return complete(id, &group, next, tries > 1, store, home).await;
        }
        Err(error) => {
            let note = format!("{error}; {}", how_to_make(&group));
            return Ok(GroupReport::new(id, "left_out", Some(note)));
        }
    }
    let links = links_here(&group, store).await?;
    let parked = park(id, links, store).await?;
    let mut report = GroupReport::new(id, "made", None);
    report.next = Some(next);
    report.parked = Some(parked);
    if parked < group.parked.len() {
        report.note = Some(format!(
            "{} parked events are left out, for what their links lead to is not there or has another revision here, or \
             the links were deleted here",
            group.parked.len() - parked
        ));
    }
    Ok(report)
}

/// Finishes a group that an import has begun to make: appends what it had parked and does not have yet. `has_tried`
/// tells that this import may have made the group itself. Any other group stays as it is.
async fn complete(
    id: &GroupId,
    group: &GroupToMake,
    next: u64,
    has_tried: bool,
    store: &dyn EventStore,
    home: &Home,
) -> Outcome<GroupReport> {
    let mut links = links_here(group, store).await?;
    let usable = links.len();
    if !links.is_empty() {
        let there = read_target(store, &id.parked_stream()).await?.ids;
        links.retain(|link| link.id.is_none_or(|id| !there.contains(&id)));
    }
    if links.is_empty() && !has_tried {
        return Ok(GroupReport::new(id, "there", None));
    }
    let missing = links.len();
    let refused = match home.info(id).await {
        Ok(found) if !is_as_made(&found, group, next) => {
            Some("its settings, filter or start are others".to_owned())
        }
        // Metadata hide parked events that were replayed or removed: these must not come again.
        Ok(_) => {
            let metadata = store.stream_metadata(id.parked_stream()).await?;
            (missing > 0 && metadata.revision.is_some())
                .then(|| "parked events of it were replayed or removed here".to_owned())
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = refused {
        let note = (missing > 0).then(|| {
            let are = (
                "parked event of the input is",
                "parked events of the input are",
            );
            format!(
                "{} not added to it: {why}",
                counted(missing as u64, are.0, are.1)
            )
        });
        return Ok(GroupReport::new(id, "there", note));
    }
    let parked = park(id, links, store).await?;
    let note = "an earlier import had begun to make it".to_owned();
    let mut report = GroupReport::new(id, "made", (!has_tried).then_some(note));
    report.next = Some(next);
    report.parked = Some(usable - missing + parked);
    Ok(report)
}

/// Tells whether a group is as an import makes it.
fn is_as_made(found: &document::Group, group: &GroupToMake, next: u64) -> bool {
    let create = group.beginning_at(next);
    let filter: Vec<_> = create.filter.any_of.iter().map(QueryBody::from).collect();
    let json = |filter: &[QueryBody]| serde_json::to_value(filter).ok();
    found.settings == create.settings
        && found.pattern == group.pattern
        && json(&found.filter) == json(&filter)
}

/// Returns the links of a group to parked events that are the same here.
async fn links_here(group: &GroupToMake, store: &dyn EventStore) -> Outcome<Vec<EventData>> {
    let mut links = Vec::new();
    for link in &group.parked {
        let Some((stream, revision, event)) = gesta_groups::parked_event(link) else {
            continue;
        };
        let position = position_of(store, &stream, revision, Some(event)).await?;
        if position.is_some() {
            links.push(link.clone());
        }
    }
    Ok(links)
}

/// Appends links to parked events. Returns how many there are now.
async fn park(id: &GroupId, links: Vec<EventData>, store: &dyn EventStore) -> Outcome<usize> {
    let mut parked = 0;
    for link in links {
        let append = Append::to(id.parked_stream(), ExpectedRevision::Any, vec![link]);
        match append_surely(store, &append).await {
            Ok(_) => parked += 1,
            // An earlier group of the name had it.
            Err(error) if matches!(error.kind(), ErrorKind::StoredAndDeleted { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(parked)
}

/// Looks for the last event before each of these positions that is copied. The positions are in their order.
async fn lines_before(file: File, places: &[u64]) -> Outcome<HashMap<u64, Option<Line>>> {
    let mut feed = Feed::start(Some(file), Ids::OfText, 0)?;
    let mut found: HashMap<u64, Option<Line>> = places.iter().map(|at| (*at, None)).collect();
    while let Some(LineEvent {
        stream,
        revision,
        position,
        event,
        ..
    }) = feed.next().await?
    {
        let (Some(stream), Some(revision), Some(at)) = (stream, revision, position) else {
            continue;
        };
        if stream.as_str().starts_with("$$") || GroupsOfCopy::is_of_group(&stream) {
            continue;
        }
        // Only the nearest place is noted, so that a line costs no more if there are many groups.
        let Some(place) = places.get(places.partition_point(|next| *next <= at)) else {
            continue;
        };
        let line = found.entry(*place).or_default();
        if line.as_ref().is_none_or(|line| line.at < at) {
            *line = Some(Line {
                at,
                stream,
                revision,
                id: event.id,
            });
        }
    }
    let mut last: Option<Line> = None;
    for place in places {
        let line = found.entry(*place).or_default();
        match line {
            Some(line) => last = Some(line.clone()),
            None => line.clone_from(&last),
        }
    }
    Ok(found)
}
