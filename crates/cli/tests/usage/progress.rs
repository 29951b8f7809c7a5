//! Commands that take a while: what they show on a terminal and nowhere else, and how Ctrl-C ends them.

use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;

use super::support::{
    Server, code, ended, gesta, is_installed, output_of, run, signal, stderr, stdout, succeed,
    url_of, wait_until,
};

/// Runs a program whose standard error alone is a terminal of this kind, and gives what that was shown as its own.
const ON_TERMINAL: &str = r#"
import os, pty, subprocess, sys, threading
ours, theirs = pty.openpty()
variables = {name: value for name, value in os.environ.items() if not name.startswith("GESTA_") and name != "TERM"}
if sys.argv[1]:
    variables["TERM"] = sys.argv[1]
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=variables)
os.close(theirs)
shown = []
def read():
    try:
        while part := os.read(ours, 4096):
            shown.append(part)
    except OSError:
        pass
reader = threading.Thread(target=read)
reader.start()
said = child.stdout.read()
status = child.wait()
reader.join()
sys.stdout.buffer.write(said)
sys.stderr.buffer.write(b"".join(shown))
sys.exit(status)
"#;

/// A terminal that can write over a line.
const TERMINAL: &str = "xterm";

fn on_terminal(terminal: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.args(["-c", ON_TERMINAL, terminal, env!("CARGO_BIN_EXE_gesta")]);
    output_of(command.args(arguments))
}

/// Does what [`on_terminal`] does, and standard input is that terminal, at which this is typed.
fn typed_on_terminal(typed: &str, arguments: &[&str]) -> Output {
    let script = ON_TERMINAL
        .replace("stdin=subprocess.DEVNULL", "stdin=theirs")
        .replace(
            "os.close(theirs)\n",
            "os.close(theirs)\nos.write(ours, os.environ[\"TYPED\"].encode())\n",
        );
    let mut command = Command::new("python3");
    command.args(["-c", &script, TERMINAL, env!("CARGO_BIN_EXE_gesta")]);
    output_of(command.args(arguments).env("TYPED", typed))
}

fn append(store: &str, stream: &str) {
    let event = ["stream", "append", stream, "--type", "t", "--data", "1"];
    succeed(&[&["--store", store], &event[..]].concat());
}

/// What happened: a check of a large store, a restore and others said nothing for minutes, as if they hung.
#[test]
fn commands_that_take_a_while_show_on_a_terminal_how_far_they_are() {
    if !is_installed("python3") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let store = url_of(&home.path().join("gesta.db"));
    append(&store, "a-1");
    let (other, target) = (
        format!("sqlite:{}", path("new.db")),
        format!("sqlite:{}", path("read.db")),
    );
    let export = path("events.jsonl");
    std::fs::write(
        &export,
        succeed(&["--store", &store, "--output", "json", "all", "read"]),
    )
    .unwrap();
    let copy = path("copy.db");
    let (import, restored) = (
        format!("sqlite:{}", path("import.db")),
        format!("sqlite:{}", path("back.db")),
    );
    let journal = path("journal.jsonl");
    std::fs::write(&journal, "{\"stream\":\"b-1\",\"type\":\"t\",\"data\":1}\n").unwrap();
    let lines = format!("sqlite:{}", path("lines.db"));
    let index = [
        "index", "run", "i", "--path", "a", "--once", "--target", &target, "--store", &store,
    ];
    let wait = [
        "projection",
        "wait",
        "i",
        "--target",
        &target,
        "--store",
        &store,
    ];
    let commands: &[(&[&str], &str)] = &[
        (&["verify", "--store", &store], "opening the store"),
        (
            &["scavenge", "--yes", "--compact", "--store", &store],
            "to a smaller file",
        ),
        (&["backup", &copy, "--store", &store], "opening the store"),
        (
            &["restore", &copy, "--store", &restored],
            "putting the copy in its place",
        ),
        (
            &["virtual-streams", "on", "--store", &store],
            "opening the store",
        ),
        (
            &["schema", "migrate", "--store", &store],
            "migrating the tables",
        ),
        (&["all", "read", "--store", &store], "1 event written"),
        (
            &["stream", "read", "a-1", "--store", &store],
            "1 event written",
        ),
        (
            &["all", "import", &export, "--store", &import],
            "reading the file",
        ),
        (
            &["import", &journal, "--kind", "lines", "--store", &lines],
            "opening the source",
        ),
        (&["copy", &store, &other], "opening both stores"),
        (&index, "index i v1"),
        (
            &wait,
            "waiting until i v1 shows everything that is stored now",
        ),
    ];
    for (command, text) in commands {
        let shown = on_terminal(TERMINAL, command);
        assert!(shown.status.success(), "{command:?}: {shown:?}");
        let terminal = stderr(&shown);
        assert!(terminal.contains(text), "{command:?}: {terminal:?}");
        // The line is taken away at the end: what stands there then is at the beginning of an empty line.
        let last = terminal.rsplit("\x1b[2K").next().unwrap_or_default();
        let left = last.trim_start_matches("\x1b[1A").trim();
        assert!(!left.contains(text), "{command:?}: {terminal:?}");
    }
    // Neither a log nor a program that reads JSON gets any of it.
    let healthy = run(&["verify", "--store", &store]);
    assert_eq!(stderr(&healthy), "", "{healthy:?}");
    let json = on_terminal(TERMINAL, &["verify", "--output", "json", "--store", &store]);
    assert!(
        json.status.success() && stderr(&json).is_empty(),
        "{json:?}"
    );
    // An export is in JSON, and shows it all the same: the events go elsewhere.
    let read = ["all", "read", "--output", "json", "--store", &store];
    let exported = on_terminal(TERMINAL, &read);
    assert!(
        stderr(&exported).contains("1 event written"),
        "{exported:?}"
    );
    assert_eq!(stdout(&exported), succeed(&read));
    // A terminal that cannot write over a line gets lines.
    let plain = on_terminal("", &["verify", "--store", &store]);
    assert_eq!(stderr(&plain).trim(), "opening the store …", "{plain:?}");
}

