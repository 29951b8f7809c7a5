//! A connection on which a test sends bytes.
//!
//! Tests of other crates include this file. It names nothing of the tests of this crate.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest time that a test waits for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits for `what`, with a deadline.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("in time")
}

/// A connection on which a test sends bytes.
pub(crate) struct Raw {
    socket: TcpStream,
    pub(crate) received: String,
}

impl Raw {
    /// Connects, and sends these bytes.
    pub(crate) async fn to(address: SocketAddr, bytes: &str) -> Self {
        let socket = TcpStream::connect(address).await.expect("a connection");
        let mut raw = Self {
            socket,
            received: String::new(),
        };
        raw.say(bytes).await;
        raw
    }

    /// Makes a call, and reads the head of its answer.
    pub(crate) async fn call(
        address: SocketAddr,
        (method, target): (&str, &str),
        authorization: &str,
        body: &str,
    ) -> Self {
        let authorization = match authorization {
            "" => String::new(),
            value => format!("Authorization: {value}\r\n"),
        };
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let mut raw = Self::to(address, &request).await;
        raw.until("\r\n\r\n").await;
        raw
    }

    /// Returns the status of the answer, whose head was read.
    pub(crate) fn status(&self) -> u16 {
        self.received[9..12].parse().expect("a status")
    }

    /// Sends bytes. Whether the server has closed the connection, reading shows.
    pub(crate) async fn say(&mut self, bytes: &str) {
        let _ = soon(self.socket.write_all(bytes.as_bytes())).await;
    }

    /// Reads more bytes; returns false at the end.
    pub(crate) async fn more(&mut self) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        match soon(self.socket.read(&mut buffer)).await {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.received
                    .push_str(&String::from_utf8_lossy(&buffer[..n]));
                true
            }
        }
    }

    /// Reads until this text has come.
    pub(crate) async fn until(&mut self, text: &str) {
        let come = async {
            while !self.received.contains(text) {
                assert!(
                    self.more().await,
                    "ended before {text:?}: {}",
                    self.received
                );
            }
        };
        soon(come).await;
    }

    /// Reads until the server closes.
    pub(crate) async fn rest(mut self) -> String {
        soon(async { while self.more().await {} }).await;
        self.received
    }
}
