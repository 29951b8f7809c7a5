//! The binary: reads the command line, runs the application, and stops it on Ctrl-C or SIGTERM.

use std::error::Error as _;
use std::process::ExitCode;

use clap::Parser;
use gesta::ErrorKind;
use gesta_cinema::application::{Application, Error};
use gesta_cinema::config::Config;
use tokio::signal::unix::{SignalKind, signal};

/// The same allocator as that of `gesta`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The failure with which the process ends: the exit code and a message.
struct Failure(u8, String);

impl From<Error> for Failure {
    /// Chooses the exit code as `gesta` does, of those that can occur here.
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Store(error) => Some(error.kind()),
            _ => None,
        };
        let code = match kind {
            Some(ErrorKind::InvalidArgument { .. }) => 2,
            Some(ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_)) => 5,
            Some(ErrorKind::Corrupt(_)) => 7,
            _ => 1,
        };
        Failure(code, with_causes(&error))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Config::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(code, message)) => {
            eprintln!("error: {message}");
            ExitCode::from(code)
        }
    }
}

async fn run(config: Config) -> Result<(), Failure> {
    start_log(&config.log)?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| Failure(1, error.to_string()))?;
    let application = Application::start(config).await?;
    greet(&application).await?;
    let why = tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
        reason = application.ended_by_itself() => Err(Failure(1, reason)),
    };
    tracing::info!("stopping: running requests are answered; once more stops at once");
    tokio::select! {
        stopped = application.shutdown() => stopped?,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("error: stopped at once");
            std::process::exit(130);
        }
    }
    tracing::info!("stopped");
    why
}

/// Logs what runs and where.
async fn greet(application: &Application) -> Result<(), Error> {
    let info = application.store().info().await?;
    tracing::info!(
        backend = %info.backend,
        engine = %info.engine,
        logs = info.logs,
        incarnation = %info.incarnation,
        durability = info.durability.name(),
        settings = info.durability.detail(),
        "store open"
    );
    let address = application.server().local_addr();
    tracing::info!("listening on http://{address}");
    tracing::info!(
        "try: curl -d '{{\"showId\":\"01890a5d-ac96-774b-bcce-b302099a8057\",\"title\":\"Seven Samurai\",\"maxSeats\":50}}' http://{address}/shows"
    );
    Ok(())
}

/// Makes log lines go to standard error.
fn start_log(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure(2, format!("log filter {filter:?}: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init()
        .map_err(|error| Failure(1, format!("log: {error}")))
}

/// Returns the message of an error, then each cause that adds something.
fn with_causes(error: &Error) -> String {
    let mut message = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
    }
    message
}