/// Runs a program at a terminal, types something when it has asked for it, and gives what was shown as its output. What
/// is typed unseen is typed when the terminal does not echo any more.
const TYPED: &str = r#"
import os, pty, sys, termios
asked, typed = (part.encode() for part in sys.argv[1:3])
child, ours = pty.fork()
if child == 0:
    os.execv(sys.argv[4], sys.argv[4:])
shown = b""
while True:
    try:
        part = os.read(ours, 4096)
    except OSError:
        break
    shown += part
    if typed and asked in shown:
        while sys.argv[3] == "unseen" and termios.tcgetattr(ours)[3] & termios.ECHO:
            pass
        os.write(ours, typed)
        typed = b""
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

/// What happened: Ctrl-C at the question for a password was an error of code 1, and whoever said no to a question was
/// told of an error. Goal: the first has the code of a command that was stopped, the second says what was done.
#[test]
fn questions_are_answered_by_no() {
    if !is_installed("python3") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    append(&store, "a-1");
    let at_terminal = |typed: &[&str], arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.args(["-c", TYPED]).args(typed);
        command.arg(env!("CARGO_BIN_EXE_gesta")).args(arguments);
        let shown = output_of(&mut command);
        (code(&shown), stdout(&shown))
    };
    let add = ["user", "add", "root", "--admin", "--store", &store];
    let (stopped, shown) = at_terminal(&["New password of root: ", "\x03", "unseen"], &add);
    assert_eq!(stopped, 130, "{shown}");
    assert!(shown.contains("stopped: nothing was changed"), "{shown}");
    let delete = ["stream", "delete", "a-1", "--store", &store];
    let (declined, shown) = at_terminal(&["[y/N]", "n\n", "seen"], &delete);
    assert_eq!(declined, 1, "{shown}");
    assert!(shown.contains("nothing was done"), "{shown}");
    assert!(!shown.contains("error"), "{shown}");
}

/// Goal: a store that a server has open is told in one line, with the whole command that goes through the server.
///
/// What happened: the command had lost its arguments, so that a dry run became a real one, and had an address that was
/// guessed, at which another server may be.
#[test]
fn a_store_in_use_is_told_once() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gesta.db");
    let server = Server::start(&url_of(&path));
    for (command, advice) in [
        (
            &["verify"][..],
            "ask it: gesta verify --store URL, with the URL of that server",
        ),
        (
            &["scavenge", "--yes"],
            "ask it: gesta scavenge --store URL,",
        ),
        (
            &["scavenge", "--dry-run"],
            "ask it: gesta scavenge --dry-run --store URL,",
        ),
        (
            &["virtual-streams", "status"],
            "ask it: gesta virtual-streams status --store URL,",
        ),
        (
            &["virtual-streams", "on"],
            "ask it: gesta virtual-streams on --store URL,",
        ),
        (
            &["backup", "copy.db"],
            "ask it: gesta backup copy.db --store URL,",
        ),
        (
            &["user", "list"],
            "with --store URL, the URL of that server, and GESTA_USER",
        ),
    ] {
        let refused = run(&[command, &["--store", &url_of(&path)]].concat());
        assert_eq!(code(&refused), 5, "{refused:?}");
        let text = stderr(&refused);
        assert_eq!(text.lines().count(), 1, "{text}");
        let holder = format!("{} is open in process {}", path.display(), server.pid());
        assert!(text.contains(&holder) && text.contains(advice), "{text}");
        assert!(!text.contains("http://"), "{text}");
        assert_eq!(text.matches("is open in").count(), 1, "{text}");
        assert!(!text.contains("one process at a time"), "{text}");
    }
    // A server cannot write its file again, so it is not named.
    let compact = ["scavenge", "--yes", "--compact", "--store", &url_of(&path)];
    let refused = run(&compact);
    assert_eq!(code(&refused), 5, "{refused:?}");
    assert!(!stderr(&refused).contains("ask it"), "{refused:?}");
    server.stop();
}

