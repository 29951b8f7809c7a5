//! Reservations that are not paid are given back, and no others, whatever fails meanwhile; time is virtual.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use gesta::{
    Clock, EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision, StreamId,
};
use gesta_cinema::config::Config;
use gesta_cinema::domain::{Command, SeatStatus};
use gesta_cinema::events::CATEGORY;
use gesta_cinema::payments::Payments;
use gesta_cinema::shows::Shows;
use gesta_kit::depth;
use gesta_kit::faulty::{FaultyStore, Random, RandomFaults, World};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(7);
const SEATS: u32 = 8;
const MINUTE: Duration = Duration::from_secs(60);
const PAY_WITHIN: Duration = Duration::from_secs(30 * 60);

/// A process of the cinema, without HTTP.
struct Process {
    store: FaultyStore,
    shows: Shows,
    payments: Payments,
}

impl Process {
    async fn start(world: &Arc<World>) -> Self {
        let (store, clock): (_, Arc<dyn Clock>) = (world.store(), world.clock());
        let config = Config::parse_from(["cinema"]);
        let shows = Shows::start(store.share(), None, &config, Arc::clone(&clock));
        let shows = shows.expect("valid names");
        let events: Arc<dyn EventStore> = store.share();
        let payments = Payments::start(&events, &shows, PAY_WITHIN, clock).await;
        Self {
            payments: payments.expect("started"),
            store,
            shows,
        }
    }

    async fn status(&self) -> Vec<SeatStatus> {
        let show = self.shows.show(ID).await.expect("read").expect("created");
        show.seats.iter().map(|seat| seat.status).collect()
    }

    /// Waits until the seats are these.
    async fn until(&self, expected: &[SeatStatus]) {
        let waited = timeout(60 * MINUTE, async {
            while self.status().await != expected {
                sleep(Duration::from_secs(1)).await;
            }
        });
        let waited = waited.await;
        assert!(waited.is_ok(), "{expected:?}, {:?}", self.status().await);
    }
}

