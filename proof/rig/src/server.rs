//! One throw-away server: its files, its supervising shell, and how it ends.
//!
//! The shell starts `postgres`, prints its process id, and then waits for a line on its standard input: the name of the
//! signal to stop it with. If this process dies, even by `kill -9`, the pipe closes, and the shell stops the server and
//! removes its files. So neither a server nor a file can be left behind.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::announcement::Announcement;
use crate::ask::{answers, query};
use crate::processes::{children_of, is_alive, suspend, suspend_all};
use crate::run_as::RunAs;
use crate::{Result, free_address, installed, wait_until};

/// The shell script that starts the server and ends it; see the text of the module. `$0` is the parent of the data
/// folder.
const SUPERVISE: &str = r#"
"$@" >>"$0/server.log" 2>&1 </dev/null &
server=$!
echo "$server"
if read -r signal; then
    kill -s "$signal" "$server" 2>/dev/null
    wait "$server"
else
    # Whoever is suspended does not end.
    kill -s CONT "$server" $(cat "/proc/$server/task/$server/children") 2>/dev/null
    kill -s QUIT "$server" 2>/dev/null
    wait "$server"
    rm -rf "$0"
fi
"#;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const NOT_ENDED: &str = "the server did not end in time";
/// How often a start is tried, since another process can take a free port before the server does.
const PORT_ATTEMPTS: usize = 5;

/// How clients prove who they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everybody on this machine may connect.
    #[default]
    Trust,
    /// Clients authenticate by SCRAM-SHA-256 with this password.
    Password(String),
}

/// The configuration with which a server is started. PostgreSQL's defaults hold for all that it does not name.
#[derive(Debug, Clone, Default)]
pub struct ServerConfig {
    /// How clients prove who they are.
    pub auth: Auth,
    /// Further settings, as in `postgresql.conf`, each with its name and value.
    pub settings: Vec<(String, String)>,
    /// Files to put into the data folder, each with its name and contents. Only the server may read them. With `ssl =
    /// on` the server looks for `server.crt` and `server.key`.
    pub files: Vec<(String, Vec<u8>)>,
}

impl ServerConfig {
    /// Adds a file to the data folder.
    #[must_use]
    pub fn with_file(mut self, name: &str, contents: &[u8]) -> Self {
        self.files.push((name.to_owned(), contents.to_vec()));
        self
    }

    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

#[derive(Debug)]
struct Running {
    /// The supervising shell; `None` if another process has started the server, which then ends it.
    shell: Option<Shell>,
    pid: i32,
}

#[derive(Debug)]
struct Shell {
    child: Child,
    stdin: ChildStdin,
}

/// A throw-away server, running or stopped. Dropping it stops the server and removes its files, unless another process
/// has started it.
#[derive(Debug)]
pub struct Server {
    binaries: PathBuf,
    config: ServerConfig,
    run_as: RunAs,
    home: PathBuf,
    /// Removes the folder; `None` if another process has started the server.
    _home: Option<TempDir>,
    port: u16,
    running: Option<Running>,
}

impl Server {
    /// Starts a server with the default configuration; see [`Server::start_with`].
    ///
    /// # Errors
    /// The errors of [`Server::start_with`].
    pub fn start() -> Result<Option<Self>> {
        Self::start_with(ServerConfig::default())
    }

    /// Makes a new database cluster and starts its server, blocking until it answers. Returns `None`, with a message on
    /// standard error, if PostgreSQL is not installed.
    ///
    /// # Errors
    /// If the cluster cannot be made or does not start; the text holds the server's log.
    ///
    /// # Panics
    /// If PostgreSQL is not installed and the variable `CI` is set: a skipped test must not look like a passed one.
    pub fn start_with(config: ServerConfig) -> Result<Option<Self>> {
        let Some(mut server) = Self::without_data(config)? else {
            return Ok(None);
        };
        server.init()?;
        server.launch_on_a_free_port()?;
        Ok(Some(server))
    }

    /// Makes a server that has an empty folder and does not run.
    fn without_data(config: ServerConfig) -> Result<Option<Self>> {
        let Some(binaries) = installed() else {
            return Ok(None);
        };
        let home = tempfile::Builder::new().prefix("gesta-pg-").tempdir()?;
        let run_as = RunAs::find()?;
        run_as.own(home.path())?;
        Ok(Some(Self {
            binaries,
            config,
            run_as,
            home: home.path().to_owned(),
            _home: Some(home),
            port: 0,
            running: None,
        }))
    }

    /// Returns the server that all test processes of this run share; `None` if there is none.
    pub(crate) fn of_the_run() -> Option<Self> {
        let found = Announcement::find()?;
        Some(Self {
            binaries: found.binaries,
            config: ServerConfig::default(),
            run_as: RunAs::find().ok()?,
            home: found.home,
            _home: None,
            port: found.port,
            running: Some(Running {
                shell: None,
                pid: found.pid,
            }),
        })
    }

