//! Asks Patroni and etcd by HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a look may take. A Patroni that hangs accepts connections and does not answer.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Tells whether `GET path` is answered with status 200 within [`LOOK_MAX`].
pub(super) fn is_so(address: SocketAddr, path: &str) -> bool {
    let answer = request(address, "GET", path, "", LOOK_MAX);
    answer.is_ok_and(|(status, _)| status == 200)
}

/// Sends a request; returns the status and the whole answer.
pub(super) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    answer_max: Duration,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, LOOK_MAX)?;
    stream.set_read_timeout(Some(answer_max))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other("no status"))?;
    Ok((status, answer))
}