/// What happened: a line that turns was shown to who was to type the lines, and nothing said so.
#[test]
fn who_types_lines_is_told_what_is_waited_for() {
    if !is_installed("python3") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let line = r#"{"stream":"a-1","type":"t","data":1}"#;
    for command in [&["import", "-", "--kind", "lines"][..], &["all", "import"]] {
        let command = [command, &["--store", &store]].concat();
        let imported = typed_on_terminal(&format!("{line}\n\x04"), &command);
        assert!(imported.status.success(), "{imported:?}");
        let terminal = stderr(&imported);
        assert!(
            terminal.contains("from the terminal, one JSON object per line; Ctrl-D ends them"),
            "{terminal:?}"
        );
        assert!(!terminal.contains("\x1b[2K"), "{terminal:?}");
    }
}

/// Goal: Ctrl-C ends waiting with the code of a command that was stopped, and says what it has waited for.
#[test]
fn waiting_for_an_index_is_stopped() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let target = url_of(&home.path().join("read.db"));
    append(&store, "a-1");
    let places = ["--target", &target, "--store", &store];
    let index = ["index", "run", "i", "--path", "a", "--once"];
    succeed(&[&index[..], &places].concat());
    // What happened: it was called a projection.
    let find = ["index", "find", "nosuch", "a=1"];
    let refused = run(&[&find[..], &places].concat());
    assert_eq!(code(&refused), 3, "{refused:?}");
    assert!(
        stderr(&refused).contains("no index \"nosuch\""),
        "{refused:?}"
    );
    append(&store, "a-2");
    // Nobody keeps it any more, so it never shows the second event.
    let mut command = gesta(&[&["projection", "wait", "i"], &places[..]].concat());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Until it has the store open it has not begun to wait for Ctrl-C either.
    let lock = home.path().join("gesta.db.lock");
    wait_until("it waits", || {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::fs::metadata(&lock).is_ok_and(|found| found.len() > 0)
    });
    signal(&child, Signal::SIGINT);
    let stopped = ended(child);
    // A signal that comes before it waits ends it by itself.
    if let Some(code) = stopped.status.code() {
        assert_eq!(code, 130, "{stopped:?}");
        let text = stderr(&stopped);
        assert!(
            text.contains("i v1 does not show everything that is stored now yet"),
            "{text}"
        );
    }
    // What happened: without a terminal nothing was said, and on one the cause was cut off.
    let deserted = "no process runs i v1: start `gesta index run i --version 1`, with its paths";
    let wait = ["projection", "wait", "i", "--timeout", "1ms"];
    let late = run(&[&wait[..], &places].concat());
    assert_eq!(code(&late), 5, "{late:?}");
    let told = stderr(&late);
    assert!(
        told.starts_with(&format!("{deserted}; this waits")),
        "{told}"
    );
    let (_, error) = told.split_once("error: ").expect(&told);
    assert!(
        error.contains(deserted) && !error.contains("--timeout"),
        "{told}"
    );
    if is_installed("python3") {
        let wait = ["projection", "wait", "i", "--timeout", "1s"];
        let told = stderr(&on_terminal(TERMINAL, &[&wait[..], &places].concat()));
        assert!(told.contains("i v1: no process runs it; 0 of "), "{told:?}");
    }
    // One that was paused is not waited for.
    succeed(&["projection", "pause", "i", "--target", &target]);
    for waiting in [&["projection", "wait", "i"][..], &index] {
        let refused = run(&[waiting, &places].concat());
        assert_eq!(code(&refused), 5, "{refused:?}");
        let text = stderr(&refused);
        assert!(
            text.contains("i v1 is paused; `gesta projection resume i --version 1`"),
            "{text}"
        );
    }
    succeed(&["projection", "resume", "i", "--target", &target]);
    let done = succeed(&[&index[..], &places].concat());
    assert!(done.contains("index i v1 shows everything"), "{done}");
    let waited = succeed(
        &[
            &["projection", "wait", "i", "--output", "json"],
            &places[..],
        ]
        .concat(),
    );
    let waited: serde_json::Value = serde_json::from_str(&waited).unwrap();
    assert_eq!(
        (&waited["name"], &waited["positions"]),
        (&"i".into(), &0.into())
    );
}
