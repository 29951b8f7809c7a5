//! `gesta stream …`.

use gesta_access::{check_account_event, holds_accounts};
use gesta_core::{
    Append, DeleteKind, DeleteStream, Direction, EventData, EventStore, ExpectedRevision,
    ListStreams, ReadStream, SetStreamMetadata, StreamFrom, StreamId, StreamMetadata, Subscribe,
    SubscribeFrom, SubscribeTo, limits,
};
use serde_json::json;

use super::appending::append_surely;
use super::progress::Progress;
use super::waiting::told_if_slow;
use super::{with_new_store, with_store, with_store_telling};
use crate::args::{self, After, Global, ReadFrom, StreamCommand};
use crate::confirm;
use crate::exit::{Failure, Outcome};
use crate::input::{self, Feed, Ids, refuse_line};
use crate::output::{Output, ProgressLine, counted, rate, say, until_reader_gone, visible};

/// The most events in one page.
const PAGE: u64 = 1_000;

pub(super) async fn run(global: &Global, command: StreamCommand, output: &mut Output) -> Outcome {
    match command {
        StreamCommand::Append(args) => append(global, args, output).await,
        StreamCommand::Read(args) => {
            let progress = Progress::default();
            progress.set("no event was read yet".into());
            let line = ProgressLine::beside_data(output, "opening the store");
            with_store_telling(global, &progress, async |store| {
                until_reader_gone(read(&*store, args, &progress, &line, output)).await
            })
            .await
        }
        StreamCommand::Tail(args) => {
            with_store(global, async |store| {
                let from = match args.after {
                    After::Start => SubscribeFrom::Start,
                    After::End => SubscribeFrom::End,
                    After::Place(revision) => SubscribeFrom::Revision(revision),
                };
                let request = Subscribe {
                    to: SubscribeTo::Stream(args.stream),
                    from,
                };
                let following = super::all::follow(&*store, request, args.limit, output);
                until_reader_gone(following).await
            })
            .await
        }
        StreamCommand::List(args) => {
            with_store(global, async |store| list(&*store, args, output).await).await
        }
        StreamCommand::Delete(args) => delete(global, args, output).await,
        StreamCommand::Metadata(args) => {
            with_store(global, async |store| metadata(&*store, args, output).await).await
        }
    }
}

async fn append(global: &Global, args: args::StreamAppend, output: &mut Output) -> Outcome {
    let single = input::from_arguments(&args)?;
    let progress = Progress::default();
    progress.set("nothing was stored yet".into());
    with_new_store(global, &progress, async |store| {
        let mut expected = args.expected;
        if let Some(event) = single {
            progress.set("whether the event was stored is not known".into());
            let told = "the event is stored: do not append it again";
            return send(&*store, &args, expected, vec![event], told, output)
                .await
                .map(|_| ());
        }
        let mut feed = Feed::start(None, Ids::Random, 0)?;
        let batch = usize::from(args.batch.unwrap_or(u16::MAX));
        let (mut events, mut stored) = (Vec::new(), 0);
        while let Some(line) = feed.next().await? {
            let number = line.line;
            if let Some(named) = line.stream.filter(|named| *named != args.stream) {
                let (named, own) = (named.as_str(), args.stream.as_str());
                let why = format!(
                    "names the stream {named:?}, and this appends to {own:?}: `gesta all import` appends each line to its stream"
                );
                return Err(refuse_line(number, &why));
            }
            if args.batch.is_none() && events.len() == limits::APPEND_EVENTS_MAX {
                return Err(refuse_line(number, &format!(
                    "one append holds at most {} events; give --batch to append so many lines at a time",
                    limits::APPEND_EVENTS_MAX
                )));
            }
            events.push(line.event);
            if events.len() >= batch {
                stored += events.len();
                let events = std::mem::take(&mut events);
                let told = format!(
                    "{} stored, up to line {number}: do not append {} again",
                    counted(stored as u64, "event is", "events are"),
                    if stored == 1 { "it" } else { "them" }
                );
                expected = send(&*store, &args, expected, events, &told, output).await?;
                let events = counted(stored as u64, "event was", "events were");
                progress.set(format!("{events} stored, up to line {number}"));
            }
        }
        if !events.is_empty() {
            let told = "all events are stored: do not append them again";
            send(&*store, &args, expected, events, told, output).await?;
        } else if stored == 0 {
            return Err(Failure::usage("standard input is empty: nothing to append (one event from arguments: --type and --data)"));
        }
        Ok(())
    })
    .await
}

