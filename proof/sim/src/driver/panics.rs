//! Panics of schedules: they are findings, and nothing is printed about them.
//!
//! Why a hook: a schedule that panics is run hundreds of times while it is shrunk, and only the hook is told where it
//! panicked.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// What the last panic of this thread said, if it runs a schedule.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Lets the hook of before hear only of panics outside of schedules.
fn set_hook() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_caught = CAUGHT.with_borrow_mut(|caught| {
            let text = panic.payload_as_str().unwrap_or("of an unknown kind");
            let at = panic.location().map(|at| format!(" at {at}"));
            let text = format!("panic{}: {text}", at.unwrap_or_default());
            caught.as_mut().map(|caught| *caught = text).is_some()
        });
        if !is_caught {
            before(panic);
        }
    }));
}

/// Runs a schedule.
///
/// # Errors
/// What it said if it has panicked.
pub(super) fn caught<T>(schedule: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(set_hook);
    let before = CAUGHT.replace(Some(String::new()));
    let ran = catch_unwind(AssertUnwindSafe(schedule));
    let caught = CAUGHT.replace(before);
    ran.map_err(|_| caught.unwrap_or_default())
}
