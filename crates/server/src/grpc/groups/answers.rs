//! Writes what clients are told about a group, and the errors of groups as these clients know them.

use std::time::Duration;

use gesta_core::Position;
use gesta_groups::{ConsumerInfo, Error, GroupId, GroupInfo, Identity, Refused, Source, Start};
use gesta_grpc::messages::groups::SubscriptionInfo;
use gesta_grpc::messages::groups::subscription_info::{ConnectionInfo, Measurement};
use gesta_grpc::{Code, Positions, Refusal};

use super::requests::strategy_name;

/// Percentages of the sorted times at which a time is shown, by the names that clients show.
const SHARES: [(&str, f64); 13] = [
    ("Median", 50.0),
    ("Fastest", 0.0),
    ("Quintile 1", 20.0),
    ("Quintile 2", 40.0),
    ("Quintile 3", 60.0),
    ("Quintile 4", 80.0),
    ("Quintile 5", 100.0),
    ("90%", 90.0),
    ("95%", 95.0),
    ("99%", 99.0),
    ("99.5%", 99.5),
    ("99.9%", 99.9),
    ("Highest", 100.0),
];

/// Whether the users, the addresses and the names of consumers are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Identities {
    Shown,
    Hidden,
}

/// Describes a group as these clients know it.
pub(super) fn info(
    info: &GroupInfo,
    positions: Positions,
    identities: Identities,
) -> SubscriptionInfo {
    let source = info.group.source();
    let settings = &info.settings;
    let running = info.running.as_ref();
    let place =
        |place: Option<u64>| place.map_or_else(String::new, |at| shown(source, at, positions));
    let before = |next: Option<u64>| next.and_then(|next| next.checked_sub(1));
    let delivered = running.map_or(0, |running| running.counts.delivered);
    let in_flight = running.map_or(0, |running| small(running.in_flight));
    SubscriptionInfo {
        event_source: source.as_str().to_owned(),
        group_name: info.group.name().to_owned(),
        status: status(info),
        connections: running.map_or_else(Vec::new, |running| {
            let consumers = running.consumers.iter();
            consumers
                .map(|each| connection(each, running.seconds, identities))
                .collect()
        }),
        average_per_second: running.map_or(0, |running| per_second(delivered, running.seconds)),
        total_items: signed(delivered),
        count_since_last_measurement: 0,
        last_checkpointed_event_position: place(before(info.checkpoint)),
        last_known_event_position: place(before(running.map(|running| running.read_to))),
        resolve_link_tos: settings.resolve_links,
        start_from: match settings.start {
            Start::Start => shown(source, 0, positions),
            Start::At(at) => shown(source, at, positions),
            Start::End if *source == Source::All => "C:-1/P:-1".to_owned(),
            Start::End => "-1".to_owned(),
        },
        message_timeout_milliseconds: setting(settings.message_timeout_ms),
        extra_statistics: settings.extra_statistics,
        max_retry_count: setting(settings.max_retry_count),
        live_buffer_size: setting(settings.live_buffer_size),
        buffer_size: setting(settings.history_buffer_size),
        read_batch_size: setting(settings.read_batch_size),
        check_point_after_milliseconds: setting(settings.checkpoint_after_ms),
        min_check_point_count: setting(settings.min_checkpoint_count),
        max_check_point_count: setting(settings.max_checkpoint_count),
        read_buffer_count: running.map_or(0, |running| small(running.waiting)),
        live_buffer_count: running
            .filter(|running| running.is_live)
            .map_or(0, |running| small(running.waiting).into()),
        retry_buffer_count: running.map_or(0, |running| small(running.waiting_again)),
        total_in_flight_messages: in_flight,
        outstanding_messages_count: in_flight,
        named_consumer_strategy: strategy_name(settings.strategy).to_owned(),
        max_subscriber_count: setting(settings.max_subscriber_count),
        parked_message_count: signed(info.parked),
    }
}

/// Writes a place as text, which clients read.
fn shown(source: &Source, at: u64, positions: Positions) -> String {
    match source {
        Source::Stream(_) => at.to_string(),
        Source::All => {
            let at = positions.shown(Position(at));
            format!("C:{at}/P:{at}")
        }
    }
}

fn status(info: &GroupInfo) -> String {
    let Some(running) = &info.running else {
        let halted = info.halted.as_ref();
        return halted.map_or("NotReady", |_| "NotReady, Halted").to_owned();
    };
    let mut flags = vec![if running.is_live { "Live" } else { "Behind" }];
    if running.is_replaying {
        flags.push("ReplayingParkedMessages");
    }
    flags.join(", ")
}