/// Does it, again if the store fails.
async fn done(process: &Process, command: Command) {
    let key = Uuid::new_v4().to_string();
    let asked = timeout(60 * MINUTE, async {
        loop {
            let (command, key) = (command.clone(), Some(key.clone()));
            match process.shows.execute(ID, command, key).await {
                Ok(()) => break,
                Err(gesta::entity::Error::Rejected(rejection)) => panic!("{rejection:?}"),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    });
    asked.await.expect("the store comes back");
}

fn create() -> Command {
    Command::CreateShow {
        show_id: ID,
        title: "Ran".into(),
        max_seats: SEATS,
    }
}

/// Goal: what is not paid is given back after its time, and not before; a seat that is reserved anew has its time anew;
/// what is paid stays.
#[tokio::test(start_paused = true)]
async fn what_is_not_paid_is_given_back() {
    use SeatStatus::{Available, Paid, Reserved};
    let world = World::new(1);
    let process = Process::start(&world).await;
    done(&process, create()).await;
    for seat in 0..3 {
        done(&process, Command::ReserveSeat { seat }).await;
    }
    done(&process, Command::PaySeat { seat: 1 }).await;
    sleep(20 * MINUTE).await;
    done(&process, Command::CancelReservation { seat: 2 }).await;
    done(&process, Command::ReserveSeat { seat: 2 }).await;
    sleep(9 * MINUTE).await;
    let first = |seats: &[SeatStatus]| seats[..3].to_vec();
    assert_eq!(first(&process.status().await), [Reserved, Paid, Reserved]);
    sleep(2 * MINUTE).await;
    assert_eq!(first(&process.status().await), [Available, Paid, Reserved]);
    sleep(17 * MINUTE).await;
    assert_eq!(first(&process.status().await), [Available, Paid, Reserved]);
    sleep(5 * MINUTE).await;
    assert_eq!(first(&process.status().await), [Available, Paid, Available]);
    process.payments.shutdown().await;
}

/// Goal: a seat that was given back and reserved anew has its timer, although the process died before it stored how far
/// it had come, and another one does everything again.
#[tokio::test(start_paused = true)]
async fn a_seat_that_is_reserved_anew_has_its_time_after_a_crash() {
    use SeatStatus::{Available, Reserved};
    let world = World::new(1);
    let process = Process::start(&world).await;
    done(&process, create()).await;
    sleep(MINUTE).await;
    let is_place = |stream: &StreamId| stream.as_str().starts_with("$effect-");
    process.store.refuse_rows(move |row| is_place(&row.stream));
    let places = || {
        world
            .stored()
            .iter()
            .filter(|one| is_place(&one.event.stream))
            .count()
    };
    let before = places();
    done(&process, Command::ReserveSeat { seat: 0 }).await;
    done(&process, Command::CancelReservation { seat: 0 }).await;
    done(&process, Command::ReserveSeat { seat: 0 }).await;
    let requests = || {
        let stored = world.stored();
        let is_it = |name: &str| name.starts_with("$timers-") && !name.ends_with("-state");
        stored
            .iter()
            .filter(|one| is_it(one.event.stream.as_str()))
            .count()
    };
    let waited = timeout(60 * MINUTE, async {
        while requests() < 3 {
            sleep(Duration::from_millis(100)).await;
        }
    });
    waited.await.expect("all three were handled");
    assert_eq!(places(), before, "the place was not stored");
    drop(process);
    let process = Process::start(&world).await;
    let mut expected = vec![Available; SEATS as usize];
    expected[0] = Reserved;
    sleep(20 * MINUTE).await;
    assert!(places() > before, "the new process has done them again");
    process.until(&expected).await;
    sleep(20 * MINUTE).await;
    expected[0] = Available;
    process.until(&expected).await;
    assert_eq!(
        requests(),
        4,
        "the seat that was given back by its timer has cancelled it as well"
    );
}

/// What happened: after a restore of the store, or a fail-over that may have lost commits, nobody watched reservations
/// any more. Goal: what is reserved before and after it is given back, and what was paid stays.
#[tokio::test(start_paused = true)]
async fn reservations_are_watched_after_a_restore() {
    use SeatStatus::{Available, Paid};
    let world = World::new(1);
    let process = Process::start(&world).await;
    done(&process, create()).await;
    for seat in 0..2 {
        done(&process, Command::ReserveSeat { seat }).await;
    }
    done(&process, Command::PaySeat { seat: 1 }).await;
    sleep(MINUTE).await;
    process.store.begin_history();
    done(&process, Command::ReserveSeat { seat: 2 }).await;
    sleep(35 * MINUTE).await;
    let mut expected = vec![Available; SEATS as usize];
    expected[1] = Paid;
    process.until(&expected).await;
    process.payments.shutdown().await;
}

/// What happened: an event that could not be read was tried again for ever, without a word, and no reservation after it
/// was watched. Goal: it is left out.
#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_read_holds_nothing_back() {
    let world = World::new(1);
    let process = Process::start(&world).await;
    let event_type = EventType::new("seat-reserved.v1").expect("valid");
    let unreadable = EventData::json(event_type, "no message").with_id(EventId::random());
    let other = format!("{CATEGORY}-{}", Uuid::from_u128(8));
    let appended = process.store.share();
    let appended = appended.append_to(&other, ExpectedRevision::Any, [unreadable]);
    appended.await.expect("appended");
    done(&process, create()).await;
    done(&process, Command::ReserveSeat { seat: 0 }).await;
    sleep(35 * MINUTE).await;
    let expected = vec![SeatStatus::Available; SEATS as usize];
    process.until(&expected).await;
    process.payments.shutdown().await;
}

/// Goal: whatever dies and fails, in the end exactly what was paid is not available.
#[tokio::test(start_paused = true)]
async fn random_histories_give_back_what_is_not_paid() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    for _ in 0..depth::count(2, 100) {
        let world = World::new(1);
        let share = *random.pick(&[0.0, 0.05, 0.15]);
        let mut nodes = Vec::new();
        for _ in 0..2 {
            nodes.push(Process::start(&world).await);
        }
        done(&nodes[0], create()).await;
        let mut expected = vec![SeatStatus::Available; SEATS as usize];
        for seat in 0..SEATS {
            for node in &nodes {
                node.store.random_faults_of(RandomFaults {
                    slow_max: Duration::from_millis(300),
                    away_max: Duration::from_secs(2),
                    ..RandomFaults::new(random.number(), share)
                });
            }
            let which = random.below(2);
            if random.chance(0.2) {
                // A process dies, and another one takes its place.
                nodes[which].store.heal();
                nodes[which] = Process::start(&world).await;
            }
            done(&nodes[which], Command::ReserveSeat { seat }).await;
            if random.chance(0.5) {
                // It is given back and reserved anew, and the process that handles it may die meanwhile.
                done(&nodes[which], Command::CancelReservation { seat }).await;
                done(&nodes[which], Command::ReserveSeat { seat }).await;
                sleep(random.duration(Duration::from_secs(1))).await;
                if random.chance(0.5) {
                    nodes[0].store.heal();
                    nodes[0] = Process::start(&world).await;
                }
            }
            sleep(random.duration(10 * MINUTE)).await;
            if random.chance(0.5) {
                done(&nodes[1 - which], Command::PaySeat { seat }).await;
                expected[seat as usize] = SeatStatus::Paid;
            }
        }
        nodes.iter().for_each(|node| node.store.heal());
        nodes[0].until(&expected).await;
        sleep(120 * MINUTE).await;
        nodes[1].until(&expected).await;
    }
}