/// Appends events and shows the answer, or says what is stored (`told`) if it cannot be shown. Returns what to expect
/// of the stream for the next batch.
async fn send(
    store: &dyn EventStore,
    args: &args::StreamAppend,
    expected: ExpectedRevision,
    events: Vec<EventData>,
    told: &str,
    output: &mut Output,
) -> Outcome<ExpectedRevision> {
    // A server asks the same; on the store itself nobody else does.
    if holds_accounts(&args.stream) {
        for event in &events {
            check_account_event(&args.stream, event)?;
        }
    }
    let request = Append::to(args.stream.clone(), expected, events);
    let answer = append_surely(store, &request).await?;
    output.has_done(told);
    for stream in &answer.streams {
        let record = json!({
            "stream": stream.stream.as_str(),
            "first_revision": stream.first_revision.0,
            "last_revision": stream.last_revision.0,
            "log": answer.log.0,
            "position": answer.position.0,
            "checkpoint": answer.checkpoint.to_string(),
        });
        output.record(&record, |_| {
            format!(
                "{}: revision {} to {}, position {}",
                stream.stream, stream.first_revision, stream.last_revision, answer.position
            )
        })?;
    }
    output.flush()?;
    let last = answer.streams.first().map(|stream| stream.last_revision);
    Ok(match (expected, last) {
        (ExpectedRevision::Any | ExpectedRevision::StreamExists, _) | (_, None) => expected,
        (_, Some(last)) => ExpectedRevision::Exact(last),
    })
}

async fn read(
    store: &dyn EventStore,
    args: args::StreamRead,
    progress: &Progress,
    line: &ProgressLine,
    output: &mut Output,
) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let direction = if args.backwards {
        Direction::Backwards
    } else {
        Direction::Forwards
    };
    let begin = if args.backwards {
        StreamFrom::End
    } else {
        StreamFrom::Start
    };
    let mut from = match args.from {
        None => begin,
        Some(ReadFrom::Start) => StreamFrom::Start,
        Some(ReadFrom::End) => StreamFrom::End,
        Some(ReadFrom::Place(revision)) => StreamFrom::Revision(revision),
    };
    let mut written = 0;
    loop {
        let limit = usize::try_from(left.min(PAGE)).unwrap_or(1);
        let page = store.read_stream(ReadStream {
            stream: args.stream.clone(),
            from,
            direction,
            limit,
        });
        let page = told_if_slow(page).await?;
        for event in &page.events {
            output.event(event, None)?;
        }
        if let Some(last) = page.events.last() {
            progress.set(format!(
                "the last event shown has revision {}; go on with --from",
                last.revision
            ));
        }
        written += page.events.len() as u64;
        line.tell(|time| rate("events written", written, None, time));
        left = left.saturating_sub(page.events.len() as u64);
        match page.next {
            Some(next) if !page.end && left > 0 => from = StreamFrom::Revision(next),
            _ => return Ok(()),
        }
    }
}

async fn list(store: &dyn EventStore, args: args::StreamList, output: &mut Output) -> Outcome {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut after = args.after;
    loop {
        let limit = usize::try_from(left.min(PAGE)).unwrap_or(1);
        let page = store.list_streams(ListStreams {
            prefix: args.prefix.clone(),
            after,
            limit,
        });
        let page = told_if_slow(page).await?;
        for stream in &page.streams {
            let record =
                json!({"stream": stream.stream.as_str(), "last_revision": stream.last_revision.0});
            output.record(&record, |_| {
                format!(
                    "{}  last revision {}",
                    visible(stream.stream.as_str()),
                    stream.last_revision
                )
            })?;
        }
        left = left.saturating_sub(page.streams.len() as u64);
        match page.next {
            Some(next) if left > 0 => after = Some(next),
            _ => return Ok(()),
        }
    }
}

/// Refuses to hide what is stored of accounts, as a server does.
fn refuse_accounts(stream: &StreamId) -> Outcome {
    if !holds_accounts(stream) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the stream {:?} holds accounts or default rights: it is never deleted, and has no metadata; `gesta user` and `gesta token` \
         change accounts",
        stream.as_str()
    )))
}

