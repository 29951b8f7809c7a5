//! The cinema: its program, and calls of its HTTP API.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use super::PATIENCE;

/// The program of the cinema beside `gesta`. `None`, said aloud, if only other packages were built; with `CI` set that
/// is a failure.
pub(crate) fn program() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_gesta")).with_file_name("cinema");
    let is_there = program.exists();
    if !is_there {
        let program = program.display();
        assert!(std::env::var_os("CI").is_none(), "no {program}");
        eprintln!("SKIPPED: no {program}; build gesta-cinema to run what needs it");
    }
    is_there.then_some(program)
}

/// An answer of the cinema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Makes a call on a connection of its own, with an idempotency key unless that is empty. An error leaves open whether
/// the call was carried out.
pub(crate) fn call(
    address: &str,
    (method, path): (&str, &str),
    key: &str,
    body: &str,
) -> std::io::Result<Answer> {
    let key = match key {
        "" => String::new(),
        key => format!("idempotency-key: {key}\r\n"),
    };
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{key}\r\n{body}"
    );
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let cut_off = || std::io::Error::other(format!("no whole answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_off)?;
    let length = format!("content-length: {}", body.len());
    if !head.to_lowercase().lines().any(|line| line == length) {
        return Err(cut_off());
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Answer {
        status: status.ok_or_else(cut_off)?,
        body: body.to_owned(),
    })
}

/// Asks for a page.
pub(crate) fn get(address: &str, path: &str) -> std::io::Result<Answer> {
    call(address, ("GET", path), "", "")
}

/// Creates a show.
pub(crate) fn create(address: &str, show: &str, seats: u32, key: &str) -> std::io::Result<Answer> {
    let body = format!(r#"{{"showId": "{show}", "title": "Ran", "maxSeats": {seats}}}"#);
    call(address, ("POST", "/shows"), key, &body)
}

/// Changes a seat: `RESERVE` or `CANCEL_RESERVATION`.
pub(crate) fn change(
    address: &str,
    (show, seat): (&str, u32),
    action: &str,
    key: &str,
) -> std::io::Result<Answer> {
    let path = format!("/shows/{show}/seats/{seat}");
    let body = format!(r#"{{"action": "{action}"}}"#);
    call(address, ("PATCH", &path), key, &body)
}

/// The reserved seats of a show, as the answer to `GET /shows/…` shows them.
pub(crate) fn reserved(answer: &Answer) -> std::collections::BTreeSet<u32> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let show: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let seats = show["seats"].as_array().unwrap().iter();
    let reserved = seats.filter(|seat| seat["status"] == "RESERVED");
    let number =
        |seat: &serde_json::Value| u32::try_from(seat["number"].as_u64().unwrap()).unwrap();
    reserved.map(number).collect()
}
