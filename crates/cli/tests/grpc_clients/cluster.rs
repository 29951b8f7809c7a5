//! Published clients that lose a node of their cluster.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::fetched::Client;
use crate::support::Limit;
use crate::three_nodes::Nodes;

/// Goal: clients of a cluster find the nodes by themselves, go on when the one that they have chosen is killed, and
/// lose nothing, neither as writers nor as consumers of a group. With several logs a group may be run by another node
/// than the one that its consumers have chosen: they are sent there.
pub(crate) fn goes_on(client: &Client, program: &[OsString]) {
    for logs in ["1", "4"] {
        let Some(nodes) = Nodes::start(logs) else {
            return;
        };
        loses_nothing(client, program, &[], nodes);
    }
}

/// Goal: the same over TLS as a user.
pub(crate) fn goes_on_as_a_user(client: &Client, program: &[OsString]) {
    if let Some((nodes, authority)) = Nodes::start_with_user("1", "root", "password-of-root") {
        let login = ["root:password-of-root".into(), authority];
        loses_nothing(client, program, &login, nodes);
    }
}

/// Runs the program, which says when it has written half; kills the leader then.
fn loses_nothing(client: &Client, program: &[OsString], login: &[OsString], mut nodes: Nodes) {
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .arg(nodes.addresses())
        .args(login)
        .current_dir(&client.folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let _limit = Limit::of(&running);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().expect("half is written").unwrap(), "half");
    nodes.kill(nodes.leader());
    assert_eq!(lines.next().expect("it goes on").unwrap(), "done");
    assert!(running.wait().unwrap().success());
    nodes.stop();
}
