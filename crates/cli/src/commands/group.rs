//! `gesta group …`: looks at consumer groups of a server, and changes them.
//!
//! Not here: consuming, which programs do (`gesta_client`).

use std::fmt::Write as _;

use gesta_client::HttpGroups;
use gesta_core::StreamId;
use gesta_groups::document::{Group, Name};
use gesta_groups::{ALL, ConsumerGroups, Create, Error, GroupId, Settings, Source};
use serde_json::json;

use super::{all, connect_to_server, given_store, is_server};
use crate::args::{DEFAULT_SERVER, Global, GroupCommand, GroupCreate};
use crate::confirm;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, counted, visible};

/// Number of names that are asked for at once.
const PAGE_GROUPS: usize = 1_000;

pub(super) async fn run(global: &Global, command: GroupCommand, output: &mut Output) -> Outcome {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_SERVER.into());
    if !is_server(&url) {
        let text = "--store (GESTA_STORE) names a database, and groups are run by a server: give --store http://HOST:PORT";
        return Err(Failure::usage(text));
    }
    let groups = connect_to_server(global, &url).await?.groups();
    match command {
        GroupCommand::List { stream } => list(&groups, stream, output).await,
        GroupCommand::Info { group } => {
            let found = groups.info(&group).await?;
            output.record(&found, |found| pretty(found, &group))
        }
        GroupCommand::Create(create) => self::create(&groups, create, output).await,
        GroupCommand::Update { group, settings } => {
            let settings = read_settings(&settings)?;
            let updated = groups.update(&group, &settings).await?;
            output.record(&updated, |_| {
                format!("the settings of group {group} were replaced")
            })
        }
        GroupCommand::ReplayParked { group, stop_at } => {
            groups.replay_parked(&group, stop_at).await?;
            tell(&group, "delivers its parked events again", output)
        }
        GroupCommand::Reset { group, to, confirm } => {
            let what =
                format!("this moves group {group}: events come again, or are never delivered");
            confirm::ask(&confirm, &what)?;
            let found = groups.reset(&group, to).await;
            let found = found.map_err(|error| {
                match error.to_string().strip_prefix("to.at ") {
                    // The option has no such part.
                    Some(rule) => Failure::usage(format!("--to {rule}")),
                    None => error.into(),
                }
            })?;
            output.record(&found, |found| {
                let next = found
                    .checkpoint
                    .map_or(0, |finished| finished.saturating_add(1));
                format!("group {group} goes on at {next}")
            })
        }
        GroupCommand::Delete { group, confirm } => {
            confirm::ask(&confirm, &format!("this deletes group {group}"))?;
            groups.delete(&group).await?;
            tell(&group, "is deleted", output)
        }
    }
}

async fn create(groups: &HttpGroups, create: GroupCreate, output: &mut Output) -> Outcome {
    let GroupCreate {
        group,
        settings,
        filter,
    } = create;
    let create = Create::new(group.clone())
        .settings(read_settings(&settings)?)
        .filter(all::filter(filter));
    let created = groups.create(&create).await?;
    output.record(&created, |_| format!("group {group} was created"))
}

fn read_settings(text: &str) -> Outcome<Settings> {
    serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!(
            "--settings must be a JSON object such as {{\"max_retry_count\": 5}}: {error}; `gesta group info GROUP --output json` \
             shows all settings of a group"
        ))
    })
}

fn tell(group: &GroupId, what: &str, output: &mut Output) -> Outcome {
    let record = Name::from(group);
    output.record(&record, |_| format!("group {group} {what}"))
}

async fn list(groups: &HttpGroups, stream: Option<String>, output: &mut Output) -> Outcome {
    let source = match stream {
        None => None,
        Some(name) if name == ALL => Some(Source::All),
        Some(name) => Some(Source::Stream(StreamId::new(name)?)),
    };
    let mut after = None;
    loop {
        let mut found = groups
            .list(source.as_ref(), after.as_ref(), PAGE_GROUPS)
            .await?;
        for group in &found {
            output.record(&Name::from(group), |_| group.to_string())?;
        }
        match found.pop() {
            Some(last) if found.len() + 1 == PAGE_GROUPS => after = Some(last),
            _ => return Ok(()),
        }
    }
}

/// Returns the group as people read it, a line for each thing that matters.
fn pretty(group: &Group, id: &GroupId) -> String {
    let place = |place: Option<u64>| place.map_or("nothing".into(), |place| place.to_string());
    let mut text = format!("{id}  {}\n", group.status);
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "{what:<12} {}", visible(&value));
    };
    let running = group.running.as_ref();
    let finished = running.and_then(|running| running.finished_to);
    let finished = finished.max(group.checkpoint);
    line(
        "finished to",
        match finished == group.checkpoint {
            true => place(finished),
            false => format!("{}, stored: {}", place(finished), place(group.checkpoint)),
        },
    );
    if let Some(halted) = &group.halted {
        line("halted", halted.why.clone());
        let surviving = halted
            .surviving
            .map_or("none that it knows of".into(), |at| at.to_string());
        line(
            "survives",
            format!("{surviving}; say where it goes on: gesta group reset GROUP --to PLACE"),
        );
    }
    let parked = match group.parked {
        0 => "0".into(),
        parked => {
            let usual = id.parked_stream();
            let stream = group.parked_stream.as_deref().unwrap_or(usual.as_str());
            format!("{parked}, as links in {stream}")
        }
    };
    line("parked", parked);
    if let Some(running) = &group.running {
        line("read to", place(running.read_to));
        let waiting = running.waiting + running.waiting_again;
        line(
            "events",
            format!("{waiting} wait, consumers hold {}", running.in_flight),
        );
        let counts = &running.counts;
        line(
            "counts",
            format!(
                "in {} s: {}, {} of them repeated; {} acknowledged, {} skipped, {} refused, {} too late",
                running.seconds,
                counted(counts.delivered, "delivery", "deliveries"),
                counts.redelivered,
                counts.acknowledged,
                counts.skipped,
                counts.refused,
                counts.timed_out,
            ),
        );
        for consumer in &running.consumers {
            let names = [consumer.name.as_str(), &consumer.consumer, "(not told)"];
            let name = names
                .into_iter()
                .find(|name| !name.is_empty())
                .unwrap_or("");
            let held = format!("{} of {}", consumer.in_flight, consumer.buffer);
            let delivered = consumer.delivered;
            line("consumer", format!("{name}  holds {held}, got {delivered}"));
        }
    }
    let own = own_settings(&group.settings);
    let labels = std::iter::once("settings").chain(std::iter::repeat(""));
    for (label, setting) in labels.zip(own) {
        line(label, setting);
    }
    if !group.filter.is_empty() {
        line("filter", json!(group.filter).to_string());
    }
    if let Some(pattern) = &group.pattern {
        line("pattern", json!(pattern).to_string());
    }
    text
}

/// Returns the settings that are not those that a group has by default, one a line.
fn own_settings(settings: &Settings) -> Vec<String> {
    let (own, usual) = (json!(settings), json!(Settings::default()));
    let fields = own.as_object().into_iter().flatten();
    let changed = fields.filter(|(name, value)| usual.get(name) != Some(value));
    let mut lines: Vec<String> = changed
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    lines.push(match lines.is_empty() {
        true => "default".to_owned(),
        false => "the others are default".to_owned(),
    });
    lines
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Store(error) => return Failure::Store(error.clone()),
            Error::NotFound(_) => Code::NotFound,
            Error::NotHere { .. } | Error::Overloaded(_) | Error::Stopping => Code::Unavailable,
            _ => Code::Other,
        };
        Failure::Message(code, error.to_string())
    }
}
