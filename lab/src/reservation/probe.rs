//! Asks a server, before any load, whether it is a cinema, and whether it numbers its seats from 0, as the published load does.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::model::{Call, Op, ShowDocument, Shows};
use crate::failure::{Context, Result, fail};
use crate::http::Connection;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before it is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// The show that is created for the probe.
const SHOW: u32 = u32::MAX;

/// The shows of a run on this server; leaves one show behind.
pub(crate) async fn probe(address: SocketAddr, run: u64, seats: u16) -> Result<Shows> {
    let shows = Shows { run, seats };
    let created = insist(address, Call::Create, &shows).await;
    let (status, body) = created.context("creating a show")?;
    // 409: an attempt without an answer had created it.
    if status != 201 && status != 409 {
        let body = String::from_utf8_lossy(&body);
        return fail(format!(
            "{address}: creating a show was answered {status} {body}"
        ));
    }
    let read = insist(address, Call::Read, &shows).await;
    let (status, body) = read.context("reading a show")?;
    let document: ShowDocument =
        serde_json::from_slice(&body).context(format!("{address}: a show, answered {status}"))?;
    if document.seats.len() != usize::from(seats) {
        let found = document.seats.len();
        return fail(format!("{address}: a show of {seats} seats has {found}"));
    }
    match document.seats.iter().map(|seat| seat.number).min() {
        Some(0) | None => Ok(shows),
        Some(first) => fail(format!(
            "{address}: the seats of a show are numbered from {first}, not from 0 as in the published load"
        )),
    }
}

/// Asks again while the server is overloaded or gives no answer.
async fn insist(address: SocketAddr, call: Call, shows: &Shows) -> Result<(u16, Bytes)> {
    let deadline = Instant::now() + PATIENCE;
    let op = Op {
        call,
        show: SHOW,
        seat: 0,
    };
    loop {
        let ask = async {
            let (method, path, body) = op.request(shows);
            let mut connection = Connection::open(address).await?;
            connection.ask(method, &path, body).await
        };
        let in_time = tokio::time::timeout(PATIENCE, ask).await;
        let answer = in_time.unwrap_or_else(|_| fail("no answer came"));
        let is_answered = matches!(answer, Ok((status, _)) if status != 503);
        if is_answered || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
