//! Finds out what groups a store had, from the events in which it kept them: for a copy of the store.
//!
//! Why: the streams of a group cannot be copied as they are. Checkpoints tell by position and time which events stand
//! before the place of the group, and a copy has other positions and times. A deleted group is a deleted stream, which
//! no append can copy. So a copy leaves these streams out, and makes each group anew, at the place that the group had.
//! Pure. Not here: where the events come from, and what is looked up in the copy.

use std::collections::BTreeMap;

use gesta_core::{EventData, EventId, LifecycleChange, Revision, StreamId, StreamMetadata};
use gesta_pattern::PatternText;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::changes::Create;
use crate::names::{GroupId, Keeps, kept_by};
use crate::record::{Configuration, Progressed};
use crate::settings::Start;

/// Reads the events of a store in their order, and remembers those in which it keeps groups.
#[derive(Debug, Default)]
pub struct GroupsOfCopy {
    groups: BTreeMap<GroupId, Traces>,
}

/// What is known of a group.
#[derive(Debug, Default)]
struct Traces {
    /// The last configuration, or why it cannot be read.
    configuration: Option<Result<Configuration, String>>,
    was_deleted: bool,
    /// The last checkpoint, or why it cannot be read.
    checkpoint: Option<Result<Progressed, String>>,
    parked: Vec<ParkedLine>,
}

#[derive(Debug)]
struct ParkedLine {
    /// Number of the parked stream.
    stream: u16,
    /// Revision in the parked stream; `None` if it is not known.
    revision: Option<Revision>,
    event: EventData,
}

/// What has become of a group by the end of the events.
#[derive(Clone, PartialEq, Debug)]
pub enum FoundGroup {
    /// The group was deleted.
    Deleted,
    /// What is stored of the group cannot be read, for this reason.
    Unreadable(String),
    /// There is no configuration of the group, only other events of it.
    WithoutConfiguration,
    /// The group is to be made anew.
    Present(Box<GroupToMake>),
}

/// A group as it is to be made in a copy.
#[derive(Clone, PartialEq, Debug)]
pub struct GroupToMake {
    /// Group, settings and filter. The start is that of the original.
    pub create: Create,
    /// Pattern that an event which passes the filter must match too.
    pub pattern: Option<PatternText>,
    /// Revision or position, in the original, below which everything is finished.
    pub next: u64,
    /// Revision or position of the last event before `next` that the group has read, with the id of the event.
    pub last_read: Option<(u64, EventId)>,
    /// Links to parked events, as they are to be appended to the parked stream of the copy.
    pub parked: Vec<EventData>,
}

impl GroupToMake {
    /// Returns the request that makes the group so that it begins at this place of the copy.
    #[must_use]
    pub fn beginning_at(&self, next: u64) -> Create {
        let mut create = self.create.clone();
        create.settings.start = match next {
            0 => Start::Start,
            next => Start::At(next),
        };
        create
    }
}

impl GroupsOfCopy {
    /// Returns true if an event of this stream keeps a group, so that [`GroupsOfCopy::take`] takes it.
    #[must_use]
    pub fn is_of_group(stream: &StreamId) -> bool {
        let name = stream.as_str();
        match name.strip_prefix("$$") {
            Some(described) => kept_by(described).is_some(),
            None => kept_by(name).is_some(),
        }
    }

    /// Takes the next event if it keeps a group. Returns false if it keeps none.
    pub fn take(
        &mut self,
        stream: &StreamId,
        revision: Option<Revision>,
        event: &EventData,
    ) -> bool {
        let name = stream.as_str();
        if let Some((group, keeps)) = name.strip_prefix("$$").and_then(kept_by) {
            self.groups.entry(group).or_default().change(keeps, event);
            return true;
        }
        let Some((group, keeps)) = kept_by(name) else {
            return false;
        };
        let traces = self.groups.entry(group).or_default();
        match keeps {
            Keeps::Configuration => {
                // An older one does not count if the last one cannot be read: the group was another by then.
                traces.configuration = Some(read(event));
                traces.was_deleted = false;
            }
            Keeps::Checkpoint => {
                let read: Result<Progressed, String> = read(event);
                // Without a place it is the claim of a group without a checkpoint.
                if read.as_ref().map_or(true, |read| read.next.is_some()) {
                    traces.checkpoint = Some(read);
                }
            }
            Keeps::Parked(stream) => traces.parked.push(ParkedLine {
                stream,
                revision,
                event: event.clone(),
            }),
        }
        true
    }

