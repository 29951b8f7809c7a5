//! The command by its arguments; the load itself is tested in `gesta-load` and with real services in `tests`.

use std::time::Duration;

use clap::Parser;
use gesta_load::schedule::Drive;

use super::ScenarioArgs;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: ScenarioArgs,
}

fn args(line: &str) -> Result<ScenarioArgs, String> {
    let line = format!("lab shop.toml {line}");
    let parsed = Cli::try_parse_from(line.split_whitespace());
    let args = parsed.map_err(|error| error.to_string())?.args;
    args.check().map_err(|why| why.0)?;
    args.limits().map_err(|why| why.0)?;
    Ok(args)
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (line, rule) in [
        ("", "--target"),
        ("--check --rate 5", "cannot be used with"),
        (
            "--target http://x --rate 5 --concurrency 5",
            "cannot be used with",
        ),
        (
            "--target http://x --rate 5 --steps 1:1:5",
            "cannot be used with",
        ),
        (
            "--target http://x --concurrency 0",
            "0 is not in 1..=100000",
        ),
        ("--target http://x --steps 5", "three numbers"),
        ("--target http://x --step-duration 5s", "--steps"),
        (
            "--target http://x --steps 1:1:5 --step-duration 5s --warm-up 5s",
            "longer than --warm-up",
        ),
        (
            "--target http://x --duration 0",
            "--duration must be above 0",
        ),
        (
            "--target http://x --failures-max 2",
            "is not a share from 0 to 1",
        ),
        (
            "--target http://x --header secret",
            "must be \"Name: value\"",
        ),
        ("--target http://x --timeout 0", "--timeout must be above 0"),
    ] {
        let why = args(line).unwrap_err();
        assert!(why.contains(rule), "{line}: {why}");
    }
}

/// Goal: headers are read from a file, so that no secret stands among arguments; one of an argument goes before it. A
/// file that is refused is told without what stands in it.
#[test]
fn headers_are_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("headers");
    let line = format!(
        "--target http://x --header x-kind:argument --header-file {}",
        path.display()
    );
    std::fs::write(
        &path,
        "authorization: Bearer s3cret\r\n\nX-Kind: file\nx-time: 10:30\n",
    )
    .unwrap();
    let headers = args(&line).unwrap().limits().unwrap().headers;
    let found = ["authorization", "x-kind", "x-time"].map(|name| headers[name].to_str().unwrap());
    assert_eq!(found, ["Bearer s3cret", "argument", "10:30"]);
    assert!(!format!("{headers:?}").contains("s3cret"));
    for (text, rule) in [
        ("a: b\ns3cret\n", "line 2: must be \"Name: value\""),
        ("a b: s3cret\n", "line 1: must be \"Name: value\""),
    ] {
        std::fs::write(&path, text).unwrap();
        let why = args(&line).unwrap_err();
        assert!(why.contains(rule) && !why.contains("s3cret"), "{why}");
    }
    std::fs::remove_file(&path).unwrap();
    let why = args(&line).unwrap_err();
    assert!(
        why.contains("--header-file") && why.contains("cannot be read"),
        "{why}"
    );
    let why = args("--target http://x --header s3cret").unwrap_err();
    assert!(!why.contains("s3cret"), "{why}");
}

/// Goal: a database that is refused is told without what may be its password.
#[test]
fn a_refused_database_shows_no_password() {
    for (url, told) in [
        ("host=h,password=secret", "\"***\""),
        ("postgres://u:secret@h:port/x", "\"postgres://***\""),
    ] {
        let args = args(&format!("--target http://x --database {url}")).unwrap();
        let why = args.trees(None).unwrap_err().to_string();
        assert!(
            why.starts_with(&format!("--database {told} is not a URL")),
            "{why}"
        );
    }
    let several = "--target http://x --database postgres://u:p@h1:5432,h2/x";
    assert_eq!(args(several).unwrap().trees(None).unwrap(), []);
}

/// Goal: connections have a stated bound, and users are as many as the rate and their thinking need.
#[test]
fn connections_and_users_follow_from_the_load() {
    let of = |line: &str| {
        let args = args(&format!("--target http://x {line}")).unwrap();
        let drives = args.drives(Duration::from_millis(750));
        let drives: Vec<Drive> = drives.into_iter().map(|(_, drive)| drive).collect();
        (args.limits().unwrap().connections, drives)
    };
    let open = |rate, users| Drive::Open { rate, users };
    assert_eq!(of(""), (16, vec![Drive::Closed(16)]));
    assert_eq!(
        of("--concurrency 40 --connections 8"),
        (8, vec![Drive::Closed(40)])
    );
    assert_eq!(of("--rate 1000"), (512, vec![open(1_000.0, 1_000)]));
    assert_eq!(of("--rate 10 --users 3"), (512, vec![open(10.0, 3)]));
    assert_eq!(
        of("--steps 10:90:100"),
        (512, vec![open(10.0, 64), open(100.0, 100)])
    );
}
