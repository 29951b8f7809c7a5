//! A step of the sequencer: an append arrives, is decided, leaves in a batch, and is answered when that has committed.
//!
//! The database answers at once, so what is measured is the work of the pure core alone.

#![allow(
    clippy::expect_used,
    reason = "test code: a panic is how a benchmark fails"
)]

use std::sync::Arc;
use std::time::Duration;

use gesta_append::Config;
use gesta_append::core::{Command, Connected, Input, Output, Sequencer, Setting, run_job};
use gesta_core::backend::{BatchOutcome, WriterEpoch};
use gesta_core::{
    Append, EventData, EventId, EventType, ExpectedRevision, Incarnation, LogId, Moment, Now,
    StreamId, Timestamp,
};
use gesta_kit::bench::{self, Work};
use gesta_kit::faulty::{FaultyBackend, World};
use tokio::runtime::Runtime;

const LOG: LogId = LogId(0);
/// The time of all that happens.
const NOW: Now = Now {
    moment: Moment(Duration::from_secs(3_600)),
    wall: Timestamp(1_790_000_000_000_000),
    database: None,
};
/// Streams that are appended to, each known.
const STREAMS: u32 = 500;
/// Appends of a round, and how many arrive between two turns of the pipeline.
const APPENDS: u32 = 10_000;
const AT_ONCE: usize = 50;

struct Driver<'a> {
    runtime: &'a Runtime,
    backend: Arc<FaultyBackend>,
    sequencer: Sequencer<u32>,
    answered: u32,
}

impl<'a> Driver<'a> {
    /// A sequencer that knows all streams.
    fn new(runtime: &'a Runtime) -> Self {
        let _entered = runtime.enter();
        let world = World::new(1);
        let setting = Setting {
            config: Config {
                names_listed_after: usize::MAX,
                ..Config::default()
            },
            log: LOG,
            logs: 1,
            incarnation: Incarnation::random(),
            in_flight_max: 4,
        };
        let mut driver = Self {
            runtime,
            backend: FaultyBackend::new(&world),
            sequencer: Sequencer::new(setting, Arc::default(), NOW),
            answered: 0,
        };
        driver.settle();
        for command in commands(STREAMS) {
            driver.sequencer.on(Input::Command(command), NOW);
        }
        driver.settle();
        assert_eq!(driver.answered, STREAMS, "all are known");
        driver
    }

    /// Does everything until nothing is left to do.
    fn settle(&mut self) {
        loop {
            self.sequencer.work(NOW);
            let outputs = self.sequencer.take_outputs();
            if outputs.is_empty() && !self.sequencer.wants_turn() {
                return;
            }
            for output in outputs {
                self.carry_out(output);
            }
        }
    }

    fn carry_out(&mut self, output: Output<u32>) {
        let input = match output {
            Output::Connect => Input::Connected(Ok(Connected {
                epoch: WriterEpoch(1),
                is_gathered: false,
            })),
            Output::Send(_) => Input::Outcome(BatchOutcome::Committed),
            Output::Read(id, job) => {
                let answer = self.runtime.block_on(run_job(job, &*self.backend, LOG));
                Input::Read(id, answer)
            }
            Output::Answer(_, answer) => {
                answer.expect("stored");
                self.answered += 1;
                return;
            }
            _ => return,
        };
        self.sequencer.on(input, NOW);
    }
}

/// So many appends of one event each, to the streams in turn.
fn commands(count: u32) -> Vec<Command<u32>> {
    let event_type = EventType::new("item-added").expect("valid");
    let streams: Vec<StreamId> = (0..STREAMS)
        .map(|number| StreamId::new(format!("cart-{number}")).expect("valid"))
        .collect();
    let streams = streams.iter().cycle().cloned();
    let command = |(number, stream)| {
        let event = EventData::json(event_type.clone(), r#"{"item":"book","n":1}"#);
        let event = event.with_id(EventId::random());
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        Command::append(number, append, NOW.moment).expect("valid")
    };
    (0..count).zip(streams).map(command).collect()
}

fn main() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().expect("a runtime");
    let prepare = || -> Box<dyn FnOnce() + '_> {
        let mut driver = Driver::new(&runtime);
        let mut commands = commands(APPENDS);
        Box::new(move || {
            while !commands.is_empty() {
                let arriving = commands.drain(commands.len().saturating_sub(AT_ONCE)..);
                for command in arriving {
                    driver.sequencer.on(Input::Command(command), NOW);
                }
                driver.settle();
            }
            assert_eq!(driver.answered, STREAMS + APPENDS);
        })
    };
    bench::main(&[Work {
        what: "an append through the sequencer",
        times: APPENDS,
        prepare: &prepare,
    }]);
}
