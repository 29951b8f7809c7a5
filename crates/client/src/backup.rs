//! A copy of the store of a server, part by part as it arrives.

use bytes::Bytes;
use gesta_core::{Error, Result};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Body, Incoming};

use crate::address::Path;
use crate::store::HttpStore;
use crate::transport::{Call, Effect};

/// A copy of a store on its way from its server. Dropping it ends the transfer.
#[derive(Debug)]
pub struct BackupDownload {
    body: Incoming,
    bytes: Option<u64>,
}

impl HttpStore {
    /// Asks the server for a consistent copy of its store. The answer begins when the server has made the copy, which
    /// takes as long as it takes to write one: give [`Config::answer_max`](crate::Config::answer_max) time for that.
    ///
    /// # Errors
    /// `Unsupported` if the database makes its own backups, or the server gives none; `Overloaded` while it makes
    /// another one; `Unavailable`.
    ///
    /// # Cancel safety
    /// The server stops when the future, or the download, is dropped.
    pub async fn backup(&self) -> Result<BackupDownload> {
        let call = Call {
            method: Method::POST,
            path: Path::of("/admin/backup"),
            body: Bytes::new(),
            effect: Effect::Reads,
            stream: None,
        };
        let body = self.open(call).await?.into_body();
        let bytes = body.size_hint().exact();
        Ok(BackupDownload { body, bytes })
    }
}

impl BackupDownload {
    /// The length of the whole copy, if the server tells it.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The next part; `None` after the last one.
    ///
    /// # Errors
    /// `Unavailable` if the connection breaks before the end: what came is not a copy.
    ///
    /// # Cancel safety
    /// A dropped call loses nothing.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                Error::unavailable("the connection broke in the middle of the copy")
                    .caused_by(error)
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