    /// Returns the text that tells other processes of this server.
    pub(crate) fn announcement(&self) -> Result<String> {
        let server = Announcement {
            pid: self.pid().ok_or("the server does not run")?,
            port: self.port,
            binaries: self.binaries.clone(),
            home: self.home.clone(),
        };
        Ok(server.to_string())
    }

    fn launch_on_a_free_port(&mut self) -> Result<()> {
        for attempt in 1.. {
            self.port = free_address()?.port();
            match self.launch() {
                Ok(()) => break,
                Err(error) if attempt >= PORT_ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Starts a standby that follows this server: a copy of its data (`pg_basebackup`), kept up to date by streaming.
    ///
    /// `name` is the `application_name` by which the primary knows it.
    ///
    /// # Errors
    /// If the copy cannot be made or the standby does not start.
    pub(crate) fn start_standby(&self, name: &str) -> Result<Self> {
        let standby = Self::without_data(self.config.clone())?;
        let mut standby = standby.ok_or("PostgreSQL is not installed any more")?;
        standby.copy_from(self, name)?;
        standby.launch_on_a_free_port()?;
        Ok(standby)
    }

    /// Stops this server and starts it again, on its port, as a standby with a fresh copy of the primary's data.
    ///
    /// # Errors
    /// If the copy cannot be made or the standby does not start.
    pub(crate) fn restart_as_standby_of(&mut self, primary: &Self, name: &str) -> Result<()> {
        self.kill_9()?;
        std::fs::remove_dir_all(self.data())?;
        self.copy_from(primary, name)?;
        self.launch()
    }

    fn copy_from(&self, primary: &Self, name: &str) -> Result<()> {
        let mut command = self.command(&self.binaries.join("pg_basebackup"));
        let from = format!(
            "host=127.0.0.1 port={} user=postgres application_name={name}",
            primary.port
        );
        command.args([
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
        ]);
        command.arg("-D").arg(self.data()).arg("-d").arg(from);
        if let Auth::Password(password) = &self.config.auth {
            command.env("PGPASSWORD", password);
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(
                format!("pg_basebackup: {}", String::from_utf8_lossy(&output.stderr)).into(),
            );
        }
        Ok(())
    }

    /// Makes a command that runs as the user of the server.
    fn command(&self, program: &Path) -> Command {
        let mut command = self.run_as.command(program);
        command.current_dir(&self.home).env_remove("PGDATA");
        command.env("LC_ALL", "C.UTF-8").env("HOME", &self.home);
        command
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    fn init(&self) -> Result<()> {
        let mut command = self.command(&self.binaries.join("initdb"));
        command.args([
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-N",
            "-D",
        ]);
        command.arg(self.data());
        match &self.config.auth {
            Auth::Trust => {
                command.args(["-A", "trust"]);
            }
            Auth::Password(password) => {
                let file = self.home.join("password");
                self.write_private(&file, format!("{password}\n").as_bytes())?;
                command
                    .args(["-A", "scram-sha-256"])
                    .arg("--pwfile")
                    .arg(&file);
            }
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        for (name, contents) in &self.config.files {
            self.write_private(&self.data().join(name), contents)?;
        }
        Ok(())
    }

    fn write_private(&self, path: &Path, contents: &[u8]) -> Result<()> {
        std::fs::write(path, contents)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        self.run_as.own(path)
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = self.command(Path::new("/bin/sh"));
        command.arg("-c").arg(SUPERVISE).arg(&self.home);
        command
            .arg(self.binaries.join("postgres"))
            .arg("-D")
            .arg(self.data());
        let mut settings = vec![
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("port".to_owned(), self.port.to_string()),
            ("unix_socket_directories".to_owned(), String::new()),
        ];
        settings.extend(self.config.settings.iter().cloned());
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut shell = command.spawn()?;
        let stdin = shell.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let pid = line
            .trim()
            .parse()
            .map_err(|_| format!("no process id from the shell: {line:?}"));
        let stdin = stdin.ok_or("the shell has no standard input")?;
        self.running = Some(Running {
            shell: Some(Shell {
                child: shell,
                stdin,
            }),
            pid: pid?,
        });
        match self.wait_until_ready() {
            Ok(()) => Ok(()),
            Err(error) => {
                self.end("QUIT")?;
                Err(format!("{error}\n{}", self.log()).into())
            }
        }
    }

    /// Waits until the lock file says that the server is ready, and the port answers a start-up message with a request
    /// to authenticate.
    fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let lock =
                std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
            let ours = lock.lines().next() == self.pid().map(|pid| pid.to_string()).as_deref();
            let ready = lock
                .lines()
                .nth(7)
                .is_some_and(|status| matches!(status.trim(), "ready" | "standby"));
            if ours && ready && answers(self.addr()) {
                return Ok(());
            }
            if !self.pid().is_some_and(is_alive) {
                return Err("the server ended while starting".into());
            }
            if Instant::now() > deadline {
                return Err("the server did not get ready in time".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the address at which the server listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns the URL of the database `postgres`, for the superuser.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("postgres")
    }

    /// Returns the URL of a database, for the superuser.
    #[must_use]
    pub fn url_for(&self, database: &str) -> String {
        let password = match &self.config.auth {
            Auth::Trust => String::new(),
            Auth::Password(password) => format!(":{password}"),
        };
        format!("postgres://postgres{password}@{}/{database}", self.addr())
    }

    /// Returns the process id of the server; `None` while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid)
    }

    /// Returns what the server has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.home.join("server.log")) {
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Makes a database and returns its URL. The name must be a plain lower-case identifier.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub fn create_database(&self, name: &str) -> Result<String> {
        self.execute(&format!("CREATE DATABASE {name}"))?;
        Ok(self.url_for(name))
    }

    /// Runs statements as superuser in the database `postgres`, blocking. It can be used inside and outside of a
    /// runtime.
    ///
    /// # Errors
    /// If the server does not answer within 30 seconds or refuses.
    pub fn execute(&self, sql: &str) -> Result<()> {
        self.query(sql).map(|_| ())
    }

    /// Runs statements as [`Server::execute`] does, and returns the first column of the first row as text; `None`
    /// without a row or for NULL.
    ///
    /// # Errors
    /// The errors of [`Server::execute`].
    pub fn query(&self, sql: &str) -> Result<Option<String>> {
        query(&self.url(), sql)
    }

    /// Stops the server as `systemctl stop` would: connections are ended, everything is written. Its data is kept.
    ///
    /// # Errors
    /// If the server does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.end("INT")
    }

    /// Ends all processes of the server by `kill -9`, as when the kernel of the machine crashes, but the page cache is
    /// kept. Its data is kept.
    ///
    /// # Errors
    /// If the server does not end in time.
    pub fn kill_9(&mut self) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // The server is suspended first, so that it neither starts new processes nor cleans up after dead ones.
        let _ = kill(Pid::from_raw(pid), Signal::SIGSTOP);
        let children = children_of(pid);
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        for child in &children {
            let _ = kill(Pid::from_raw(*child), Signal::SIGKILL);
        }
        self.end("KILL")?;
        wait_until(NOT_ENDED, || !children.iter().any(|child| is_alive(*child)))
    }

    /// Starts the server again on the same port with the same data. A running server is stopped first.
    ///
    /// # Errors
    /// If the server does not stop or does not start; the text holds its log.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.launch()
    }

    /// Changes or adds a setting, which takes effect with the next [`Server::restart`].
    pub fn set(&mut self, name: &str, value: &str) {
        self.config.settings.retain(|(known, _)| known != name);
        self.config
            .settings
            .push((name.to_owned(), value.to_owned()));
    }

    /// Ends one backend of the server by `kill -9`. The server then ends all other connections and recovers, as
    /// PostgreSQL does.
    ///
    /// # Errors
    /// If the server has no such process.
    pub fn kill_backend(&self, backend: i32) -> Result<()> {
        let ours = self.pid().map(children_of).unwrap_or_default();
        if !ours.contains(&backend) {
            return Err(format!("process {backend} is not one of this server's").into());
        }
        kill(Pid::from_raw(backend), Signal::SIGKILL)?;
        Ok(())
    }

    /// Suspends one backend of the server (`SIGSTOP`) or lets it go on (`SIGCONT`).
    ///
    /// # Errors
    /// If the server has no such process.
    pub fn suspend_backend(&self, backend: i32, suspended: bool) -> Result<()> {
        let ours = self.pid().map(children_of).unwrap_or_default();
        if !ours.contains(&backend) {
            return Err(format!("process {backend} is not one of this server's").into());
        }
        suspend(backend, suspended)
    }

    /// Suspends the server and all of its processes, like a machine that hangs: connections stay open, nothing answers.
    ///
    /// # Errors
    /// If a process does not stop.
    pub fn freeze(&self) -> Result<()> {
        self.pid().map_or(Ok(()), |pid| suspend_all(pid, true))
    }

    /// Lets all processes of the server go on.
    ///
    /// # Errors
    /// If a process does not go on.
    pub fn thaw(&self) -> Result<()> {
        self.pid().map_or(Ok(()), |pid| suspend_all(pid, false))
    }

    fn end(&mut self, signal: &str) -> Result<()> {
        let Some(Running { shell, pid }) = self.running.take() else {
            return Ok(());
        };
        let Some(mut shell) = shell else {
            return Err("the server belongs to all tests of this run".into());
        };
        // A suspended process does not end.
        let _ = suspend_all(pid, false);
        // This fails only if the shell is gone, which the wait below shows.
        let _ = shell.stdin.write_all(format!("{signal}\n").as_bytes());
        drop(shell.stdin);
        let mut ended = false;
        let outcome = wait_until(NOT_ENDED, || {
            ended = ended || shell.child.try_wait().is_ok_and(|status| status.is_some());
            ended
        });
        if outcome.is_err() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            shell.child.wait()?;
        }
        outcome
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end("QUIT") {
            eprintln!("stopping PostgreSQL: {error}");
        }
    }
}
