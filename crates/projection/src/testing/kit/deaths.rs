//! Histories with an event that ends each process which applies it, and without any other death.

use std::time::Duration;

use super::reader::Reader;
use super::{Random, Subject, config};
use crate::config::Config;
use crate::testing::faulty::Fate;

/// Processes run one after the other, for two at once would be taken for dead by chance, on a machine that is slow.
pub(super) async fn history<S: Subject>(
    mut reader: Reader<S>,
    mut random: Random,
    steps: u64,
) -> Result<(), String> {
    let config = |reader: &Reader<S>, random: &mut Random| Config {
        lease: Duration::from_secs(3_600),
        deaths_max: 2,
        ..config(&*reader.subject, random)
    };
    let restores_at = random.below(2 * steps);
    for step in 0..steps {
        if step == restores_at {
            reader.restore(&mut random).await?;
        }
        let appended = reader.append(&mut random).await?;
        match step {
            0 => reader.choose_begin(&mut random).await?,
            // Nobody runs the projection now, so none of these events was applied.
            _ if !reader.has_deadly() => reader.choose_deadly(&appended, &mut random).await?,
            _ => {}
        }
        // Its process lives on.
        let fate = match random.below(3) {
            0 => Fate::AnswerLost,
            1 => Fate::CallLost,
            _ => Fate::None,
        };
        let config = config(&reader, &mut random);
        let Ok(life) = reader.start(random.below(30), fate, config).await else {
            continue;
        };
        reader.append(&mut random).await?;
        for _ in 0..random.below(30) {
            reader.look().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Box::pin(reader.operate(&life, &mut random)).await?;
        reader.look().await?;
        match life.faulty.is_dead() {
            true => drop(life),
            false => life.running.shutdown().await,
        }
        reader.end_lease().await?;
    }
    let config = config(&reader, &mut random);
    Box::pin(reader.comes_to_the_end(config, &mut random)).await
}
