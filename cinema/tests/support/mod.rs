//! A client of a few lines: one connection, one request after the other.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longest wait for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connect");
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("write");
    }

    /// The next answer; `None` if the connection was closed.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        tokio::time::timeout(DEADLINE, self.read())
            .await
            .expect("an answer in time")
    }

    async fn read(&mut self) -> Option<Answer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match self.stream.read_line(&mut head).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        let head = head.to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Answer {
            status: head[9..12].parse().expect("a status"),
            head,
            body: String::from_utf8(body).expect("text"),
        })
    }

    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Answer {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        self.send(request.as_bytes()).await;
        self.answer().await.expect("an answer")
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, "", "").await
    }

    pub(crate) async fn create(&mut self, id: &str, seats: u32) -> Answer {
        let body = format!(r#"{{"showId": "{id}", "title": "Ran \"乱\"", "maxSeats": {seats}}}"#);
        self.request("POST", "/shows", "", &body).await
    }

    pub(crate) async fn change(&mut self, id: &str, seat: u32, action: &str) -> Answer {
        let body = format!(r#"{{"action": "{action}"}}"#);
        let path = format!("/shows/{id}/seats/{seat}");
        self.request("PATCH", &path, "", &body).await
    }

    pub(crate) async fn reserve(&mut self, id: &str, seat: u32) -> Answer {
        self.change(id, seat, "RESERVE").await
    }

    /// Asks again until the body is this one.
    pub(crate) async fn get_until(&mut self, path: &str, body: &str) -> Answer {
        let asked = self.get_until_it(path, |found| found == body);
        tokio::time::timeout(DEADLINE, asked).await.expect(body)
    }

    /// Asks again until the body has this in it.
    pub(crate) async fn get_until_it_has(&mut self, path: &str, part: &str) -> Answer {
        let asked = self.get_until_it(path, |found| found.contains(part));
        tokio::time::timeout(DEADLINE, asked).await.expect(part)
    }

    async fn get_until_it(&mut self, path: &str, is_right: impl Fn(&str) -> bool) -> Answer {
        loop {
            let answer = self.get(path).await;
            if is_right(&answer.body) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
