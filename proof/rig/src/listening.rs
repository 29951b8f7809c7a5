//! A program that says on standard error where it listens: a server under test.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::Signal;

use crate::{Child, DONE_TIMEOUT, wait_until};

/// What a server says before its URL.
const MARK: &str = "listening on ";

/// A running server. Dropping it kills the server, and so does the end of this process, however that ends.
#[derive(Debug)]
pub struct Listening {
    /// The URL at which it listens.
    pub url: String,
    child: Child,
    /// What it has said so far, without the lines that name its URL.
    log: Arc<Mutex<Vec<String>>>,
}

impl Listening {
    /// Starts the program of a command, with its environment and its folder, and waits until it listens. If it ends
    /// instead, the lines that it has said are returned.
    ///
    /// # Errors
    /// If the program ends instead of listening.
    ///
    /// # Panics
    /// If no process can be started, or if the program neither listens nor ends in time.
    pub fn start(command: &mut Command) -> Result<Self, Vec<String>> {
        let started = Child::spawn(command.stderr(Stdio::piped()));
        let mut child = started.unwrap_or_else(|error| panic!("it does not start: {error}"));
        let errors = child.take_errors();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (told, url) = mpsc::channel();
        let said = Arc::clone(&log);
        // Whoever writes to a closed pipe dies: keep reading.
        std::thread::spawn(move || {
            let lines = errors.into_iter().flat_map(|it| BufReader::new(it).lines());
            for line in lines.map_while(Result::ok) {
                match line.split_once(MARK) {
                    // Nobody waits for a second one.
                    Some((_, url)) => {
                        // A log of JSON goes on after it.
                        let url = url.split('"').next().unwrap_or_default();
                        drop(told.send(url.trim().to_owned()));
                    }
                    None => said
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(line),
                }
            }
        });
        let mut server = Self {
            url: String::new(),
            child,
            log,
        };
        match url.recv_timeout(DONE_TIMEOUT) {
            Ok(url) => server.url = url,
            Err(RecvTimeoutError::Timeout) => panic!("never listens: {:?}", server.logged("")),
            Err(RecvTimeoutError::Disconnected) => return Err(server.logged("")),
        }
        Ok(server)
    }

    /// Returns host and port of its URL.
    #[must_use]
    pub fn address(&self) -> &str {
        self.url
            .split_once("://")
            .map_or(&self.url, |(_, address)| address)
    }

    /// Returns the lines of its log so far that contain this text.
    #[must_use]
    pub fn logged(&self, text: &str) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let found = log.iter().filter(|line| line.contains(text));
        found.cloned().collect()
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits for its end and for the last line of its log. Returns how it has ended.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let ended = self.child.wait();
        let ended = ended.unwrap_or_else(|error| panic!("{error}: {:?}", self.logged("")));
        // The thread that reads the log drops its share when the log ends.
        let read = wait_until("the log does not end", || Arc::strong_count(&self.log) == 1);
        read.unwrap_or_else(|error| panic!("{error}: {:?}", self.logged("")));
        ended
    }

    /// Ends it by SIGTERM.
    ///
    /// # Panics
    /// If it does not end in time, or not with success.
    pub fn stop(self) {
        self.stop_by(Signal::SIGTERM);
    }

    /// Ends it by a signal.
    ///
    /// # Panics
    /// If it does not end in time, or not with success.
    pub fn stop_by(mut self, signal: Signal) {
        self.signal(signal);
        let ended = self.wait();
        assert!(ended.success(), "{ended}: {:?}", self.logged(""));
    }

    /// Kills it. Returns when it is dead.
    pub fn kill(&mut self) {
        self.child.kill();
    }
}
