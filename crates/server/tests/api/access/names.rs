//! Tests names that are nearly those of another user, role or stream.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::EVENT;
use super::world::{World, basic};

/// Goal: the name of a user is compared as bytes, so that a name that differs in case, encoding or length is nobody's.
#[tokio::test]
async fn users_are_known_by_the_bytes_of_their_names() {
    let world = World::new().await;
    assert_eq!(world.status("GET", "/info", &basic("user"), "").await, 200);
    for name in [
        "User",
        "user ",
        "user\0",
        "us\u{ad}er",
        "\u{ff55}ser",
        "",
        // More wrong ones would make the address one that has to wait.
        &"user".repeat(5_000),
    ] {
        let login = STANDARD.encode(format!("{name}:password of user"));
        let header = format!("Basic {login}");
        // A head may be too long before anybody asks who calls.
        let found = world.status("GET", "/info", &header, "").await;
        assert!(matches!(found, 401 | 431), "{name}: {found}");
    }
    for login in [
        &b"us\xffer:password of user"[..],
        b"user\xff:password of user",
        b"user",
    ] {
        let header = format!("Basic {}", STANDARD.encode(login));
        assert_eq!(
            world.status("GET", "/info", &header, "").await,
            401,
            "{login:?}"
        );
    }
}

/// Goal: the name of a role is compared as bytes: one that is nearly a group, a user or everybody is nobody.
#[tokio::test]
async fn roles_are_known_by_the_bytes_of_their_names() {
    let world = World::new().await;
    world.seed("plan").await;
    for role in [
        "Team",
        "TEAM",
        "team ",
        " team",
        "tea",
        "teams",
        "$team",
        "\u{ff54}eam",
        "Mate",
        "mate\u{200b}",
        "$All",
        "$ALL",
        "all",
        "*",
        "$everybody",
        "$Admins",
        "$admin",
    ] {
        let acl = serde_json::json!({"$acl": {"$r": role, "$w": [role], "$mr": [role], "$d": role, "$mw": []}});
        let put = world
            .status(
                "PUT",
                "/streams/plan/metadata",
                &basic("root"),
                &acl.to_string(),
            )
            .await;
        assert_eq!(put, 200, "{role}");
        for (method, target, body) in [
            ("GET", "/streams/plan", ""),
            ("GET", "/streams/plan/subscribe", ""),
            ("GET", "/streams/plan/metadata", ""),
            ("POST", "/streams/plan", EVENT),
            ("DELETE", "/streams/plan", ""),
        ] {
            let found = world.status(method, target, &basic("mate"), body).await;
            assert_eq!(found, 403, "{role}: {method} {target}");
        }
    }
    // The right name opens it.
    let acl = r#"{"$acl":{"$r":"team"}}"#;
    let root = basic("root");
    let put = world.status("PUT", "/streams/plan/metadata", &root, acl);
    assert_eq!(put.await, 200);
    assert_eq!(
        world
            .status("GET", "/streams/plan", &basic("mate"), "")
            .await,
        200
    );
}

/// Goal: whatever form the address of a stream has, it is the rights of the stream that is reached which count.
#[tokio::test]
async fn streams_are_reached_by_the_bytes_of_their_names() {
    let world = World::new().await;
    let acl = r#"{"$acl":{"$r":"team","$w":"team","$mr":"team","$d":"team","$mw":"team"}}"#;
    world.seed("plan").await;
    world.set_metadata("plan", acl).await;
    world.until("/streams/plan", &basic("user"), 403).await;
    for (target, status) in [
        ("pl%61n", 403),
        ("%70%6C%61%6e", 403),
        ("pla%6E/0", 403),
        ("pla%6E/metadata", 403),
        ("pla%6E/subscribe", 403),
        ("%24%24plan", 403),
        ("$$pl%61n", 403),
        // These are other streams, which are not there.
        ("Plan", 404),
        ("PLAN", 404),
        ("plan%20", 404),
        ("pl%E2%80%8Ban", 404),
        ("pl%2561n", 404),
        ("plan%2F0", 404),
        // And these are no names.
        ("pl%an", 400),
        ("plan%00", 400),
        ("plan%FF", 400),
        ("pl%C1%A1n", 400),
    ] {
        let target = format!("/streams/{target}");
        let found = world.status("GET", &target, &basic("user"), "").await;
        assert_eq!(found, status, "{target}");
    }
    // Accounts, in every form of their names, and what is nearly one is a stream of the system.
    for target in [
        "$user-root",
        "%24user-root",
        "$%75ser-root",
        "$user%2Droot",
        "$User-root",
        "$USER-root",
        "$user-ROOT",
    ] {
        let target = format!("/streams/{target}");
        let found = world.status("POST", &target, &basic("user"), EVENT).await;
        assert_eq!(found, 403, "{target}");
    }
}
