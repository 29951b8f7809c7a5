//! The binary: reads the command line, runs the application, stops it on Ctrl-C or SIGTERM.

mod args;

use std::process::ExitCode;

use clap::Parser;
use gesta::{ErrorKind, EventStore};
use gesta_cinema::application::{Application, Error};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;

/// Why the process ends without success.
enum Failure {
    /// A message and the exit code that fits it.
    Message(u8, String),
    Application(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Application(error.into())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(&args));
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(Failure::Message(1, error.to_string())),
    };
    let (code, message) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Message(code, message)) => (code, message),
        Err(Failure::Application(error)) => (code_of(&error), with_causes(&error)),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

async fn run(args: &Args) -> Result<(), Failure> {
    start_log(&args.log)?;
    let application = Application::start(args.config()).await?;
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| Failure::Message(1, error.to_string()))?;
    greet(&application).await?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping: running requests are answered; once more stops at once");
    tokio::select! {
        stopped = application.shutdown() => stopped?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Message(130, "stopped at once".into())),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Tells what runs and where.
async fn greet(application: &Application) -> Result<(), Failure> {
    let info = application.store().info().await.map_err(Error::from)?;
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

/// Sends log lines to standard error.
fn start_log(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::Message(2, format!("log filter {filter:?}: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init()
        .map_err(|error| Failure::Message(1, format!("log: {error}")))
}

/// The exit codes of `gesta`, as far as they can come up.
fn code_of(error: &Error) -> u8 {
    let Error::Store(error) = error else {
        return 1;
    };
    match error.kind() {
        ErrorKind::InvalidArgument { .. } => 2,
        ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_) => 5,
        ErrorKind::Corrupt(_) => 7,
        _ => 1,
    }
}

/// The message, then each cause that adds something.
fn with_causes(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}
