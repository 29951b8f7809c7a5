//! Ctrl-C: the first ends the measurement and reports what there is, the second ends the process.

use tokio_util::sync::CancellationToken;

/// Exit code of a process that was interrupted: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// A token that is cancelled by Ctrl-C (or SIGTERM). Must be called within a runtime.
#[must_use]
pub fn on_interrupt() -> CancellationToken {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        wait().await;
        eprintln!("stopping; again to leave without a result");
        cancelled.cancel();
        wait().await;
        std::process::exit(INTERRUPTED);
    });
    token
}

async fn wait() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
