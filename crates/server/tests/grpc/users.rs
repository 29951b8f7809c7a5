//! Tests accounts that are changed over gRPC.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::Scope;
use gesta_core::{Clock, SystemClock};
use gesta_grpc::messages::users::details_resp::UserDetails;
use gesta_grpc::messages::users::{
    self, ChangePasswordReq, CreateReq, DeleteReq, DetailsReq, DetailsResp, DisableReq, EnableReq,
    ResetPasswordReq, UpdateReq,
};
use prost::Message;

use crate::access::{World, basic, world};
use crate::connection::{Ended, soon};
use crate::logged::Logged;
use crate::requests::{READ, bytes_of, read_of, reading};

async fn call(world: &World, method: &str, authorization: &str, request: impl Message) -> Ended {
    let path = format!("/event_store.client.users.Users/{method}");
    let headers = [("authorization", authorization)];
    let headers = if authorization.is_empty() {
        &[][..]
    } else {
        &headers
    };
    world
        .client
        .call_bytes(&path, headers, bytes_of(&[request]))
        .await
}

fn create(name: &str, groups: &[&str]) -> CreateReq {
    let options = users::create_req::Options {
        login_name: name.into(),
        password: format!("password of {name}"),
        full_name: "Alice of the Shop".into(),
        groups: groups.iter().map(ToString::to_string).collect(),
    };
    CreateReq {
        options: Some(options),
    }
}

fn change(name: &str, present: &str, new: &str) -> ChangePasswordReq {
    let options = users::change_password_req::Options {
        login_name: name.into(),
        current_password: present.into(),
        new_password: new.into(),
    };
    ChangePasswordReq {
        options: Some(options),
    }
}

fn reset(name: &str, new: &str) -> ResetPasswordReq {
    let (login_name, new_password) = (name.into(), new.into());
    let options = users::reset_password_req::Options {
        login_name,
        new_password,
    };
    ResetPasswordReq {
        options: Some(options),
    }
}

async fn details(world: &World, name: &str) -> Vec<(String, Vec<String>, bool)> {
    let told = user_details(world, name).await.into_iter();
    told.map(|user| (user.login_name, user.groups, user.disabled))
        .collect()
}

async fn user_details(world: &World, name: &str) -> Vec<UserDetails> {
    let options = users::details_req::Options {
        login_name: name.into(),
    };
    let root = basic("root");
    let asked = call(
        world,
        "Details",
        &root,
        DetailsReq {
            options: Some(options),
        },
    )
    .await;
    let told = asked.read::<DetailsResp>().into_iter();
    told.filter_map(|told| told.user_details).collect()
}

async fn call_read(world: &World, authorization: &str) -> i32 {
    let request = bytes_of(&reading(read_of("x")));
    world.call(READ, authorization, request).await.0
}

