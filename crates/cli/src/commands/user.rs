//! `gesta user` and `gesta token`: ask for what they need and show what they did.
//!
//! Invariant: a password comes from a terminal, a file, standard input or the environment, never from an argument; it
//! is neither shown nor logged. Not here: the rules of accounts (`gesta_access`).

use std::io::{BufRead, ErrorKind as Io, IsTerminal};
use std::sync::Arc;

use gesta::Missing;
use gesta_access::{Accounts, AddUser, FirstUser, NewToken, Scope, ShownToken, ShownUser};
use gesta_core::{Clock, ErrorKind, EventStore, SystemClock, Timestamp};
use serde_json::json;

use super::database::open_in_a_server;
use super::progress::Progress;
use super::{client, given_store, work_on};
use crate::args::{
    Confirm, Global, NewPassword, TokenCommand, TokenCreate, TokenScope, UserAdd, UserCommand,
};
use crate::config::DEFAULT_STORE;
use crate::confirm;
use crate::exit::{Failure, Outcome};
use crate::output::Output;

/// The group of those who may do everything.
const ADMINS: &str = "$admins";
/// What is said of a store that a server has open.
const CHANGED_THROUGH_SERVER: &str = "an administrator changes accounts through the server that has it: with --store \
                                      URL, the URL of that server, and GESTA_USER. If there is no user yet, stop the \
                                      server first, or start it with GESTA_ADMIN_PASSWORD, which makes the user admin";
/// The variable for a new password, which is read if no file is named.
const NEW_PASSWORD: &str = "GESTA_NEW_PASSWORD";

pub(super) async fn run(global: &mut Global, command: UserCommand, output: &mut Output) -> Outcome {
    match command {
        UserCommand::Add(add) => self::add(global, add, output).await,
        UserCommand::List => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                for user in accounts.users().await? {
                    output.record(&user, show_user)?;
                }
                Ok(())
            })
            .await
        }
        UserCommand::Password { user, password } => {
            if is_typed(&password) {
                look_for(global, &user).await?;
            }
            let password = read(&password, &user)?;
            on_accounts(global, Missing::Refuse, async |accounts| {
                accounts.set_password(&user, password).await?;
                tell(output, &user, "has another password")
            })
            .await
        }
        UserCommand::Disable { user, confirm } => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                ask_if_last(&accounts, &user, &confirm).await?;
                accounts.disable(&user).await?;
                tell(output, &user, "may do nothing any more")
            })
            .await
        }
        UserCommand::Enable { user } => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                accounts.enable(&user).await?;
                tell(output, &user, "may call again")
            })
            .await
        }
        UserCommand::Groups {
            user,
            groups,
            confirm,
        } => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                if !groups.iter().any(|group| group == ADMINS) {
                    ask_if_last(&accounts, &user, &confirm).await?;
                }
                let now = match groups.is_empty() {
                    true => "is in no group now".to_owned(),
                    false => format!("is in these groups now: {}", groups.join(" ")),
                };
                accounts.set_groups(&user, groups).await?;
                tell(output, &user, &now)
            })
            .await
        }
    }
}

async fn add(global: &mut Global, add: UserAdd, output: &mut Output) -> Outcome {
    if is_typed(&add.password) {
        look(global, &add).await?;
    }
    let password = read(&add.password, &add.user)?;
    let mut groups = add.groups;
    if add.admin && !groups.iter().any(|group| group == ADMINS) {
        groups.push(ADMINS.into());
    }
    let user = add.user.clone();
    let add = AddUser {
        name: add.user,
        password,
        groups,
        full_name: String::new(),
        first: match add.keep_rights {
            true => FirstUser::KeepRights,
            false => FirstUser::RefuseRights,
        },
    };
    on_accounts(global, Missing::Create, async |accounts| {
        accounts.add_user(add).await?;
        tell(output, &user, "was added")
    })
    .await
}

/// Asks for consent if the user is the last one who may do everything: without one, nobody can make users or change
/// them through a server.
async fn ask_if_last(accounts: &Accounts, user: &str, confirm: &Confirm) -> Outcome {
    let users = accounts.users().await?;
    let is_admin =
        |other: &&ShownUser| !other.disabled && other.groups.iter().any(|group| group == ADMINS);
    let admins: Vec<&ShownUser> = users.iter().filter(is_admin).collect();
    match admins[..] {
        [last] if last.user == user => confirm::ask(
            confirm,
            &format!(
                "{user} is the last administrator: without one, accounts can be changed on the store alone, while no \
                 server has a SQLite store open"
            ),
        ),
        _ => Ok(()),
    }
}

/// Refuses what would be refused after the password was typed twice.
async fn look(global: &mut Global, add: &UserAdd) -> Outcome {
    let mut users = Vec::new();
    let found = on_accounts(global, Missing::Refuse, async |accounts| {
        users = accounts.users().await?;
        Ok(())
    });
    match found.await {
        Ok(()) => {}
        // There is no store yet.
        Err(Failure::Store(error)) if matches!(error.kind(), ErrorKind::Schema(_)) => {}
        // It would come again when the user is added, after a password was typed twice.
        Err(error) => return Err(error),
    }
    let is_admin = add.admin || add.groups.iter().any(|group| group == ADMINS);
    if users.is_empty() && !is_admin {
        return Err(Failure::usage(
            "the first user must be an administrator, who can add others: say --admin",
        ));
    }
    if users.iter().any(|user| user.user == add.user) {
        let name = &add.user;
        return Err(Failure::usage(format!(
            "user {name} exists: `gesta user password {name}` gives another password"
        )));
    }
    Ok(())
}

