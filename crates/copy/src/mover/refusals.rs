//! Sources that cannot be moved, or not any more.

use gesta_core::Result;

use super::{Consumers, Move};
use crate::refusal::refuse;
use crate::source::{Closing, Look};

impl Move {
    pub(super) fn check_virtual(&self, look: &Look) -> Result<()> {
        if look.virtual_streams && self.settings.consumers == Consumers::GoOn {
            return refuse(
                "the source has virtual streams, which are made again in the target and can have other revisions there, so \
                 that checkpoints would pass events over: say --new-incarnation, with which checkpoints are refused and \
                 consumers begin again",
            );
        }
        Ok(())
    }
}

/// Makes the error for a source that cannot be moved as it was begun.
pub(super) fn never<T>(done: Closing) -> Result<T> {
    refuse(match done {
        Closing::Scavenged => {
            "the source was scavenged since the move began, and the copy has what was removed: undo the move, begin with an \
             empty target, and do not scavenge while the store moves"
        }
        _ => {
            "the source does not have what was copied from it: it was restored, or has failed over and lost commits; undo the \
             move, and begin with an empty target"
        }
    })
}
