//! Tests that a copy of the store arrives as it is.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::Error;
use gesta_memory::MemoryStore;
use gesta_server::{BackupSource, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::config;
use crate::raw::soon;

/// Bytes in which a copy is sent at once are a multiple of this number.
const PART_BYTES: usize = 64 * 1024;
const PARTS: usize = 16;

/// A source whose copies are these bytes.
struct Bytes(Vec<u8>);

impl BackupSource for Bytes {
    fn copy(&self) -> BoxFuture<'_, gesta_core::Result<File>> {
        let made = || -> std::io::Result<File> {
            let mut file = tempfile::tempfile()?;
            file.write_all(&self.0)?;
            file.rewind()?;
            Ok(file)
        };
        let unmade = |error| Error::unavailable("the copy cannot be made").caused_by(error);
        let made = made().map_err(unmade);
        std::future::ready(made).boxed()
    }
}

/// What happened: whoever could append, and could guess where data lie in the file of a store, could spoil its backups
/// through the server. Data at the end of a part that looked like an empty error of HTTP were taken for one, and a
/// problem document was sent in their place. Goal: whatever is stored, a copy arrives byte for byte.
#[tokio::test]
async fn a_copy_that_looks_like_an_error_at_the_end_of_each_part_arrives_as_it_is() {
    let planted = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let mut part = vec![b'x'; PART_BYTES];
    part[PART_BYTES - planted.len()..].copy_from_slice(planted);
    let copy = part.repeat(PARTS);
    let bound = gesta_server::bind(config()).await.expect("a free port");
    let server = bound
        .with_backups(Arc::new(Bytes(copy.clone())))
        .serve(Arc::new(MemoryStore::new()), Registry::default());
    let socket = TcpStream::connect(server.local_addr()).await;
    let mut socket = socket.expect("a connection");
    let request = "POST /admin/backup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                   Content-Length: 0\r\nConnection: close\r\n\r\n";
    let sent = soon(socket.write_all(request.as_bytes())).await;
    sent.expect("sent");
    let mut answer = Vec::new();
    let read = soon(socket.read_to_end(&mut answer)).await;
    read.expect("read to the end");
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let body = &answer[head.expect("a head") + 4..];
    assert_eq!(body.len(), copy.len());
    assert!(body == copy, "each byte is the one that is stored");
    soon(server.shutdown()).await;
}
