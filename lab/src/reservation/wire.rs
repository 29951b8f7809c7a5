//! HTTP/1.1 as a load generator needs it: requests written into one buffer, answers read where they lie.
//!
//! Why by hand: a client library costs more per request than the server under test.
//! Invariants: an answer is whole or not there; what stands behind it stays untouched; no input panics.
//! Not here: sockets (`connection`), what an answer means (`judge`).

use std::io::Write as _;

use crate::reservation::model::{Call, Op, Shows};

/// Longest answer that is accepted.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Most lines of an answer's head.
const HEADERS_MAX: usize = 64;

/// Writes a request. `host` is the value of the host header.
pub(crate) fn write_request(out: &mut Vec<u8>, host: &[u8], op: Op, shows: &Shows) {
    let mut id = [0_u8; uuid::fmt::Hyphenated::LENGTH];
    let id = shows
        .id(op.show)
        .hyphenated()
        .encode_lower(&mut id)
        .as_bytes();
    match op.call {
        Call::Create => {
            let mut body = [0_u8; 128];
            let mut rest = &mut body[..];
            // The longest show number and seat count leave room.
            let _ = rest.write_all(br#"{"showId":""#);
            let _ = rest.write_all(id);
            let _ = write!(
                rest,
                r#"","title":"Show {}","maxSeats":{}}}"#,
                op.show, shows.seats
            );
            let left = rest.len();
            let length = body.len() - left;
            out.extend_from_slice(b"POST /shows HTTP/1.1\r\nhost: ");
            finish(out, host, &body[..length]);
        }
        Call::Reserve | Call::Cancel => {
            out.extend_from_slice(b"PATCH /shows/");
            out.extend_from_slice(id);
            out.extend_from_slice(b"/seats/");
            decimal(out, usize::from(op.seat));
            out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
            let body: &[u8] = match op.call {
                Call::Reserve => br#"{"action":"RESERVE"}"#,
                _ => br#"{"action":"CANCEL_RESERVATION"}"#,
            };
            finish(out, host, body);
        }
        Call::Read => {
            out.extend_from_slice(b"GET /shows/");
            out.extend_from_slice(id);
            out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
            out.extend_from_slice(host);
            out.extend_from_slice(b"\r\n\r\n");
        }
    }
}

fn finish(out: &mut Vec<u8>, host: &[u8], body: &[u8]) {
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\ncontent-type: application/json\r\ncontent-length: ");
    decimal(out, body.len());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

fn decimal(out: &mut Vec<u8>, number: usize) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{number}");
}

/// An answer at the beginning of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// The body, chunks put together.
    pub(crate) body: &'a [u8],
    /// Bytes of the buffer that it takes.
    pub(crate) length: usize,
    /// True if the connection may be used again.
    pub(crate) keep: bool,
}

/// Not HTTP, or more of it than is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What ends a body.
enum Framing {
    Length(usize),
    Chunked,
    Close,
}

/// Reads one answer; `None` if more bytes are needed. `eof`: none will come. `chunks` takes bodies that come in pieces.
pub(crate) fn parse<'a>(
    buffer: &'a [u8],
    eof: bool,
    chunks: &'a mut Vec<u8>,
) -> Result<Option<Answer<'a>>, Malformed> {
    let Some(head) = parse_head(buffer)? else {
        return match buffer.len() {
            too_long if too_long > ANSWER_BYTES_MAX => Err(Malformed),
            _ => Ok(None),
        };
    };
    let rest = &buffer[head.length..];
    let answer = |body, taken, keep| Answer {
        status: head.status,
        body,
        length: head.length + taken,
        keep,
    };
    match head.framing {
        Framing::Length(length) if length > ANSWER_BYTES_MAX => Err(Malformed),
        Framing::Length(length) => Ok(rest
            .get(..length)
            .map(|body| answer(body, length, head.keep))),
        Framing::Close if rest.len() > ANSWER_BYTES_MAX => Err(Malformed),
        Framing::Close => Ok(eof.then(|| answer(rest, rest.len(), false))),
        Framing::Chunked => {
            let taken = join_chunks(rest, chunks)?;
            Ok(taken.map(|taken| answer(chunks.as_slice(), taken, head.keep)))
        }
    }
}

struct Head {
    status: u16,
    length: usize,
    framing: Framing,
    keep: bool,
}

/// The head of the first answer that is not an interim one (1xx).
fn parse_head(buffer: &[u8]) -> Result<Option<Head>, Malformed> {
    let mut skipped = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(&buffer[skipped..]) {
            Ok(httparse::Status::Complete(length)) => skipped + length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        let status = response.code.ok_or(Malformed)?;
        if (100..200).contains(&status) {
            skipped = length;
            continue;
        }
        let mut head = Head {
            status,
            length,
            framing: Framing::Close,
            keep: response.version == Some(1),
        };
        if matches!(status, 204 | 304) {
            head.framing = Framing::Length(0);
        }
        for header in response.headers.iter() {
            apply(&mut head, header)?;
        }
        return Ok(Some(head));
    }
}

/// Takes over what a header says about the frame.
fn apply(head: &mut Head, header: &httparse::Header<'_>) -> Result<(), Malformed> {
    let value = header.value.trim_ascii();
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    if is("content-length") {
        let text = std::str::from_utf8(value).map_err(|_| Malformed)?;
        let length = text.parse().map_err(|_| Malformed)?;
        // Chunks win over a length (RFC 9112, 6.3).
        if !matches!(head.framing, Framing::Chunked) && !matches!(head.status, 204 | 304) {
            head.framing = Framing::Length(length);
        }
    } else if is("transfer-encoding") {
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Malformed);
        }
        head.framing = Framing::Chunked;
    } else if is("connection") {
        if value.eq_ignore_ascii_case(b"close") {
            head.keep = false;
        } else if value.eq_ignore_ascii_case(b"keep-alive") {
            head.keep = true;
        }
    }
    Ok(())
}

