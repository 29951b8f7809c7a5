//! `POST /admin/backup`: returns a consistent copy of the store as the body of the answer.
//!
//! Why only administrators may ask for it, or callers on loopback listeners while nobody has to prove who they are: a
//! backup is the whole store, with the hashes of all passwords.
//! Why a media type is asked for: without it, any web page could make a browser send the request.
//! Not here: how a copy is made ([`BackupSource`](crate::BackupSource), which the binary gives).

use std::fs::File;
use std::io::Read;

use bytes::Bytes;
use futures::stream;
use gesta_access::OwnedOperation;
use gesta_core::Error;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, HeaderValue};

use crate::call::{Answer, Call, with_type};
use crate::http::maintenance::check_administrator;
use crate::http::write::check_media_type;
use crate::shared::body::AnswerBody;
use crate::shared::problem::{self, Problem, Result};

/// Bytes of a copy that are read at once.
const PART_BYTES: usize = 256 * 1_024;

/// Carries out `POST /admin/backup`.
pub(crate) async fn backup(call: &Call<'_>) -> Result<Answer> {
    call.parameters(&[])?;
    check_media_type(call)?;
    let state = call.state;
    check_administrator(call, "gives no backups").await?;
    let Some(source) = &state.backups else {
        return Err(Problem::new(
            problem::UNSUPPORTED,
            "this server cannot copy its store",
        ));
    };
    let line = call.audit(OwnedOperation::Manage, "backup");
    let copied = source.copy().await.map_err(Problem::from);
    line.answered(&copied);
    let file = copied?;
    let length = file.metadata().map_err(unreadable)?.len();
    // The copy holds whatever users have stored.
    call.activity.set_verbatim();
    let parts = stream::try_unfold(file, |file| async {
        let read = tokio::task::spawn_blocking(move || next_part(file)).await;
        read.unwrap_or_else(|error| Err(unreadable(error)))
    });
    let media_type = HeaderValue::from_static("application/vnd.sqlite3");
    let mut answer = with_type(StatusCode::OK, media_type, AnswerBody::parts(parts));
    answer
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(answer)
}

/// Reads the next part of the file; returns `None` at its end.
fn next_part(mut file: File) -> gesta_core::Result<Option<(Bytes, File)>> {
    let mut part = Vec::with_capacity(PART_BYTES);
    let limit = u64::try_from(PART_BYTES).unwrap_or(u64::MAX);
    (&mut file)
        .take(limit)
        .read_to_end(&mut part)
        .map_err(unreadable)?;
    Ok((!part.is_empty()).then(|| (Bytes::from(part), file)))
}

fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unavailable("the copy cannot be read").caused_by(error)
}
