//! `read`: how fast a consumer catches up through the library, and how fast streams load.

use std::sync::Arc;
use std::time::Instant;

use gesta_core::{
    AllFrom, EventStore, Filter, ReadAll, ReadStream, StreamFrom, StreamId, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::failure::{Context, Result, fail};
use crate::fill::{Fill, fill};
use crate::histogram::{Latencies, Percentiles, median};
use crate::host::{CpuMeter, CpuUse};
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::store::{self, StoreArgs};
use crate::units::grouped;
use crate::workload::{Run, Workload, WorkloadArgs};

/// Fills the store if needed, then reads the whole log and random streams.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Events that the store should hold; missing ones are appended first.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) events: u64,
    /// Events per page.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) page: u32,
    /// How often each is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Random streams read per round.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) stream_reads: u32,
}

/// Events per page of [`catching_up`].
const CATCHING_UP_PAGE: u32 = 5_000;

/// What a consumer does with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Nothing: pages as they come out of the library.
    Count,
    /// Parses the payload as JSON and looks at every field of the event.
    Decode,
}

/// Events per second of a pass over the whole log, with every event decoded.
pub(crate) async fn catching_up(
    store: &dyn EventStore,
    stop: &CancellationToken,
) -> Result<(u64, f64)> {
    let pass = whole_log(store, CATCHING_UP_PAGE, Use::Decode, stop).await?;
    Ok((pass.events, pass.rate()))
}

/// The same by a subscription from the start of the log until it has caught up.
pub(crate) async fn subscribing(
    store: &dyn EventStore,
    stop: &CancellationToken,
) -> Result<(u64, f64)> {
    let (mut pass, begin) = (Pass::default(), Instant::now());
    let request = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    };
    let mut subscription = store.subscribe(request).await.context("subscribing")?;
    while !stop.is_cancelled() {
        match subscription.next().await {
            Some(Ok(SubscriptionMessage::Event { event, .. })) => {
                pass.events += 1;
                decode(&event);
            }
            Some(Ok(SubscriptionMessage::CaughtUp(_))) => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return fail("a subscription ended"),
        }
    }
    pass.seconds = begin.elapsed().as_secs_f64();
    Ok((pass.events, pass.rate()))
}

/// One pass.
#[derive(Debug, Clone, Copy, Default)]
struct Pass {
    events: u64,
    seconds: f64,
    page_ms: Percentiles,
    cpu: CpuUse,
}

impl Pass {
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    fn rate(&self) -> f64 {
        if self.seconds > 0.0 {
            self.events as f64 / self.seconds
        } else {
            0.0
        }
    }
}

/// The command. True if every pass saw every event.
pub(crate) async fn run(args: &ReadArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("read", "Reading", args.workload.seed);
    let opened = store::open(&args.store).await?;
    let workload = Arc::new(Workload::new(&args.workload, Run::random()));
    let stored: u64 = opened.facts.heads.iter().sum();
    let missing = args.events.saturating_sub(stored);
    if missing > 0 {
        eprintln!("appending {} events first", grouped_count(missing));
        fill(&opened.store, &workload, &Fill::of(missing), stop).await?;
    }
    let heads: u64 = opened.store.info().await?.heads.iter().map(|h| h.0).sum();

    let mut passes: [Vec<Pass>; 3] = Default::default();
    for _ in 0..args.rounds {
        for (kind, usage) in [(0, Use::Count), (1, Use::Decode)] {
            if !stop.is_cancelled() {
                passes[kind].push(whole_log(opened.store.as_ref(), args.page, usage, stop).await?);
            }
        }
        if !stop.is_cancelled() && args.stream_reads > 0 {
            passes[2].push(streams(opened.store.as_ref(), &workload, args, stop).await?);
        }
    }

    let complete = !stop.is_cancelled();
    // Positions of built-in engines are gapless unless something was scavenged; then fewer events are right.
    let counts: Vec<u64> = passes[0]
        .iter()
        .chain(&passes[1])
        .map(|p| p.events)
        .collect();
    if complete && (counts.windows(2).any(|w| w[0] != w[1]) || counts[0] > heads) {
        report.problem(format!(
            "passes saw different numbers of events: {counts:?}, head {heads}"
        ));
    }
    report.store = Some(opened.facts.clone());
    report.workload = json!({
        "events": args.events, "page": args.page, "rounds": args.rounds,
        "stream_reads": args.stream_reads, "payload": args.workload,
    });
    tell(&mut report, &passes);
    let valid = report.finish(&args.report, complete)?;
    opened.store.shutdown().await?;
    Ok(valid)
}