/// Waits until a call as this user has this status.
async fn until(world: &World, authorization: &str, code: i32) {
    soon(async {
        while call_read(world, authorization).await != code {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn login(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

fn update(name: &str, groups: &[&str]) -> UpdateReq {
    let options = users::update_req::Options {
        login_name: name.into(),
        groups: groups.iter().map(ToString::to_string).collect(),
        ..users::update_req::Options::default()
    };
    UpdateReq {
        options: Some(options),
    }
}

fn disable(name: &str) -> DisableReq {
    let login_name = name.into();
    DisableReq {
        options: Some(users::disable_req::Options { login_name }),
    }
}

fn delete(name: &str) -> DeleteReq {
    let login_name = name.into();
    DeleteReq {
        options: Some(users::delete_req::Options { login_name }),
    }
}

fn enable(name: &str) -> EnableReq {
    let login_name = name.into();
    EnableReq {
        options: Some(users::enable_req::Options { login_name }),
    }
}

/// Goal: an administrator makes users, changes and shows them.
#[tokio::test]
async fn an_administrator_makes_and_changes_users() {
    let world = world().await;
    let root = basic("root");
    let made = call(&world, "Create", &root, create("alice", &["shop"])).await;
    assert_eq!(made.code, 0, "{}", made.message());
    until(&world, &basic("alice"), 0).await;
    let again = call(&world, "Create", &root, create("alice", &[])).await;
    assert_eq!(
        (again.code, &again.trailers["exception"]),
        (9, &"user-conflict".parse().unwrap())
    );
    assert_eq!(again.trailers["login-name"], "alice");
    let updated = call(&world, "Update", &root, update("alice", &["team"])).await;
    assert_eq!(updated.code, 0, "{}", updated.message());
    assert_eq!(
        details(&world, "alice").await,
        [("alice".into(), vec!["team".into()], false)]
    );
    let all = details(&world, "").await.into_iter();
    let names: Vec<_> = all.map(|(name, ..)| name).collect();
    assert_eq!(names, ["alice", "mate", "ops", "root", "user"]);
}

/// Goal: what users are called besides, and when they were changed last, is kept and told; a deleted user is gone with
/// their tokens, and another one of the name has nothing of them.
#[tokio::test]
async fn an_administrator_deletes_users() {
    let world = world().await;
    let root = basic("root");
    let begun = SystemClock.now();
    call(&world, "Create", &root, create("alice", &["shop"])).await;
    until(&world, &basic("alice"), 0).await;
    let token = world.token("alice", &[Scope::Read], &[]).await;
    until(&world, &token, 0).await;
    let made = user_details(&world, "alice").await.remove(0);
    assert_eq!(made.full_name, "Alice of the Shop");
    let ticks = |user: &UserDetails| user.last_updated.expect("a time").ticks_since_epoch;
    assert!(ticks(&made) >= begun.as_micros() * 10, "{made:?}");
    call(&world, "Update", &root, update("alice", &["team"])).await;
    let updated = user_details(&world, "alice").await.remove(0);
    assert_eq!(updated.full_name, "");
    assert!(ticks(&updated) > ticks(&made), "{updated:?}");

    let deleted = call(&world, "Delete", &root, delete("alice")).await;
    assert_eq!(deleted.code, 0, "{}", deleted.message());
    until(&world, &basic("alice"), 16).await;
    until(&world, &token, 16).await;
    for (method, request) in [("Delete", delete("alice")), ("Details", delete("alice"))] {
        let missing = call(&world, method, &root, request).await;
        assert_eq!(missing.code, 5, "{method}");
        assert_eq!(missing.trailers["exception"], "user-not-found");
        assert_eq!(missing.trailers["login-name"], "alice");
    }
    let made = call(&world, "Create", &root, create("alice", &[])).await;
    assert_eq!(made.code, 0, "{}", made.message());
    until(&world, &basic("alice"), 0).await;
    assert_eq!(call_read(&world, &token).await, 16);
    let refused = call(&world, "Delete", &basic("ops"), delete("alice")).await;
    assert_eq!(refused.code, 7);
}

/// Goal: an administrator lets users in no more, lets them in again, and gives them another password.
#[tokio::test]
async fn an_administrator_disables_users_and_resets_their_passwords() {
    let world = world().await;
    let root = basic("root");
    call(&world, "Create", &root, create("alice", &["shop"])).await;
    until(&world, &basic("alice"), 0).await;
    let disabled = call(&world, "Disable", &root, disable("alice")).await;
    assert_eq!(disabled.code, 0, "{}", disabled.message());
    until(&world, &basic("alice"), 16).await;
    assert!(details(&world, "alice").await[0].2);
    let enabled = call(&world, "Enable", &root, enable("alice")).await;
    assert_eq!(enabled.code, 0, "{}", enabled.message());
    until(&world, &basic("alice"), 0).await;
    let another = reset("alice", "another password");
    let set = call(&world, "ResetPassword", &root, another).await;
    assert_eq!(set.code, 0, "{}", set.message());
    until(&world, &login("alice", "another password"), 0).await;
    until(&world, &basic("alice"), 16).await;
}

/// Goal: an account that is not there is not changed, and none is made that breaks a rule.
#[tokio::test]
async fn what_an_administrator_cannot_do_is_refused() {
    let world = world().await;
    let root = basic("root");
    let nobody = reset("nobody", "another password");
    let missing = call(&world, "ResetPassword", &root, nobody).await;
    assert_eq!(
        (missing.code, &missing.trailers["exception"]),
        (5, &"user-not-found".parse().unwrap())
    );
    for request in [
        create("$all", &[]),
        create("a b", &[]),
        create("bob", &["$all"]),
    ] {
        assert_eq!(call(&world, "Create", &root, request).await.code, 3);
    }
    let none = CreateReq { options: None };
    assert_eq!(call(&world, "Create", &root, none).await.code, 3);
}

/// Goal: nobody else changes accounts, whatever they prove; and the own password changes who knows the present one.
#[tokio::test]
async fn others_change_their_own_password_alone() {
    let world = world().await;
    let weak = world
        .token("root", &[Scope::Read, Scope::Append], &[])
        .await;
    let narrow = world.token("root", &[Scope::Admin], &["$user-"]).await;
    for (who, code) in [
        (String::new(), 16),
        (login("root", "guessed"), 16),
        (basic("user"), 7),
        (basic("ops"), 7),
        (weak, 7),
        (narrow, 7),
    ] {
        let options = users::details_req::Options::default();
        let told = call(
            &world,
            "Details",
            &who,
            DetailsReq {
                options: Some(options),
            },
        )
        .await;
        assert_eq!((told.code, told.messages.len()), (code, 0), "{who}");
        assert_eq!(
            call(&world, "Create", &who, create("mallory", &["$admins"]))
                .await
                .code,
            code,
            "{who}"
        );
        let set = reset("root", "a guessed password");
        assert_eq!(
            call(&world, "ResetPassword", &who, set).await.code,
            code,
            "{who}"
        );
    }
    let user = basic("user");
    for (name, present) in [
        ("user", "wrong password"),
        ("root", "password of user"),
        ("nobody", "password"),
    ] {
        let guessed = change(name, present, "a new password");
        let refused = call(&world, "ChangePassword", &user, guessed).await;
        assert_eq!(refused.code, 16, "{name}");
    }
    let short = change("user", "password of user", "short");
    assert_eq!(call(&world, "ChangePassword", &user, short).await.code, 3);
    let right = change("user", "password of user", "a new password");
    let changed = call(&world, "ChangePassword", &user, right).await;
    assert_eq!(changed.code, 0, "{}", changed.message());
    until(&world, &login("user", "a new password"), 0).await;
    until(&world, &user, 16).await;
}

/// Goal: a user changes their password by showing the present one alone. From then on that one proves nothing, tokens
/// are as good as before, and the audit log tells it without either password.
#[tokio::test]
async fn a_password_is_changed_by_showing_the_present_one() {
    let (logged, _guard) = Logged::begin();
    let world = world().await;
    let token = world.token("user", &[Scope::Read], &[]).await;
    let old = "password of user";
    let unknown = change("user", old, "a new password");
    assert_eq!(call(&world, "ChangePassword", "", unknown).await.code, 16);
    // The caller may be known as somebody else.
    let mate = basic("mate");
    let mut present = old.to_owned();
    for (n, who) in [&mate, &token].into_iter().enumerate() {
        let new = format!("password number {n}");
        let changed = call(
            &world,
            "ChangePassword",
            who,
            change("user", &present, &new),
        )
        .await;
        assert_eq!(changed.code, 0, "{who}: {}", changed.message());
        assert_eq!(changed.messages.len(), 1);
        until(&world, &login("user", &new), 0).await;
        until(&world, &login("user", &present), 16).await;
        let again = call(
            &world,
            "ChangePassword",
            who,
            change("user", &present, &new),
        )
        .await;
        assert_eq!(again.code, 16, "{who}");
        present = new;
    }
    assert_eq!(call_read(&world, &token).await, 0);
    call(&world, "Disable", &basic("root"), disable("user")).await;
    until(&world, &login("user", &present), 16).await;
    let of_disabled = change("user", &present, old);
    let disabled = call(&world, "ChangePassword", &mate, of_disabled).await;
    assert_eq!(disabled.code, 16);
    let nothing = ChangePasswordReq { options: None };
    let none = call(&world, "ChangePassword", &mate, nothing).await;
    assert_eq!(none.code, 3);
    let lines = logged.with("gesta::audit");
    let is_change = |line: &&String| line.contains("change the password");
    let is_done = |line: &&String| line.contains(r#"outcome="done""#);
    let done = lines.iter().filter(is_change).filter(is_done);
    assert_eq!(done.count(), 2, "{lines:#?}");
    for secret in [old, "password number"] {
        assert!(logged.with(secret).is_empty(), "{secret}");
    }
}
