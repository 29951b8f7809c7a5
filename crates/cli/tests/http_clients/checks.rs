//! Every call of the packages, on every kind of server.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::Language;
use crate::support::{self, Limit, Server, output_of, patient, succeed, url_of};
use crate::three_nodes::Nodes;

/// Goal: what the package says of itself holds: its types, and what it does with each answer.
pub(crate) fn the_package_passes_its_own_tests(language: Language) {
    let Some(package) = (language.package)() else {
        return;
    };
    for test in &package.own_tests {
        let mut command = Command::new(test.get_program());
        command
            .args(test.get_args())
            .current_dir(test.get_current_dir().unwrap());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let output = output_of(&mut command);
        let said = support::stdout(&output) + &support::stderr(&output);
        assert!(output.status.success(), "{command:?}: {said}");
    }
}

/// Goal: the first program of the package's description prints what stands below it.
pub(crate) fn the_program_of_the_description_runs(language: Language) {
    let Some(package) = (language.package)() else {
        return;
    };
    let readme = std::fs::read_to_string(package.source.join("README.md")).unwrap();
    let block = |fence: &str| {
        let (_, rest) = readme.split_once(&format!("\n```{fence}\n")).unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let program = block(language.fence);
    assert!(program.lines().count() <= 25, "the program is short");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let program = program.replace("http://127.0.0.1:2113", &server.url);
    let program = match language.fence {
        // Such a program is no file, so that packages are not looked for beside it.
        "js" => {
            let place = package
                .programs
                .join("node_modules/gesta-client/dist/index.js");
            program.replace("\"gesta-client\"", &format!("\"{}\"", place.display()))
        }
        _ => program,
    };
    let mut command = language.interpreter().unwrap();
    let output = output_of(command.args(language.inline).arg(program));
    let wrong = support::stderr(&output);
    assert_eq!(support::stdout(&output), block("text"), "{wrong}");
    assert_eq!(wrong, "");
    server.stop();
}

/// Runs the program that makes every call; it must succeed.
fn check(language: Language, server: &Server, variables: &[(&str, &OsStr)]) {
    let package = (language.package)().unwrap();
    let mut command = language.interpreter().unwrap();
    command
        .arg(&package.check)
        .arg(&server.url)
        .envs(variables.iter().copied());
    let output = output_of(&mut command);
    let said = support::stdout(&output) + &support::stderr(&output);
    assert!(output.status.success(), "{said}");
}

/// Goal: every call does what it says on SQLite and on PostgreSQL.
pub(crate) fn every_call_works(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut stores = vec![url_of(&folder.path().join("gesta.db"))];
    if let Some(postgres) = gesta_rig::shared() {
        let schema = gesta_rig::fresh_schema();
        stores.push(patient(&format!("{}?schema={schema}", postgres.url())));
    }
    for store in stores {
        let server = Server::start(&store);
        check(language, &server, &[]);
        server.stop();
    }
}

/// Goal: the same as a user with a password, over TLS with an authority of the server's own.
pub(crate) fn every_call_works_over_tls_as_a_user(language: Language) {
    if !language.is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let (file, tls) = (folder.path().join("password"), folder.path().join("tls"));
    std::fs::write(&file, "pässword of root\n").unwrap();
    let add = [
        "user",
        "add",
        "root",
        "--admin",
        "--password-file",
        file.to_str().unwrap(),
    ];
    succeed(&[&add[..], &["--store", &store]].concat());
    let more = [
        "--listen",
        "127.0.0.1:0",
        "--tls-self-signed",
        tls.to_str().unwrap(),
    ];
    let server = Server::start_with(&store, &more);
    let authority = tls.join("ca.pem");
    let variables = [
        ("GESTA_USER", OsStr::new("root")),
        ("GESTA_PASSWORD", OsStr::new("pässword of root")),
        ("GESTA_CA_FILE", authority.as_os_str()),
    ];
    check(language, &server, &variables);
    server.stop();
}

/// Goal: when one of three nodes is killed, a writer, a follower and the consumers of a group go on by themselves;
/// nothing is lost, and nothing is stored or followed twice.
pub(crate) fn nothing_is_lost_when_a_node_is_killed(language: Language) {
    let Some(package) = (language.package)() else {
        return;
    };
    let Some(mut nodes) = Nodes::start("4") else {
        return;
    };
    let servers = nodes
        .all
        .iter()
        .map(|node| format!("http://{}", node.address));
    let mut command = language.interpreter().unwrap();
    command
        .arg(&package.cluster)
        .args(servers)
        .stdout(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let _limit = Limit::of(&running);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().expect("half is written").unwrap(), "half");
    // The one that is asked, since it is the first.
    nodes.kill(0);
    assert_eq!(lines.next().expect("it goes on").unwrap(), "done");
    assert!(running.wait().unwrap().success());
    nodes.stop();
}
