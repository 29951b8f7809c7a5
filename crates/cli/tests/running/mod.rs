//! A running server: what it logs, what it holds, and how to talk to it without a client that helps.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for something, but not for ever.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < PATIENCE, "{what}: did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) struct Running {
    child: Child,
    address: String,
    log: Arc<Mutex<String>>,
}

impl Running {
    /// Starts a server for a store in this directory, with these variables.
    pub(crate) fn start(directory: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gesta"));
        command.envs(variables.iter().copied());
        Self::spawn(command, directory)
    }

    /// Starts a server whose system allows it so few open files.
    pub(crate) fn with_open_files(directory: &Path, soft: u32, hard: u32) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_gesta")]);
        Self::spawn(command, directory)
    }

    /// Starts a server with these variables, whose files cannot grow beyond so many bytes.
    #[allow(dead_code, reason = "not every test has a use for it")]
    pub(crate) fn with_small_files(
        directory: &Path,
        bytes_max: u64,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new("sh");
        command.envs(variables.iter().copied());
        // A write beyond the limit fails, and does not end the process.
        let blocks = bytes_max / 512;
        let script = format!("trap '' XFSZ; ulimit -f {blocks} && exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_gesta")]);
        Self::spawn(command, directory)
    }

    fn spawn(mut command: Command, directory: &Path) -> Self {
        let store = format!("sqlite:{}", directory.join("gesta.db").display());
        let mut child = command
            .args(["serve", "--store", &store, "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let (told, address) = mpsc::channel();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *kept.lock().unwrap() += &format!("{line}\n");
                if let Some((_, address)) = line.split_once("listening on http://") {
                    // Nobody waits for a second one.
                    let _ = told.send(address.trim().to_owned());
                }
            }
        });
        let mut server = Self {
            child,
            address: String::new(),
            log,
        };
        match address.recv_timeout(PATIENCE) {
            Ok(address) => server.address = address,
            Err(RecvTimeoutError::Timeout) => panic!("never listens: {}", server.log()),
            Err(RecvTimeoutError::Disconnected) => panic!("it ended: {}", server.log()),
        }
        server
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits for its end, and for the last of its log.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the server ends", || {
            self.child.try_wait().unwrap().is_some()
        });
        until("its log ends", || Arc::strong_count(&self.log) == 1);
        self.child.wait().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Reads from a socket until this text has come; gives all that was read.
    pub(crate) fn read_until(&self, socket: &mut TcpStream, text: &str) -> String {
        let (mut read, mut buffer) = (String::new(), [0; 4_096]);
        while !read.contains(text) {
            let bytes = socket.read(&mut buffer).unwrap();
            assert!(bytes > 0, "ended before {text:?}: {read}\n{}", self.log());
            read.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
        }
        read
    }

    /// Sends a head that begins with this line.
    pub(crate) fn say(&self, socket: &mut TcpStream, line: &str) {
        write!(socket, "{line}Host: {}\r\n\r\n", self.address).unwrap();
    }

    /// An answer, head and body. The connection may have been closed before all of the request was sent.
    fn exchange(&self, request: &str) -> String {
        let mut socket = self.connect();
        let _ = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        ))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> usize {
        let page = self.get("/metrics");
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("{name}: {page}"))
            .parse()
            .unwrap()
    }

    /// Memory that the process itself has taken and not given back. The program's own file, which is mapped too, is not
    /// counted: the system reads it again when it likes, and a build for tests is large.
    pub(crate) fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = kilobytes.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<usize>().unwrap() * 1_024
    }

    /// The soft and the hard limit of open files.
    pub(crate) fn open_files_max(&self) -> (u64, u64) {
        let (mut soft, mut hard) = (0, 0);
        let found = Some((&mut soft, &mut hard));
        rlimit::prlimit(self.pid(), rlimit::Resource::NOFILE, None, found).unwrap();
        (soft, hard)
    }

    /// Lets the process have so many files open, in all.
    pub(crate) fn allow_open_files(&self, count: u64) {
        let limits = Some((count, self.open_files_max().1));
        rlimit::prlimit(self.pid(), rlimit::Resource::NOFILE, limits, None).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
