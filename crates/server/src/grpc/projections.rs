//! `Projections`: what becomes of the five projections of the system, which clients switch on when they start.
//!
//! Three of them are virtual streams here: they run if virtual streams are switched on, which only an operator does, at
//! the store. The other two are not made. So `Enable` succeeds if the projection runs, `Disable` if it does not, and
//! otherwise the refusal says what to do. No other projections exist, and their calls are not served.

use bytes::BytesMut;
use gesta_access::Operation;
use gesta_core::{ErrorKind, EventStore, ReadStream, STREAMS, StreamId};
use gesta_grpc::messages::projections::statistics_req::options::Mode;
use gesta_grpc::messages::projections::statistics_resp::Details;
use gesta_grpc::messages::projections::{
    DisableReq, DisableResp, EnableReq, EnableResp, StatisticsReq, StatisticsResp,
};
use gesta_grpc::{Code, Positions, Refusal, frame};

use super::Result;
use super::call::GrpcCall;
use super::reply::Reply;
use crate::shared::body::MessageSource;

/// A projection of the system.
#[derive(Clone, Copy)]
struct System {
    name: &'static str,
    /// Streams that it makes, as people write them.
    streams: &'static str,
    is_served: bool,
}

const ALL: [System; 5] = [
    System {
        name: "$by_category",
        streams: "$ce-…",
        is_served: true,
    },
    System {
        name: "$by_event_type",
        streams: "$et-…",
        is_served: true,
    },
    System {
        name: "$streams",
        streams: STREAMS,
        is_served: true,
    },
    System {
        name: "$stream_by_category",
        streams: "$category-…",
        is_served: false,
    },
    System {
        name: "$by_correlation_id",
        streams: "$bc-…",
        is_served: false,
    },
];

fn named(name: &str) -> Result<System> {
    let found = ALL.into_iter().find(|system| system.name == name);
    found.ok_or_else(|| {
        let name: String = name.chars().take(60).collect();
        let text = format!("there is no projection {name:?}; those of the system are known alone");
        Refusal::new(Code::NotFound, text)
    })
}

/// Returns why virtual streams are not made; `None` if they are.
async fn off(store: &dyn EventStore) -> Result<Option<String>> {
    let newest = ReadStream::backwards(StreamId::new(STREAMS)?).limit(1);
    match store.read_stream(newest).await {
        Ok(_) => Ok(None),
        Err(error) => match error.kind() {
            ErrorKind::StreamNotFound(_) => Ok(None),
            ErrorKind::Unsupported(why) => Ok(Some(why.clone())),
            _ => Err(error.into()),
        },
    }
}

impl System {
    /// Returns why the projection does not run; `None` if it does.
    fn stopped(self, off: Option<&str>) -> Option<String> {
        match self.is_served {
            true => off.map(str::to_owned),
            false => Some(format!(
                "streams {} are not made by this server",
                self.streams
            )),
        }
    }

    fn details(self, off: Option<&str>, position: &str) -> Details {
        let stopped = self.stopped(off);
        let is_running = stopped.is_none();
        // Whoever reads such a stream finds everything in it that was stored before, so it is never behind.
        let place = if is_running { position } else { "" };
        Details {
            name: self.name.to_owned(),
            effective_name: self.name.to_owned(),
            status: if is_running { "Running" } else { "Stopped" }.to_owned(),
            state_reason: stopped.unwrap_or_default(),
            mode: "Continuous".to_owned(),
            position: place.to_owned(),
            last_checkpoint: place.to_owned(),
            progress: if is_running { 100.0 } else { 0.0 },
            ..Details::default()
        }
    }
}

/// Carries out `Statistics`, of one projection or of all.
pub(crate) async fn statistics(call: &mut GrpcCall) -> Result<Reply> {
    let request: StatisticsReq = call.message().await?;
    // Every call is asked this before its message is read. The store is read past the guard here, so it is asked again.
    call.backing().check(Operation::Info).await?;
    let asked = match request.options.and_then(|options| options.mode) {
        Some(Mode::Name(name)) => vec![named(&name)?],
        Some(Mode::All(_) | Mode::Continuous(_)) => ALL.to_vec(),
        Some(Mode::Transient(_) | Mode::OneTime(_)) => Vec::new(),
        None => {
            return Err(Refusal::invalid(
                "which projections are asked for must be given",
            ));
        }
    };
    let store = &*call.state.store;
    let off = off(store).await?;
    let info = store.info().await?;
    let position = match info.heads.as_slice() {
        [head] => {
            let at = Positions::from(info.incarnation).shown(*head);
            format!("C:{at}/P:{at}")
        }
        _ => String::new(),
    };
    let mut out = BytesMut::new();
    for system in asked {
        let details = Some(system.details(off.as_deref(), &position));
        frame::write(&mut out, &StatisticsResp { details });
    }
    Ok(Reply::Finite(MessageSource::Framed(out.freeze())))
}

/// Carries out `Enable`. It succeeds if the projection runs.
pub(crate) async fn enable(call: &mut GrpcCall) -> Result<Reply> {
    let request: EnableReq = call.message().await?;
    call.backing().check(Operation::Operate).await?;
    let system = named(&request.options.unwrap_or_default().name)?;
    let off = off(&*call.state.store).await?;
    match system.stopped(off.as_deref()) {
        None => Ok(Reply::message(&EnableResp {})),
        Some(why) => Err(Refusal::new(Code::FailedPrecondition, why)),
    }
}

/// Carries out `Disable`. It succeeds if the projection does not run.
pub(crate) async fn disable(call: &mut GrpcCall) -> Result<Reply> {
    let request: DisableReq = call.message().await?;
    call.backing().check(Operation::Operate).await?;
    let system = named(&request.options.unwrap_or_default().name)?;
    let off = off(&*call.state.store).await?;
    match system.stopped(off.as_deref()) {
        Some(_) => Ok(Reply::message(&DisableResp {})),
        None => Err(Refusal::new(
            Code::FailedPrecondition,
            format!(
                "streams {} are virtual streams; `gesta virtual-streams off --store URL` switches all of them off",
                system.streams
            ),
        )),
    }
}
