//! Moves from a file. One process has a file at a time: `gesta serve`, which the writers use, or the cinema, which has
//! its store within it. So the two take turns, and are away while the file moves. Now and then one of them is started
//! again beside the mover, as a supervisor does it. In the target both are there at once.

use gesta_rig::free_address;
use rusqlite::{Connection, OpenFlags, Row};

use crate::load::Load;
use crate::support::{Server, code, gesta, run, stderr, stdout, succeed};
use crate::visitors::{Visitors, cinema};
use crate::{TRY_AGAIN, World};

/// Who has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Server,
    Cinema,
}

/// Where one of them listens on either side.
struct Places {
    servers: [String; 2],
    cinemas: [String; 2],
}

impl Places {
    fn free() -> Self {
        let free = || free_address().unwrap().to_string();
        Self {
            servers: [free(), free()],
            cinemas: [free(), free()],
        }
    }
}

impl World {
    /// Starts one of them on a store; if it ends instead, what it has said is returned.
    fn start_owner(&self, owner: Owner, store: &str, address: &str) -> Result<Server, Vec<String>> {
        Server::try_spawn(&mut match owner {
            Owner::Server => gesta(&["serve", "--store", store, "--listen", address]),
            Owner::Cinema => cinema(self.cinema.as_ref().expect("a cinema"), store, address),
        })
    }

    /// Those that there are.
    fn owners(&self) -> Vec<Owner> {
        let cinema = self.cinema.as_ref().map(|_| Owner::Cinema);
        [Owner::Server].into_iter().chain(cinema).collect()
    }

    fn any_owner(&mut self) -> Owner {
        let owners = self.owners();
        owners[self.random.below(owners.len())]
    }

    fn end(&mut self, running: Server) {
        match self.random.below(2) {
            0 => running.stop(),
            _ => running.kill(),
        }
    }

    /// One of them has the file for a while, and is stopped or killed.
    async fn takes_a_turn(&mut self, owner: Owner, load: &Load, at: &Places) {
        let address = address_of(owner, at, 0);
        let running = self.start_owner(owner, &self.source, address).unwrap();
        go_on(load, owner).await;
        // While somebody has it the file is not moved.
        let refused = run(&["move", &self.source, &self.target]);
        let why = stderr(&refused);
        assert_eq!(code(&refused), TRY_AGAIN, "{why}");
        assert!(why.contains("stop what uses it"), "{why}");
        self.end(running);
    }

    /// A mover is killed while something starts one of them on the file. That gets the file, and serves it for a while,
    /// or says why it does not.
    async fn starts_beside_the_mover(&mut self, load: &Load, at: &Places) {
        let owner = self.any_owner();
        let (lives, waits) = (self.moment(), self.moment());
        let mut mover = self.mover();
        let kills = std::thread::spawn(move || {
            std::thread::sleep(lives);
            mover.kill().unwrap();
            mover.wait().unwrap();
        });
        tokio::time::sleep(waits).await;
        let started = self.start_owner(owner, &self.source, address_of(owner, at, 0));
        kills.join().unwrap();
        match started {
            Ok(running) => {
                go_on(load, owner).await;
                self.end(running);
            }
            Err(log) => {
                let why = log.join(" ");
                let reasons = ["belongs to one process at a time", "has moved to"];
                assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");
            }
        }
    }

    /// The file says to each of them where the store is, and the target has all of them.
    fn opens_the_target(&self, at: &Places) -> Vec<(Owner, Server)> {
        let (_, place) = self.target.split_once('@').unwrap();
        let (place, _) = place.split_once('?').unwrap();
        let open = |owner| {
            let refused = self.start_owner(owner, &self.source, address_of(owner, at, 0));
            let told = refused.err().expect("the store has moved").join(" ");
            let says_where = told.contains("has moved to") && told.contains(place);
            assert!(says_where, "{told}");
            let started = self.start_owner(owner, &self.target, address_of(owner, at, 1));
            (owner, started.unwrap())
        };
        self.owners().into_iter().map(open).collect()
    }

