//! Users, tokens and default rights in `gesta all import`: they are taken only if the command says so.
//!
//! Why: on the store itself nobody asks who calls, so whoever has written the input would be administrator of the store
//! without a word, or keep its administrators out. Invariant: accounts of an input never join, change or close those
//! that the store has; they come into a store that has none, or has them from the same input.

use std::collections::HashSet;
use std::fs::File;

use gesta_access::holds_accounts;
use gesta_core::{EventId, EventStore, ListStreams, StreamId};

use super::import_target::read_target;
use crate::args::AllImport;
use crate::exit::{Failure, Outcome};
use crate::input::{Feed, Ids, LineEvent, refuse_line};
use crate::output::{count, say};

/// What the names of streams of accounts begin with, and names that are one.
const BEGINNINGS: [&str; 5] = ["$access", "$settings", "$token-", "$user-", "$users"];
/// The most names in one page.
const PAGE: usize = 1_000;

/// Refuses a line that would change who may do what, unless that is accepted. Returns how many such lines it is.
pub(super) fn accepted(line: u64, stream: &StreamId, args: &AllImport) -> Outcome<u64> {
    match (holds_accounts(stream), args.with_accounts) {
        (false, _) => Ok(0),
        (true, true) => Ok(1),
        (true, false) => Err(refuse(line, stream)),
    }
}

/// Says that accounts were taken, if so many events of them were.
pub(super) fn tell(accounts: u64) {
    if accounts > 0 {
        say!(
            "users, tokens and default rights are those of the input, with {}: see who they are with `gesta user list`",
            count(accounts, "event")
        );
    }
}

fn refuse(line: u64, stream: &StreamId) -> Failure {
    let name = stream.as_str();
    refuse_line(
        line,
        &format!(
            "is of the stream {name:?}, which holds users, tokens or the rights of all streams; leave such lines out, or accept \
             with --with-accounts that the accounts of the input are those of the store"
        ),
    )
}

/// Reads a whole file, and refuses it if a line changes accounts, unless that is accepted. Returns the ids of the
/// events of accounts.
pub(super) async fn look_through(file: File, args: &AllImport) -> Outcome<HashSet<EventId>> {
    let mut accounts = HashSet::new();
    let mut feed = Feed::start(Some(file), Ids::OfText, 0)?;
    while let Some(LineEvent {
        line,
        stream,
        event,
        ..
    }) = feed.next().await?
    {
        let Some(stream) = stream.or_else(|| args.stream.clone()) else {
            continue;
        };
        if !holds_accounts(&stream) {
            continue;
        }
        if line > args.skip && !args.with_accounts {
            return Err(refuse(line, &stream));
        }
        accounts.extend(event.id);
    }
    Ok(accounts)
}

/// Refuses a store that has accounts of its own. `of_input` are the ids of the events of accounts in the input, which
/// an earlier import may have stored; of standard input they are not known before (`has_file`).
pub(super) async fn refuse_others(
    store: &dyn EventStore,
    of_input: &HashSet<EventId>,
    has_file: bool,
) -> Outcome {
    for beginning in BEGINNINGS {
        let mut request = ListStreams {
            prefix: beginning.to_owned(),
            after: None,
            limit: PAGE,
        };
        loop {
            let page = store.list_streams(request.clone()).await?;
            for info in page.streams {
                if !holds_accounts(&info.stream) {
                    continue;
                }
                let there = read_target(store, &info.stream).await?;
                if !there.ids.is_subset(of_input) {
                    let name = info.stream.as_str();
                    let why = match has_file {
                        true => {
                            format!("the stream {name:?} holds others than the file of the input;")
                        }
                        false => format!(
                            "there is the stream {name:?}; if an import of this input was stopped, repeat it with the same input as \
                             a file, which can be read before (gesta all import FILE); else"
                        ),
                    };
                    return Err(Failure::usage(format!(
                        "--with-accounts needs a store without accounts: {why} import into a new store, or without the lines \
                         of accounts",
                    )));
                }
            }
            match page.next {
                None => break,
                next => request.after = next,
            }
        }
    }
    Ok(())
}
