//! `Monitoring/Stats`: sends a few figures again and again. All figures are at `/metrics`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream;
use gesta_access::Operation;
use gesta_grpc::messages::monitoring::{StatsReq, StatsResp};
use gesta_grpc::{Refusal, frame};

use super::Result;
use super::call::GrpcCall;
use super::reply::{self, Reply};
use crate::state::State;

/// Shortest time between two messages.
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// Longest time between two messages.
const PERIOD_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Carries out `Stats`.
pub(crate) async fn stats(call: &mut GrpcCall) -> Result<Reply> {
    let request: StatsReq = call.message().await?;
    let period = Duration::from_millis(request.refresh_time_period_in_ms);
    let ticks = tokio::time::interval(period.clamp(PERIOD_MIN, PERIOD_MAX));
    let ticket = call.enter_subscriptions()?;
    // Who may not is refused at once. It is asked again with each message, for rights may be taken away meanwhile.
    call.backing().check(Operation::Observe).await?;
    let begun = Some((call.backing(), ticks));
    let parts = stream::unfold(begun, |begun| async {
        let (on, mut ticks) = begun?;
        let state = &on.state;
        tokio::select! {
            () = state.stopping.cancelled() => {
                Some((Err(Refusal::stopping()), None))
            }
            _ = ticks.tick() => {
                if let Err(refusal) = on.check(Operation::Observe).await {
                    return Some((Err(refusal), None));
                }
                let part = frame::framed(&figures(state));
                Some((Ok(part), Some((on, ticks))))
            }
        }
    });
    Ok(Reply::Endless(reply::made(parts), Some(ticket)))
}

fn figures(state: &State) -> StatsResp {
    let now = state.in_flight();
    let figures = [
        ("gesta-connections", now.connections),
        ("gesta-requests-in-flight", now.requests),
        ("gesta-subscriptions", now.subscriptions),
        ("gesta-bytes-in-flight", now.bytes),
    ];
    let stats: BTreeMap<String, String> = figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect();
    StatsResp { stats }
}