    /// Returns every group of which there was an event, in the order of the names.
    #[must_use]
    pub fn finish(self) -> Vec<(GroupId, FoundGroup)> {
        let found = |(group, traces): (GroupId, Traces)| {
            let found = traces.finish(&group);
            (group, found)
        };
        self.groups.into_iter().map(found).collect()
    }
}

fn read<T: DeserializeOwned>(event: &EventData) -> Result<T, String> {
    serde_json::from_slice(&event.data).map_err(|error| error.to_string())
}

impl Traces {
    /// Notes that the metadata of a stream of the group have changed.
    fn change(&mut self, keeps: Keeps, event: &EventData) {
        let deletes = match event.event_type.as_str() {
            "$deleted" | "$tombstone" => true,
            _ => matches!(
                StreamMetadata::parse_event(event.data.clone()),
                Ok((LifecycleChange::Deleted, _))
            ),
        };
        let truncated = StreamMetadata::parse(event.data.clone());
        let truncated = truncated.ok().and_then(|found| found.truncate_before);
        match keeps {
            Keeps::Configuration if deletes => {
                *self = Self {
                    was_deleted: true,
                    ..Self::default()
                };
            }
            Keeps::Checkpoint if deletes => self.checkpoint = None,
            Keeps::Parked(stream) if deletes => self.parked.retain(|line| line.stream != stream),
            Keeps::Parked(stream) => self.parked.retain(|line| {
                let is_hidden = line.revision < truncated;
                line.stream != stream || line.revision.is_none() || !is_hidden
            }),
            Keeps::Configuration | Keeps::Checkpoint => {}
        }
    }

    fn finish(self, group: &GroupId) -> FoundGroup {
        let configuration = match self.configuration {
            Some(Ok(configuration)) => configuration,
            Some(Err(why)) => {
                return FoundGroup::Unreadable(format!("the last configuration: {why}"));
            }
            None if self.was_deleted => return FoundGroup::Deleted,
            None => return FoundGroup::WithoutConfiguration,
        };
        let life = configuration.life;
        let checkpoint = match self.checkpoint.transpose() {
            Ok(checkpoint) => checkpoint.filter(|found| found.life == life),
            Err(why) => return FoundGroup::Unreadable(format!("the last checkpoint: {why}")),
        };
        let (next, mark) = match &checkpoint {
            Some(checkpoint) => {
                let next = checkpoint.next.unwrap_or(configuration.begin);
                (next, checkpoint.marks.last().copied())
            }
            None => (configuration.begin, configuration.mark),
        };
        let filter = match configuration.filter.to_filter() {
            Ok(filter) => filter,
            Err(error) => return FoundGroup::Unreadable(error.to_string()),
        };
        let parked = self.parked.into_iter();
        let is_of_life = |line: &ParkedLine| {
            line.stream > configuration.parked_stream
                || line
                    .revision
                    .is_none_or(|at| at.0 >= configuration.parked_from)
        };
        let parked = parked.filter(is_of_life).map(|line| line.event);
        FoundGroup::Present(Box::new(GroupToMake {
            create: Create {
                group: group.clone(),
                settings: configuration.settings,
                filter,
            },
            pattern: configuration.pattern,
            next,
            last_read: mark.map(|mark| (mark.at, mark.event_id())),
            parked: parked
                .filter_map(|link| of_other_life(link, life))
                .collect(),
        }))
    }
}