async fn delete(global: &Global, args: args::StreamDelete, output: &mut Output) -> Outcome {
    refuse_accounts(&args.stream)?;
    let what = if args.tombstone {
        format!("Close stream {} for ever", args.stream)
    } else {
        format!("Delete stream {}", args.stream)
    };
    confirm::ask(&args.confirm, &what)?;
    with_store(global, async |store| {
        let kind = if args.tombstone { DeleteKind::Tombstone } else { DeleteKind::Soft };
        let request = DeleteStream { stream: args.stream.clone(), expected: args.expected, kind };
        let deleted = told_if_slow(store.delete_stream(request)).await?;
        let record = json!({"stream": args.stream.as_str(), "log": deleted.log.0, "position": deleted.position.0});
        output.record(&record, |_| format!("deleted, position {}", deleted.position))
    })
    .await
}

/// Tells whether metadata give rights without a word about who may change them.
fn says_nothing_of_changes(json: &[u8]) -> bool {
    let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let acl = document.get("$acl").and_then(serde_json::Value::as_object);
    acl.is_some_and(|acl| !acl.is_empty() && acl.get("$mw").is_none_or(serde_json::Value::is_null))
}

/// The keys of metadata that have a meaning, here or for clients that were written for EventStoreDB.
const KNOWN_KEYS: [&str; 6] = [
    "$maxAge",
    "$maxCount",
    "$tb",
    "$acl",
    "$cacheControl",
    "$correlationId",
];

/// The keys that change who may do what, or what is shown, and so are hardly meant without their sign.
const NEEDS_SIGN: [&str; 5] = ["$acl", "$maxAge", "$maxCount", "$tb", "$cacheControl"];

/// Refuses keys that have lost their sign, such as `acl`: all metadata are replaced, so the `$acl` that is there would
/// be gone.
fn refuse_lost_signs(text: &str) -> Outcome {
    let keys = unknown_keys(text);
    let lost = keys
        .iter()
        .find(|key| NEEDS_SIGN.contains(&&*format!("${key}")));
    match lost {
        None => Ok(()),
        Some(key) => Err(Failure::usage(format!(
            "--set: {key:?} has no meaning for the store: is \"${key}\" meant? Nothing was changed. (A key of your own of \
             this name is set through a server: PUT /streams/NAME/metadata)"
        ))),
    }
}

/// Warns of keys that look as if they had a meaning, and have none, such as `$maxage`.
fn warn_of_unknown_keys(text: &str) {
    for key in unknown_keys(text) {
        let nearest = KNOWN_KEYS.iter().find(|known| {
            known.eq_ignore_ascii_case(&key) || strsim::osa_distance(known, &key) <= 2
        });
        let meant = nearest.map_or(String::new(), |known| format!(": is {known} meant?"));
        say!(
            "warning: {} has no meaning for the store{meant}",
            visible(&key)
        );
    }
}

fn unknown_keys(text: &str) -> Vec<String> {
    let document: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let keys = document
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys);
    let has_lost_its_sign = |key: &str| KNOWN_KEYS.contains(&&*format!("${key}"));
    let looks_known = |key: &str| key.starts_with('$') || has_lost_its_sign(key);
    keys.filter(|key| looks_known(key) && !KNOWN_KEYS.contains(&key.as_str()))
        .cloned()
        .collect()
}

async fn metadata(
    store: &dyn EventStore,
    args: args::StreamMetadata,
    output: &mut Output,
) -> Outcome {
    let Some(text) = args.set else {
        let record = told_if_slow(store.stream_metadata(args.stream)).await?;
        output.json_text(&String::from_utf8_lossy(record.metadata.json()))?;
        return output.text("\n");
    };
    refuse_accounts(&args.stream)?;
    refuse_lost_signs(&text)?;
    warn_of_unknown_keys(&text);
    let metadata =
        StreamMetadata::parse(text).map_err(|error| Failure::usage(error.to_string()))?;
    let says_little = says_nothing_of_changes(metadata.json());
    let request = SetStreamMetadata {
        stream: args.stream,
        expected: args.expected,
        metadata,
    };
    let set = told_if_slow(store.set_stream_metadata(request)).await?;
    if says_little {
        say!(
            "$acl does not say who may change it ($mw): those who have every right that it names, and administrators"
        );
    }
    output.record(
        &json!({"log": set.log.0, "position": set.position.0}),
        |_| format!("set, position {}", set.position),
    )
}
