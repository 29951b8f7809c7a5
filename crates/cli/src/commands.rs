//! Runs the commands.

mod access;
mod address;
mod admin;
mod all;
mod appending;
mod backup;
mod client;
mod cluster;
mod copy;
mod database;
mod group;
mod import;
mod import_accounts;
mod import_groups;
mod import_places;
mod import_target;
mod index;
mod journal;
mod maintenance;
mod node;
mod open_files;
mod progress;
mod projection;
mod relocation;
mod serve;
mod served;
mod stream;
mod supervisor;
mod timer;
mod tls;
mod user;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;

use clap::CommandFactory;
use gesta::Missing;
use gesta_client::HttpStore;
use gesta_core::{Error, ErrorKind, EventStore};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Cli, Command, DEFAULT_SERVER, Global, LogFormat};
use crate::config::DEFAULT_STORE;
use crate::exit::{Failure, Outcome};
use crate::log_lines::LogLines;
use crate::named_store::{self, Named};
use crate::output::{Output, say};
use crate::private_file;
use crate::version;

use self::progress::Progress;
use self::waiting::told_if_slow;

/// What commands log unless they are told otherwise: errors, and connections that nothing protects.
const LOG_FILTER: &str = "error,gesta::unprotected=warn";

/// Runs one command.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let Cli {
        mut global,
        command,
    } = cli;
    // Beside a server the environment names its database, which is not what a probe asks.
    let is_probe = matches!(command, Command::Health { .. }) && global.store_file.is_none();
    let file = match is_probe {
        true => None,
        false => read_store_file(&mut global)?,
    };
    if let Command::Serve(serve) = command {
        return serve::run(global, serve, file).await;
    }
    // A copy and a move have two stores, which texts name themselves.
    let has_two = matches!(command, Command::Copy(_) | Command::Move(_));
    if let Some(urls) = given_store(&global).filter(|_| !has_two) {
        named_store::set(Named::new(urls, file));
    }
    let environment = |name| std::env::var(name).ok();
    let filter = global
        .log_filter
        .clone()
        .or_else(|| environment("GESTA_LOG_FILTER"));
    start_log(
        global.log_format.unwrap_or(LogFormat::Text),
        filter.as_deref().unwrap_or(LOG_FILTER),
    )?;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for warning in crate::config::mistyped(names)? {
        say!("warning: {warning}");
    }
    let mut output = Output::stdout(global.output);
    match command {
        Command::Serve(_) => {}
        Command::Stream(command) => stream::run(&global, command, &mut output).await?,
        Command::All(command) => all::run(&global, command, &mut output).await?,
        Command::Import(args) => journal::run(&global, args, &mut output).await?,
        Command::Copy(args) => copy::run(&args, &mut output).await?,
        Command::Move(args) => relocation::run(&args, &mut output).await?,
        Command::Group(command) => group::run(&global, command, &mut output).await?,
        Command::Index(args) => index::run(&global, args, &mut output).await?,
        Command::Projection(args) => projection::run(&global, args, &mut output).await?,
        Command::Timer(command) => timer::run(&global, command, &mut output).await?,
        Command::Schema(command) => {
            admin::schema(&database_url(&global)?, command, &mut output).await?
        }
        Command::Cluster(command) => {
            cluster::run(&database_url(&global)?, command, &mut output).await?
        }
        Command::User(command) => user::run(&mut global, command, &mut output).await?,
        Command::Token(command) => user::token(&mut global, command, &mut output).await?,
        Command::Verify => maintenance::verify(&global, &mut output).await?,
        Command::Backup(backup) => backup::backup(&global, &backup, &mut output).await?,
        Command::Restore(restore) => {
            backup::restore(&database_url(&global)?, &restore, &mut output).await?
        }
        Command::Scavenge(scavenge) => {
            maintenance::scavenge(&global, &scavenge, &mut output).await?
        }
        Command::VirtualStreams(command) => {
            maintenance::virtual_streams(&global, command, &mut output).await?
        }
        Command::Info => admin::info(&global, &mut output).await?,
        Command::Health { ready } => admin::health(&global, ready, &mut output).await?,
        Command::Version => {
            let commit = Some(version::COMMIT).filter(|commit| !commit.is_empty());
            let record = serde_json::json!({"version": version::VERSION, "commit": commit});
            output.record(&record, |_| format!("gesta {}", version::LONG))?;
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gesta", &mut text);
            output.text(&String::from_utf8_lossy(&text))?;
        }
        Command::Man { folder } => {
            let made = std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder));
            made.map_err(|error| {
                Failure::usage(format!(
                    "pages cannot be written to {}: {error}",
                    folder.display()
                ))
            })?;
        }
    }
    output.flush()
}

