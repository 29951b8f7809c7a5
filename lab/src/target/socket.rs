//! One connection to an HTTP server, with requests written by hand: cheaper than a client library.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::failure::{Context, Result, fail};
use crate::reservation::parse;

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// A connection with at most one request under way.
pub(super) struct Connection {
    socket: TcpStream,
    address: SocketAddr,
    received: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address).await.context(address)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            address,
            received: Vec::new(),
        })
    }

    /// Sends a request, and makes something of the status and the body of the answer.
    pub(super) async fn ask<T>(
        &mut self,
        request: &[u8],
        judge: impl FnOnce(u16, &[u8]) -> T,
    ) -> Result<T> {
        self.socket.write_all(request).await?;
        self.received.clear();
        let mut chunks = Vec::new();
        loop {
            let before = self.received.len();
            self.received.resize(before + READ_BYTES, 0);
            let count = self.socket.read(&mut self.received[before..]).await?;
            self.received.truncate(before + count);
            match parse(&self.received, count == 0, &mut chunks) {
                Ok(Some(answer)) => {
                    let (judged, keep) = (judge(answer.status, answer.body), answer.keep);
                    if !keep {
                        *self = Self::open(self.address).await?;
                    }
                    return Ok(judged);
                }
                Ok(None) if count > 0 => {}
                Ok(None) => return fail("the connection was closed before the answer"),
                Err(_) => return fail("the answer is not HTTP"),
            }
        }
    }
}
