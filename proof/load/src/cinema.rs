//! Users of a cinema over HTTP, and the proof that no seat was ever held twice.
//!
//! Read [`model`] and [`script`] first (what is asked), then [`generator`] (how), then [`ledger`] (what was answered)
//! and `gesta_kit::judge::seats` (whether the answers can be true).

pub mod checks;
pub mod generator;
pub mod ledger;
pub mod measure;
pub mod model;
pub mod routes;
pub mod script;
pub mod stored;

use tokio::task::LocalSet;

use gesta_report::failure::{Failure, Result};

pub use checks::CinemaChecks;
pub use generator::{Drive, Generator, Phase, windows};
pub use ledger::Ledger;
pub use model::Shows;
pub use routes::{Arrival, Routes, To};
pub use script::{Scenario, Script};

/// Runs the generator on a thread of its own.
pub async fn alone<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    let (send, receive) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || send.send(LocalSet::new().block_on(&runtime, work()));
    std::thread::Builder::new()
        .name("generator".into())
        .spawn(run)?;
    match receive.await {
        Ok(result) => result,
        Err(_) => Err(Failure("the generator has failed".into())),
    }
}