/// Puts chunks together; the bytes they take, or `None` if the last is not there yet.
fn join_chunks(buffer: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Malformed> {
    out.clear();
    let mut at = 0;
    loop {
        let (head, size) = match httparse::parse_chunk_size(&buffer[at..]) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Malformed),
        };
        at += head;
        let size = usize::try_from(size).map_err(|_| Malformed)?;
        if out.len().saturating_add(size) > ANSWER_BYTES_MAX {
            return Err(Malformed);
        }
        if size == 0 {
            return trailers(buffer, at);
        }
        let Some(chunk) = buffer.get(at..at + size + 2) else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err(Malformed);
        }
        out.extend_from_slice(&chunk[..size]);
        at += size + 2;
    }
}

/// The end of the empty line behind the last chunk and its trailers.
fn trailers(buffer: &[u8], mut at: usize) -> Result<Option<usize>, Malformed> {
    loop {
        let line = &buffer[at..];
        let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        at += end + 1;
        match &line[..end] {
            b"\r" => return Ok(Some(at)),
            trailer if trailer.ends_with(b"\r") => {}
            _ => return Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWS: Shows = Shows { run: 7, seats: 50 };

    type Parsed = (u16, Vec<u8>, usize, bool);

    fn parsed(buffer: &[u8], eof: bool) -> Result<Option<Parsed>, Malformed> {
        let mut chunks = Vec::new();
        let found = parse(buffer, eof, &mut chunks)?;
        Ok(found.map(|a| (a.status, a.body.to_vec(), a.length, a.keep)))
    }

    /// Every proper beginning asks for more; the whole is read, whatever follows.
    fn check(answer: &str, status: u16, body: &str, keep: bool) {
        let bytes = answer.as_bytes();
        for end in 0..bytes.len() {
            assert_eq!(parsed(&bytes[..end], false), Ok(None), "{}", &answer[..end]);
        }
        let wanted = (status, body.as_bytes().to_vec(), bytes.len(), keep);
        assert_eq!(parsed(bytes, false), Ok(Some(wanted.clone())));
        let followed = format!("{answer}HTTP/1.1 200 OK\r\n");
        assert_eq!(parsed(followed.as_bytes(), false), Ok(Some(wanted)));
    }

    #[test]
    fn answers_are_read_whole_however_they_are_split() {
        check(
            "HTTP/1.1 201 Created\r\nContent-Length: 12\r\n\r\nShow created",
            201,
            "Show created",
            true,
        );
        check(
            "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
            202,
            "",
            true,
        );
        check(
            "HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n",
            204,
            "",
            true,
        );
        check(
            "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 18\r\n\r\nSEAT_NOT_AVAILABLE",
            400,
            "SEAT_NOT_AVAILABLE",
            false,
        );
        check(
            "HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
            200,
            "x",
            false,
        );
        check(
            "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 1\r\n\r\nx",
            200,
            "x",
            true,
        );
    }

    #[test]
    fn chunks_are_put_together() {
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nWiki\r\n6;x=y\r\npedia \r\n0\r\n\r\n",
            200,
            "Wikipedia ",
            true,
        );
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n1\r\nx\r\n0\r\nt: u\r\n\r\n",
            200,
            "x",
            true,
        );
    }

    #[test]
    fn interim_answers_are_passed_over() {
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok",
            202,
            "ok",
            true,
        );
    }

    #[test]
    fn pipelined_answers_are_read_one_by_one() {
        let two = b"HTTP/1.1 202 A\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 400 B\r\ncontent-length: 1\r\n\r\ny";
        let (status, _, length, _) = parsed(two, false).unwrap().unwrap();
        assert_eq!(status, 202);
        let (status, body, rest, _) = parsed(&two[length..], false).unwrap().unwrap();
        assert_eq!(
            (status, body.as_slice(), length + rest),
            (400, &b"y"[..], two.len())
        );
    }

    #[test]
    fn a_body_may_end_with_the_connection() {
        let answer = b"HTTP/1.1 200 OK\r\n\r\nuntil the end";
        assert_eq!(parsed(answer, false), Ok(None));
        let (_, body, _, keep) = parsed(answer, true).unwrap().unwrap();
        assert_eq!((body.as_slice(), keep), (&b"until the end"[..], false));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for bad in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        ] {
            assert_eq!(parsed(bad.as_bytes(), false), Err(Malformed), "{bad}");
        }
    }

    #[test]
    fn requests_are_what_the_reference_application_takes() {
        let written = |call, seat| {
            let mut out = Vec::new();
            let op = Op {
                call,
                show: 4,
                seat,
            };
            write_request(&mut out, b"127.0.0.1:8080", op, &SHOWS);
            String::from_utf8(out).unwrap()
        };
        let id = SHOWS.id(4);
        assert_eq!(
            written(Call::Read, 0),
            format!("GET /shows/{id} HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n\r\n")
        );
        let reserve = written(Call::Reserve, 11);
        assert!(reserve.starts_with(&format!("PATCH /shows/{id}/seats/11 HTTP/1.1\r\n")));
        assert!(reserve.ends_with("content-length: 20\r\n\r\n{\"action\":\"RESERVE\"}"));
        assert!(written(Call::Cancel, 0).ends_with("\r\n\r\n{\"action\":\"CANCEL_RESERVATION\"}"));
        let create = written(Call::Create, 0);
        let (head, body) = create.split_once("\r\n\r\n").unwrap();
        assert!(
            head.ends_with(&format!("content-length: {}", body.len())),
            "{head}"
        );
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["showId"], id.to_string());
        assert_eq!(body["maxSeats"], 50);
    }
}