/// Looks whether a user is there, before a new password is typed twice.
async fn look_for(global: &mut Global, name: &str) -> Outcome {
    on_accounts(global, Missing::Refuse, async |accounts| {
        match accounts.users().await?.iter().any(|user| user.user == name) {
            true => Ok(()),
            false => Err(Failure::usage(format!("there is no user {name}"))),
        }
    })
    .await
}

pub(super) async fn token(
    global: &mut Global,
    command: TokenCommand,
    output: &mut Output,
) -> Outcome {
    match command {
        TokenCommand::Create(create) => {
            let token = new_token(create)?;
            on_accounts(global, Missing::Refuse, async |accounts| {
                let text = accounts.create_token(token).await?;
                // The text is `gesta_`, the id, `_` and the secret.
                let id = text.split('_').nth(1).unwrap_or_default();
                output.has_done(format!(
                    "the token was made, and nobody has seen it: revoke it with `gesta token revoke {id}`, and make another one"
                ));
                output.record(&json!({"token": text}), |_| text.clone())
            })
            .await
        }
        TokenCommand::List => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                for token in accounts.tokens().await? {
                    output.record(&token, show_token)?;
                }
                Ok(())
            })
            .await
        }
        TokenCommand::Revoke { id } => {
            on_accounts(global, Missing::Refuse, async |accounts| {
                accounts.revoke_token(&id).await?;
                output.record(&json!({"token": id}), |_| format!("token {id} was revoked"))
            })
            .await
        }
    }
}

fn new_token(create: TokenCreate) -> Outcome<NewToken> {
    let scope = |scope: &TokenScope| match scope {
        TokenScope::Read => Scope::Read,
        TokenScope::Consume => Scope::Consume,
        TokenScope::Append => Scope::Append,
        TokenScope::Admin => Scope::Admin,
    };
    let expires = create.expires.map(|time| {
        let micros = i64::try_from(time.0.as_micros()).unwrap_or(i64::MAX);
        Timestamp(
            SystemClock
                .now()
                .0
                .saturating_add(micros)
                .min(Timestamp::MAX.0),
        )
    });
    let token = NewToken {
        user: create.user,
        label: create.label,
        scopes: create.scopes.iter().map(scope).collect(),
        prefixes: create.prefixes,
        expires,
    };
    token.validate(SystemClock.now())?;
    Ok(token)
}

fn tell(output: &mut Output, user: &str, what: &str) -> Outcome {
    output.record(&json!({"user": user}), |_| format!("user {user} {what}"))
}

fn show_user(user: &ShownUser) -> String {
    let groups = user.groups.join(" ");
    let disabled = if user.disabled { "  disabled" } else { "" };
    let line = format!("{}  {groups}{disabled}", user.user);
    line.trim_end().to_owned()
}

fn show_token(token: &ShownToken) -> String {
    let scopes: Vec<_> = token
        .scopes
        .iter()
        .map(|scope| format!("{scope:?}").to_lowercase())
        .collect();
    let prefixes = match token.prefixes.as_slice() {
        [] => "all streams".to_owned(),
        prefixes => prefixes.join(" "),
    };
    let end = match (&token.expires, token.active) {
        (_, false) => "worth nothing".to_owned(),
        (Some(end), true) => format!("until {end}"),
        (None, true) => "until it is revoked".to_owned(),
    };
    let line = format!(
        "{}  {}  {}  {prefixes}  {end}  {}",
        token.id,
        token.user,
        scopes.join(","),
        token.label
    );
    line.trim_end().to_owned()
}

/// Works on the accounts of the store that is named, or else of the store that `gesta serve` opens by default.
async fn on_accounts(
    global: &mut Global,
    missing: Missing,
    work: impl AsyncFnOnce(Accounts) -> Outcome,
) -> Outcome {
    if given_store(global).is_none() {
        global.store = vec![DEFAULT_STORE.into()];
    }
    let progress = Progress::default();
    let done = work_on(
        global,
        missing,
        &progress,
        async |store: Arc<dyn EventStore>| work(Accounts::of(store)).await,
    );
    done.await.map_err(|failure| match failure {
        Failure::Store(error) => open_in_a_server(error, || CHANGED_THROUGH_SERVER.to_owned()),
        other => other,
    })
}

/// Tells whether a new password is asked for at the terminal.
fn is_typed(from: &NewPassword) -> bool {
    from.password_file.is_none()
        && std::env::var_os(NEW_PASSWORD).is_none()
        && std::io::stdin().is_terminal()
}

/// Reads the new password of this user.
fn read(from: &NewPassword, user: &str) -> Outcome<String> {
    if let Some(path) = &from.password_file {
        return client::secret(path);
    }
    if let Ok(password) = std::env::var(NEW_PASSWORD) {
        return Ok(password);
    }
    if std::io::stdin().is_terminal() {
        let ask = |what: String| {
            rpassword::prompt_password(what).map_err(|error| match error.kind() {
                Io::Interrupted => Failure::interrupted("stopped: nothing was changed"),
                Io::UnexpectedEof => Failure::usage("no password was typed: nothing was changed"),
                _ => error.into(),
            })
        };
        let password = ask(format!("New password of {user}: "))?;
        if ask("Once more: ".into())? != password {
            return Err(Failure::usage(
                "the two passwords differ: nothing was changed",
            ));
        }
        return Ok(password);
    }
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    match line.strip_suffix('\n').unwrap_or(&line) {
        "" => Err(Failure::usage(format!(
            "a password is needed: on standard input, in --password-file FILE or in {NEW_PASSWORD}"
        ))),
        password => Ok(password.strip_suffix('\r').unwrap_or(password).to_owned()),
    }
}
