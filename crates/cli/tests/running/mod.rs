//! A running server with the times and bounds that it has by default: what it logs, what it holds, and how to talk to
//! it without a client that helps.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitStatus};

use nix::sys::signal::Signal;

use crate::support::{self, PATIENCE, Server};

pub(crate) struct Running(Server);

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
        let store = support::url_of(&directory.join("gesta.db"));
        command.args(["serve", "--store", &store, "--listen", "127.0.0.1:0"]);
        Self(Server::spawn(&mut command))
    }

    pub(crate) fn log(&self) -> String {
        self.0.logged("").join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Waits for its end, and for the last of its log.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.0.address()).unwrap();
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
        write!(socket, "{line}Host: {}\r\n\r\n", self.0.address()).unwrap();
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
            self.0.address()
        ))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.0.address(),
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
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
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
        rlimit::prlimit(self.0.pid(), rlimit::Resource::NOFILE, None, found).unwrap();
        (soft, hard)
    }

    /// Lets the process have so many files open, in all.
    pub(crate) fn allow_open_files(&self, count: u64) {
        let limits = Some((count, self.open_files_max().1));
        rlimit::prlimit(self.0.pid(), rlimit::Resource::NOFILE, limits, None).unwrap();
    }
}
