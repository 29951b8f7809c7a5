//! Asks a port or a PostgreSQL server something.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::Result;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Tells whether a PostgreSQL server at `addr` lets clients in: it answers a start-up message by `R`.
pub(crate) fn answers(addr: SocketAddr) -> bool {
    let attempt = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut message = vec![0, 0, 0, 0];
        message.extend_from_slice(&196_608_u32.to_be_bytes());
        message.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
        let length = u32::try_from(message.len()).unwrap_or(0);
        message[..4].copy_from_slice(&length.to_be_bytes());
        stream.write_all(&message)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    attempt().is_ok_and(|kind| kind == b'R')
}

/// Connects to a database without TLS. The connection ends when the client is dropped; if it breaks, the next call of
/// the client fails.
///
/// # Errors
/// If the server does not let the client in.
pub async fn connect(url: &str) -> std::result::Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Runs statements and returns the first column of the first row of their answer.
async fn first_value(url: &str, sql: &str) -> Result<Option<String>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let driver = tokio::spawn(connection);
    let messages = client.simple_query(sql).await?;
    drop(client);
    driver.await??;
    let value = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_owned)),
        _ => None,
    });
    Ok(value.flatten())
}

/// Does what [`first_value`] does, but blocks. It can be used inside and outside of a runtime.
pub(crate) fn query(url: &str, sql: &str) -> Result<Option<String>> {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    let worker = std::thread::spawn(move || -> Result<Option<String>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, first_value(&url, &sql));
            answer.await.map_err(|_| "the server does not answer")?
        })
    });
    worker.join().map_err(|_| "the helper thread panicked")?
}