    /// A database that has been a target before, or has a store of its own, is refused and stays as it is.
    fn refuses_a_used_target(&mut self) {
        if self.used.is_empty() {
            let used = self.database(1);
            let event = ["--type", "happened", "--data", "{}", "--store", &used];
            succeed(&[&["stream", "append", "cart-1"][..], &event].concat());
            self.used.push(used);
        }
        let used = &self.used[self.random.below(self.used.len())];
        let read = || run(&["all", "read", "--store", used, "--output", "json"]);
        let before = read();
        let refused = self.answered(&["move", &self.source, used]);
        let why = stderr(&refused);
        let reasons = [
            "the target must be empty",
            "that of the move of another store",
            "undone",
        ];
        let says_why = reasons.iter().any(|reason| why.contains(reason));
        assert!(code(&refused) == 1 && says_why, "{why}");
        assert_eq!(before, read());
    }

    /// The target has each event of the file at its position: since the move the file has accepted nothing.
    fn file_has_nothing_more(&self) {
        let path = self.source.strip_prefix("sqlite:").unwrap();
        let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let file = Connection::open_with_flags(path, read_only).unwrap();
        let of_file = "SELECT position, lower(hex(event_id)) FROM events ORDER BY position";
        let mut of_file = file.prepare(of_file).unwrap();
        let event = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
        let in_file = of_file.query_map([], event).unwrap();
        let in_file: Vec<String> = in_file
            .map(Result::unwrap)
            .filter(|(position, _)| *position < i64::MAX)
            .map(|(position, id)| format!("{position} {id}"))
            .collect();
        let (_, schema) = self.target.rsplit_once("schema=").unwrap();
        let event = "position || ' ' || replace(event_id::text, '-', '')";
        let in_target =
            format!("SELECT string_agg({event}, E'\n' ORDER BY position) FROM {schema}.events");
        let in_target = self.postgres[1].query(&in_target).unwrap().unwrap();
        let in_target: Vec<&str> = in_target.trim().lines().collect();
        assert!(!in_file.is_empty() && in_file.len() <= in_target.len());
        assert_eq!(in_file, in_target[..in_file.len()]);
    }
}

fn address_of(owner: Owner, at: &Places, side: usize) -> &str {
    match owner {
        Owner::Server => &at.servers[side],
        Owner::Cinema => &at.cinemas[side],
    }
}

async fn go_on(load: &Load, owner: Owner) {
    match owner {
        Owner::Server => load.writers_go_on().await,
        Owner::Cinema => load.visitors_go_on().await,
    }
}

/// One move, with kills.
pub(crate) async fn move_from_file(world: &mut World) -> usize {
    let at = Places::free();
    let urls = at
        .servers
        .clone()
        .map(|address| format!("http://{address}"));
    let visitors = world.cinema.is_some();
    let visitors = visitors.then(|| Visitors::start(&at.cinemas));
    let load = Load::start(&urls, visitors);
    let mut owners = world.owners();
    if world.random.below(2) == 0 {
        owners.reverse();
    }
    loop {
        for &owner in &owners {
            world.takes_a_turn(owner, &load, &at).await;
        }
        world.refuses_a_used_target();
        for _ in 0..world.random.below(4) {
            match world.random.below(3) {
                0 => world.starts_beside_the_mover(&load, &at).await,
                _ => world.mover_dies().await,
            }
            if world.random.below(3) == 0 {
                world.database_dies(1);
            }
        }
        if world.random.below(3) != 0 {
            break;
        }
        let undone = world.answered(&["move", &world.source, &world.target, "--undo"]);
        if !undone.status.success() {
            let why = stderr(&undone);
            assert!(why.contains("cannot be undone"), "{why}");
            break;
        }
        let fresh = world.database(1);
        let target = std::mem::replace(&mut world.target, fresh);
        // Otherwise the mover has died before it did anything there.
        if stdout(&undone).contains("the move is undone") {
            world.used.push(target);
        }
        owners = vec![world.any_owner()];
    }
    world.moved();
    let mut new = world.opens_the_target(&at);
    load.goes_on().await;
    if world.random.below(2) == 0 {
        let (owner, running) = new.remove(world.random.below(new.len()));
        running.kill();
        let again = world.start_owner(owner, &world.target, address_of(owner, &at, 1));
        new.push((owner, again.unwrap()));
        load.goes_on().await;
    }
    let has = |of| {
        new.iter()
            .find(|(owner, _)| *owner == of)
            .map(|(_, new)| new)
    };
    let cinema_address = has(Owner::Cinema).map(|cinema| cinema.address());
    let server = &has(Owner::Server).expect("a server").url;
    let events = load.check(server, cinema_address).await;
    new.into_iter().for_each(|(_, new)| new.stop());
    world.file_has_nothing_more();
    world.used.push(world.target.clone());
    events
}