/// Takes the URL of the store from a file, if one is named, and returns the file. Flags have precedence over the
/// environment.
fn read_store_file(global: &mut Global) -> Outcome<Option<PathBuf>> {
    if !global.store.is_empty() {
        return Ok(None);
    }
    let (path, name) = match (&global.store_file, std::env::var_os("GESTA_STORE_FILE")) {
        (Some(path), _) => (path.clone(), "--store-file"),
        (None, Some(path)) if std::env::var_os("GESTA_STORE").is_none() => {
            (path.into(), "GESTA_STORE_FILE")
        }
        (None, Some(_)) => {
            let text = "GESTA_STORE and GESTA_STORE_FILE are both set: set one of them";
            return Err(Failure::usage(text));
        }
        (None, None) => return Ok(None),
    };
    private_file::warn_of_others("the URL of the store", &path);
    let refuse = |why: &str| Failure::usage(format!("{name} {}: {why}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| refuse(&error.to_string()))?;
    let lines = text.lines().map(str::trim);
    let urls: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    let is_postgres = |url: &String| url.starts_with("postgres");
    // A line may hold a password, so no line is repeated in an error.
    match urls.as_slice() {
        [_] => {}
        [] => {
            return Err(refuse(
                "must hold one line, the URL of the store, found none",
            ));
        }
        several if several.iter().all(is_postgres) || several.iter().all(|url| is_server(url)) => {}
        several => {
            let count = several.len();
            let why = format!(
                "must hold one line, the URL of the store (or a line for each of its databases, or of its nodes), found \
                 {count}"
            );
            return Err(refuse(&why));
        }
    }
    global.store = urls;
    Ok(Some(path))
}

fn given_store(global: &Global) -> Option<String> {
    global
        .store_urls()
        .or_else(|| std::env::var("GESTA_STORE").ok())
        .filter(|url| !url.is_empty())
}

fn is_server(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// Returns the URL of the database that an administrative command works on.
fn database_url(global: &Global) -> Outcome<String> {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_STORE.into());
    if is_server(&url) {
        return Err(Failure::usage(
            "--store (GESTA_STORE) names a server, and this command works on a database: give --store sqlite:PATH or postgres://…",
        ));
    }
    Ok(url)
}

/// Connects to a server, and asks whether it is one of Gesta before anything is sent, or read from standard input. That
/// needs no part of the store, for a part may be away that the command does not need.
async fn connect_to_server(global: &Global, url: &str) -> Outcome<HttpStore> {
    let server = client::store(global, url)?;
    // Where a proxy keeps strangers out, nobody can tell before the command says who calls.
    let Err(error) = told_if_slow(server.look()).await else {
        return Ok(server);
    };
    let hint = "start one with `gesta serve`, or give --store with a store or server URL";
    Err(match error.kind() {
        ErrorKind::Unavailable(text) if given_store(global).is_none() => {
            let text = format!("{text}; {hint}");
            Error::unavailable(text).caused_by(error).into()
        }
        _ => error.into(),
    })
}

/// Opens the store, or connects to the server, that a data command works on. Only commands that append make a store
/// that is missing.
async fn connect(global: &Global, missing: Missing) -> Outcome<Arc<dyn EventStore>> {
    let url = given_store(global).unwrap_or_else(|| DEFAULT_SERVER.into());
    if is_server(&url) {
        return Ok(Arc::new(connect_to_server(global, &url).await?));
    }
    let options = gesta::Options::default().missing(missing);
    Ok(options.open_database(&url).await?)
}

/// Runs `work` on a store that exists and closes the store afterwards, also after Ctrl-C.
async fn with_store<F>(global: &Global, work: impl FnOnce(Arc<dyn EventStore>) -> F) -> Outcome
where
    F: Future<Output = Outcome>,
{
    with_store_telling(global, &Progress::default(), work).await
}

/// Does what [`with_store`] does, but Ctrl-C is a failure that tells how far the command came.
async fn with_store_telling<F>(
    global: &Global,
    progress: &Progress,
    work: impl FnOnce(Arc<dyn EventStore>) -> F,
) -> Outcome
where
    F: Future<Output = Outcome>,
{
    work_on(global, Missing::Refuse, progress, async |store| {
        work(store).await
    })
    .await
}

/// Does what [`with_store_telling`] does, but makes the store if there is none; for commands that append.
async fn with_new_store<F>(
    global: &Global,
    progress: &Progress,
    work: impl FnOnce(Arc<dyn EventStore>) -> F,
) -> Outcome
where
    F: Future<Output = Outcome>,
{
    work_on(global, Missing::Create, progress, async |store| {
        work(store).await
    })
    .await
}

/// Begins to receive Ctrl-C, which no longer ends the process by itself.
fn interrupts() -> Outcome<Signal> {
    Ok(signal(SignalKind::interrupt())?)
}

/// What is told of a command that Ctrl-C has stopped at its beginning.
const BEFORE_ALL: &str = "stopped before anything was done";

/// Does work until Ctrl-C, which drops it; `stopped` says what there is then, and how to go on.
async fn until_stopped<T>(
    interrupts: &mut Signal,
    work: impl Future<Output = Outcome<T>>,
    stopped: impl FnOnce() -> String,
) -> Outcome<T> {
    tokio::select! {
        // What is done is told, also if it was to be stopped.
        biased;
        done = work => done,
        _ = interrupts.recv() => Err(Failure::interrupted(stopped())),
    }
}

async fn work_on(
    global: &Global,
    missing: Missing,
    progress: &Progress,
    work: impl AsyncFnOnce(Arc<dyn EventStore>) -> Outcome,
) -> Outcome {
    let mut interrupts = interrupts()?;
    let store = tokio::select! {
        store = told_if_slow(connect(global, missing)) => store?,
        _ = interrupts.recv() => return Err(Failure::interrupted(BEFORE_ALL)),
    };
    let outcome = tokio::select! {
        outcome = work(Arc::clone(&store)) => outcome,
        _ = interrupts.recv() => match progress.text() {
            None => Ok(()),
            Some(text) => Err(Failure::interrupted(format!("stopped: {text}"))),
        },
    };
    let closed = store.shutdown().await;
    outcome?;
    Ok(closed?)
}

/// Starts the log, whose lines go to standard error.
fn start_log(format: LogFormat, filter: &str) -> Outcome {
    check_log_filter(filter)?;
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("log filter {filter:?}: {error}")))?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || LogLines {
            to: std::io::stderr(),
            format,
        });
    let started = match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            log.with_ansi(colours).try_init()
        }
        LogFormat::Json => log.json().try_init(),
    };
    started.map_err(|error| Failure::other(format!("log: {error}")))
}

/// Refuses a log filter with a lone word that is no level. It would be taken for the name of a module, so a mistyped
/// level would show nothing.
fn check_log_filter(filter: &str) -> Outcome {
    let is_level = |word: &str| {
        word.parse::<tracing_subscriber::filter::LevelFilter>()
            .is_ok()
    };
    let words = filter.split(',').map(str::trim);
    match words
        .filter(|word| !word.is_empty())
        .find(|word| !word.contains(['=', '[']) && !word.contains(']') && !is_level(word))
    {
        None => Ok(()),
        Some(word) => Err(Failure::usage(format!(
            "log filter {filter:?}: {word:?} must be error, warn, info, debug, trace, off, or MODULE=LEVEL"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_is_levels_and_levels_of_modules() {
        for right in [
            "",
            "info",
            "WARN",
            "off",
            "warn,gesta_postgres=debug",
            "gesta=trace , error",
            "[read]=debug",
        ] {
            assert!(check_log_filter(right).is_ok(), "{right}");
        }
        for wrong in ["loud", "info,gesta_postgres", "debug;info"] {
            assert!(check_log_filter(wrong).is_err(), "{wrong}");
        }
    }
}