fn connection(info: &ConsumerInfo, seconds: u64, identities: Identities) -> ConnectionInfo {
    let counts = &info.counts;
    let identity = match identities {
        Identities::Shown => info.identity.clone(),
        Identities::Hidden => Identity::default(),
    };
    let in_flight = small(counts.in_flight);
    let named = |name: &str, unnamed: &str| if name.is_empty() { unnamed } else { name }.to_owned();
    ConnectionInfo {
        from: identity.address,
        username: named(&identity.user, "anonymous"),
        average_items_per_second: per_second(counts.delivered, seconds),
        total_items: signed(counts.delivered),
        count_since_last_measurement: 0,
        observed_measurements: measured(&counts.latencies),
        available_slots: setting(counts.buffer).saturating_sub(in_flight),
        in_flight_messages: in_flight,
        connection_name: named(&identity.name, "<unknown>"),
    }
}

/// Returns times to answer, in milliseconds, from a list in order.
fn measured(sorted: &[Duration]) -> Vec<Measurement> {
    let Some(last) = sorted.len().checked_sub(1) else {
        return Vec::new();
    };
    let milliseconds = |time: &Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let total: Duration = sorted.iter().sum();
    let mean = total / u32::try_from(sorted.len()).unwrap_or(u32::MAX);
    let shares = SHARES.iter().map(|(name, percent)| {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a thousand times at most"
        )]
        let at = (last as f64 * percent / 100.0).round() as usize;
        Measurement {
            key: (*name).to_owned(),
            value: sorted.get(at).map_or(0, milliseconds),
        }
    });
    let mean = Measurement {
        key: "Mean".to_owned(),
        value: milliseconds(&mean),
    };
    std::iter::once(mean).chain(shares).collect()
}

fn per_second(count: u64, seconds: u64) -> i32 {
    i32::try_from(count / seconds.max(1)).unwrap_or(i32::MAX)
}

fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn setting(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Makes the refusal of an error of a group as these clients know it.
pub(super) fn refusal(error: &Error) -> Refusal {
    let text = error.to_string();
    match error {
        Error::Exists(group) => {
            of_group(Code::AlreadyExists, text, group).exception("persistent-subscription-exists")
        }
        Error::NotFound(group) => {
            let (name, source) = (group.name(), group.source().as_str());
            // The sentence of the servers for which programs were written: some look for a part of it.
            let text = format!("Subscription group {name} on stream {source} does not exist.");
            missing(group, text)
        }
        Error::Dropped(group)
        | Error::TakenOver(group)
        | Error::HistoryChanged(group)
        | Error::Silent { group, .. } => {
            of_group(Code::Cancelled, text, group).exception("persistent-subscription-dropped")
        }
        Error::Refused {
            group,
            refused: Refused::Full { .. },
        } => {
            // One client looks for this beginning.
            let text = format!("Maximum subscriptions reached: {text}");
            of_group(Code::FailedPrecondition, text, group).exception("maximum-subscribers-reached")
        }
        Error::Refused { group, .. } => failed(Code::InvalidArgument, text, group),
        Error::Halted { group, .. } => failed(Code::FailedPrecondition, text, group),
        Error::ReplayRunning(group) => failed(Code::FailedPrecondition, text, group),
        Error::NoConsumer { group, .. } => of_group(Code::NotFound, text, group),
        Error::Overloaded(detail) => Refusal::overloaded(detail),
        Error::Stopping => Refusal::stopping(),
        Error::Store(error) => Refusal::from(error),
        _ => Refusal::unavailable(text),
    }
}

/// Makes the refusal of a setting that breaks a rule: to these clients it is a failure of the group.
pub(super) fn of_settings(group: &GroupId, refusal: Refusal) -> Refusal {
    if refusal.code != Code::InvalidArgument || refusal.exception_name().is_some() {
        return refusal;
    }
    failed(refusal.code, refusal.message, group)
}

/// Makes the refusal of a call for a group that does not exist.
pub(super) fn missing(group: &GroupId, text: String) -> Refusal {
    of_group(Code::NotFound, text, group).exception("persistent-subscription-does-not-exist")
}

fn failed(code: Code, text: String, group: &GroupId) -> Refusal {
    of_group(code, text.clone(), group)
        .exception("persistent-subscription-failed")
        .trailer("reason", text)
}

fn of_group(code: Code, text: String, group: &GroupId) -> Refusal {
    Refusal::new(code, text)
        .trailer("stream-name", group.source().as_str())
        .trailer("group-name", group.name())
}
