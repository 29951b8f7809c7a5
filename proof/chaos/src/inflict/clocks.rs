//! Clocks that are set.

use std::time::Duration;

use gesta_load::random::Random;
use gesta_report::failure::{Result, fail};
use tokio::time::sleep;

use super::{Field, seconds};
use crate::world::clocks::Setting;

/// How often clocks are set in a round.
const TIMES: usize = 6;
/// By how many seconds at most. What is far ahead of the database is refused; what is a little ahead is not.
const MOST: [usize; 3] = [10, 240, 3_600];

impl Field<'_> {
    /// Sets the clocks of members some times, and in the end all of them right. Nobody is hurt.
    pub(super) async fn set_clocks(&mut self, random: &mut Random) -> Result<Vec<usize>> {
        let members = &self.world.members;
        let set = |member: usize, setting: Setting| {
            let member = &members[member];
            match &member.clock {
                Some(clock) => clock.set(setting, member.server.started()),
                None => fail("clocks of servers cannot be set here"),
            }
        };
        for _ in 0..TIMES {
            let member = random.below(members.len());
            let most = MOST[random.below(MOST.len())];
            let seconds_ahead = random.below(2 * most + 1).cast_signed() - most.cast_signed();
            let setting = Setting {
                seconds: i64::try_from(seconds_ahead).unwrap_or_default(),
                speed: [100, 110, 90][random.below(3)],
            };
            set(member, setting)?;
            sleep(seconds(random, 3)).await;
        }
        (0..members.len()).try_for_each(|member| set(member, Setting::RIGHT))?;
        sleep(Duration::from_secs(2)).await;
        Ok(Vec::new())
    }
}
