//! Asks a server, before any load, whether it is a cinema, and whether it numbers its seats from 0, as the published load does.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::failure::{Context, Result, fail};
use crate::reservation::judge::ShowDocument;
use crate::reservation::model::{Call, Op, Shows};
use crate::reservation::wire;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before it is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// The show that is created for the probe.
const SHOW: u32 = u32::MAX;

/// The shows of a run on this server; leaves one show behind.
pub(crate) fn probe(address: SocketAddr, run: u64, seats: u16) -> Result<Shows> {
    let shows = Shows { run, seats };
    let (status, body) = insist(address, Call::Create, &shows).context("creating a show")?;
    // 409: an attempt without an answer had created it.
    if status != 201 && status != 409 {
        let body = String::from_utf8_lossy(&body);
        return fail(format!(
            "{address}: creating a show was answered {status} {body}"
        ));
    }
    let (status, body) = insist(address, Call::Read, &shows).context("reading a show")?;
    let document: ShowDocument<'_> =
        serde_json::from_slice(&body).context(format!("{address}: a show, answered {status}"))?;
    if document.seats.len() != usize::from(seats) {
        let found = document.seats.len();
        return fail(format!("{address}: a show of {seats} seats has {found}"));
    }
    let first = document.seats.iter().map(|seat| seat.number).min();
    if let Some(first) = first.filter(|first| *first != 0) {
        return fail(format!(
            "{address}: the seats of a show are numbered from {first}, not from 0 as in the published load"
        ));
    }
    Ok(shows)
}

/// Asks again while the server is overloaded or gives no answer.
fn insist(address: SocketAddr, call: Call, shows: &Shows) -> Result<(u16, Vec<u8>)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask(address, call, shows);
        let again = !matches!(answer, Ok((status, _)) if status != 503);
        if !again || Instant::now() > deadline {
            return answer;
        }
        std::thread::sleep(PAUSE);
    }
}

fn ask(address: SocketAddr, call: Call, shows: &Shows) -> Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let op = Op {
        call,
        show: SHOW,
        seat: 0,
    };
    let mut request = Vec::new();
    wire::write_request(&mut request, address.to_string().as_bytes(), op, shows);
    stream.write_all(&request)?;
    let (mut buffer, mut chunks) = (Vec::new(), Vec::new());
    let mut part = [0; 16 * 1024];
    loop {
        let count = stream.read(&mut part)?;
        buffer.extend_from_slice(&part[..count]);
        match wire::parse(&buffer, count == 0, &mut chunks) {
            Ok(Some(answer)) => return Ok((answer.status, answer.body.to_vec())),
            Ok(None) if count > 0 => {}
            Ok(None) => return fail("the connection was closed before the answer"),
            Err(wire::Malformed) => return fail("the answer is not HTTP"),
        }
    }
}