/// Makes of a link that this life of a group has parked one that belongs to any; `None` if another life has parked it.
fn of_other_life(mut link: EventData, life: Uuid) -> Option<EventData> {
    let metadata: Result<serde_json::Map<_, _>, _> = serde_json::from_slice(&link.metadata);
    let Ok(mut metadata) = metadata else {
        return Some(link);
    };
    if let Some(of) = metadata.remove("life") {
        if of != life.to_string() {
            return None;
        }
        link.metadata = serde_json::Value::Object(metadata).to_string().into();
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use gesta_core::EventType;

    fn event(event_type: &str, data: &str) -> EventData {
        EventData::json(EventType::from_stored(event_type.into()), data.to_owned())
            .with_id(EventId::random())
    }

    fn stream(name: &str) -> StreamId {
        StreamId::from_stored(name.into())
    }

    const CONFIGURATION: &str = "$persistentsubscriptionconfig-a::g";
    const CHECKPOINT: &str = "$persistentsubscription-a::g-checkpoint";
    const PARKED: &str = "$persistentsubscription-a::g-parked";

    fn configured(life: u128) -> EventData {
        let life = Uuid::from_u128(life);
        let settings = serde_json::to_string(&Settings::default()).expect("JSON");
        let text =
            format!(r#"{{"life":"{life}","begin":1,"parked_from":1,"settings":{settings}}}"#);
        event("$GroupConfigured", &text)
    }

    fn checkpoint(life: u128, next: u64) -> EventData {
        let life = Uuid::from_u128(life);
        let text = format!(
            r#"{{"life":"{life}","run":"{life}","next":{next},"marks":[{{"at":{},"id":"{life}","position":9,"created":0}}]}}"#,
            next - 1
        );
        event("$SubscriptionCheckpoint", &text)
    }

    fn only(copy: GroupsOfCopy) -> FoundGroup {
        let mut found = copy.finish();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0.to_string(), "a::g");
        found.remove(0).1
    }

    #[test]
    fn the_last_configuration_and_checkpoint_count() {
        let mut copy = GroupsOfCopy::default();
        assert!(!copy.take(&stream("a"), None, &event("T", "1")));
        copy.take(&stream(CONFIGURATION), None, &configured(1));
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 5));
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 7));
        for revision in 0..4 {
            let link = event("$>", "0@a");
            copy.take(&stream(PARKED), Some(Revision(revision)), &link);
        }
        let metadata = stream(&format!("$${PARKED}"));
        copy.take(&metadata, None, &event("$metadata", r#"{"$tb":2}"#));
        let FoundGroup::Present(found) = only(copy) else {
            panic!("it is there");
        };
        assert_eq!((found.next, found.parked.len()), (7, 2));
        assert_eq!(found.last_read, Some((6, EventId(Uuid::from_u128(1)))));
    }

    /// What happened: an older configuration or checkpoint was taken in silence for the last one.
    #[test]
    fn an_older_state_is_not_taken_for_one_that_cannot_be_read() {
        for (of, what) in [(CONFIGURATION, "configuration"), (CHECKPOINT, "checkpoint")] {
            let mut copy = GroupsOfCopy::default();
            copy.take(&stream(CONFIGURATION), None, &configured(1));
            copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 5));
            copy.take(&stream(of), None, &event("X", "1"));
            let FoundGroup::Unreadable(why) = only(copy) else {
                panic!("the last {what} cannot be read");
            };
            assert!(why.contains(what), "{why}");
        }
        // What is stored after it can be read again.
        let mut copy = GroupsOfCopy::default();
        copy.take(&stream(CONFIGURATION), None, &event("X", "1"));
        copy.take(&stream(CHECKPOINT), None, &event("X", "1"));
        copy.take(&stream(CONFIGURATION), None, &configured(1));
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 5));
        assert!(matches!(only(copy), FoundGroup::Present(found) if found.next == 5));
    }

    #[test]
    fn a_deleted_group_is_told_and_a_new_life_has_nothing_of_it() {
        let mut copy = GroupsOfCopy::default();
        copy.take(&stream(CONFIGURATION), None, &configured(1));
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 5));
        let metadata = stream(&format!("$${CONFIGURATION}"));
        copy.take(&metadata, None, &event("$deleted", "{}"));
        // A process that has not heard of it.
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 6));
        let mut again = GroupsOfCopy::default();
        std::mem::swap(&mut again.groups, &mut copy.groups);
        again.take(&stream(CONFIGURATION), None, &configured(2));
        let FoundGroup::Present(found) = only(again) else {
            panic!("it is there");
        };
        assert_eq!((found.next, found.last_read), (1, None));

        let mut copy = GroupsOfCopy::default();
        copy.take(&stream(CONFIGURATION), None, &configured(1));
        copy.take(
            &metadata,
            None,
            &event("$metadata", r#"{"$tb":9223372036854775807}"#),
        );
        assert_eq!(only(copy), FoundGroup::Deleted);
        let mut copy = GroupsOfCopy::default();
        copy.take(&stream(CONFIGURATION), None, &event("X", "1"));
        assert!(matches!(only(copy), FoundGroup::Unreadable(_)));
        let mut copy = GroupsOfCopy::default();
        copy.take(&stream(CHECKPOINT), None, &checkpoint(1, 6));
        assert_eq!(only(copy), FoundGroup::WithoutConfiguration);
    }
}