/// The report of these passes: the whole log, the same decoded, random streams.
fn tell(report: &mut Report, passes: &[Vec<Pass>; 3]) {
    let rate = |passes: &Vec<Pass>| median(&passes.iter().map(Pass::rate).collect::<Vec<_>>());
    let [whole, _, streams] = passes;
    report.finding = match (whole.is_empty(), streams.is_empty()) {
        (true, _) => "Interrupted before anything was read.".into(),
        (false, true) => format!(
            "The whole log is read at {} events/s.",
            grouped(rate(whole))
        ),
        (false, false) => format!(
            "The whole log is read at {} events/s, single streams at {}.",
            grouped(rate(whole)),
            grouped(rate(streams))
        ),
    };
    let columns = [
        ("what", Unit::Words),
        ("events", Unit::Count),
        ("events/s (median)", Unit::Count),
        ("page p50", Unit::Millis),
        ("page p99", Unit::Millis),
        ("cores busy", Unit::Cores),
        ("of them in this process", Unit::Cores),
    ];
    let mut table = Table::new("Reading", columns);
    let names = [
        "the whole log",
        "the whole log, decoded",
        "streams chosen at random",
    ];
    for (name, passes) in names.iter().zip(passes) {
        if let Some(last) = passes.last() {
            let (pages, cpu) = (last.page_ms, last.cpu);
            table.row(cells![
                *name,
                last.events,
                rate(passes),
                pages.p50,
                pages.p99,
                cpu.machine_cores,
                cpu.own_cores
            ]);
        }
    }
    report.table(table);
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn grouped_count(count: u64) -> String {
    grouped(count as f64)
}

async fn whole_log(
    store: &dyn EventStore,
    page: u32,
    usage: Use,
    stop: &CancellationToken,
) -> Result<Pass> {
    let mut request = ReadAll::forwards()
        .from(AllFrom::Start)
        .limit(page as usize);
    let (mut pass, mut pages) = (Pass::default(), Latencies::default());
    let (meter, begin) = (CpuMeter::start(), Instant::now());
    loop {
        let asked = Instant::now();
        let page = store
            .read_all(request.clone())
            .await
            .context("reading all")?;
        pages.record(asked.elapsed());
        pass.events += page.events.len() as u64;
        if usage == Use::Decode {
            page.events.iter().for_each(decode);
        }
        if page.end || stop.is_cancelled() {
            break;
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
    pass.seconds = begin.elapsed().as_secs_f64();
    pass.cpu = meter.used();
    pass.page_ms = pages.percentiles();
    Ok(pass)
}

/// What a projection does at least: it looks at the event and parses its payload.
fn decode(event: &gesta_core::RecordedEvent) {
    let parsed: Option<serde::de::IgnoredAny> = serde_json::from_slice(&event.data).ok();
    std::hint::black_box((
        parsed.is_some(),
        event.revision,
        event.id,
        &event.stream,
        &event.event_type,
    ));
}

/// Reads random streams of the store, each from its first event to its last.
async fn streams(
    store: &dyn EventStore,
    workload: &Workload,
    args: &ReadArgs,
    stop: &CancellationToken,
) -> Result<Pass> {
    let names = names(store, workload).await?;
    let mut choices = workload.choices(0);
    let (mut pass, mut pages) = (Pass::default(), Latencies::default());
    let (meter, begin) = (CpuMeter::start(), Instant::now());
    for _ in 0..args.stream_reads {
        if stop.is_cancelled() || names.is_empty() {
            break;
        }
        let stream = names[choices.below(names.len())].clone();
        let mut request = ReadStream::forwards(stream).limit(args.page as usize);
        let asked = Instant::now();
        loop {
            let page = store
                .read_stream(request.clone())
                .await
                .context("reading a stream")?;
            pass.events += page.events.len() as u64;
            match page.next {
                Some(next) if !page.end => request.from = StreamFrom::Revision(next),
                _ => break,
            }
        }
        pages.record(asked.elapsed());
    }
    pass.seconds = begin.elapsed().as_secs_f64();
    pass.cpu = meter.used();
    pass.page_ms = pages.percentiles();
    Ok(pass)
}

/// Up to 10,000 streams that exist: the workload's own, or else whatever the store lists.
async fn names(store: &dyn EventStore, workload: &Workload) -> Result<Vec<StreamId>> {
    let listed = store
        .list_streams(gesta_core::ListStreams {
            prefix: "show-".into(),
            after: None,
            limit: 10_000,
        })
        .await
        .context("listing streams")?;
    let names: Vec<StreamId> = listed.streams.into_iter().map(|info| info.stream).collect();
    Ok(if names.is_empty() {
        workload.streams().to_vec()
    } else {
        names
    })
}
