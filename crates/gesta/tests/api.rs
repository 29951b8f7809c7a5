//! The public interface of this crate is what `api.txt` says, so that no change of it goes unseen.
//!
//! `GESTA_RENEW=1 cargo test -p gesta --test api` writes the file anew. The listing is made of the source: every name
//! that `lib.rs` makes public is followed through the crates of this project to its definition. So it needs no nightly
//! compiler, and shows what is re-exported too. What macros make is listed by its name alone.
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

#[path = "api/listing.rs"]
mod listing;
#[path = "api/source.rs"]
mod source;

use std::path::Path;
use std::sync::LazyLock;

static FOUND: LazyLock<String> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    listing::of("gesta", &root)
});

#[test]
fn the_public_interface_is_the_one_that_is_written_down() {
    let found = FOUND.as_str();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("api.txt");
    if std::env::var_os("GESTA_RENEW").is_some() {
        std::fs::write(&file, found).expect("written");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = known
        .lines()
        .zip(found.lines())
        .position(|(known, found)| known != found)
        .unwrap_or(known.lines().count().min(found.lines().count()));
    let line = |text: &str| text.lines().nth(differs).unwrap_or("(end)").to_owned();
    assert!(
        known == found,
        "the public interface has changed; if that is wanted, GESTA_RENEW=1 cargo test -p gesta --test api\nline {}: {:?}\n\
         now {:?}",
        differs + 1,
        line(&known),
        line(found)
    );
}

/// Goal: what is no vocabulary of applications stays out.
#[test]
fn what_backends_and_servers_share_among_themselves_is_not_public() {
    let names: Vec<&str> = FOUND
        .lines()
        .filter_map(|line| line.strip_prefix("== gesta::"))
        .collect();
    for name in [
        "newcomers",
        "pace",
        "capacity",
        "backend",
        "registry",
        "peers",
        "shares",
        "turns",
        "LastingFault",
        "Backend",
        "Registry",
        "OwnerStore",
        "LogMap",
        "HostPort",
        "printable",
        "uptime",
    ] {
        assert!(!names.contains(&name), "{name}");
    }
    for name in [
        "open",
        "Store",
        "EventData",
        "Filter",
        "groups::ConsumerGroups",
        "entity::Decider",
    ] {
        assert!(names.contains(&name), "{name}");
    }
}
