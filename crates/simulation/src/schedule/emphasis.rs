//! What a schedule has more of than others.
//!
//! Why: a broken promise often needs the same few things in one order, and then that nothing else comes between them.
//! That is rare while everything is equally likely in every schedule. So each schedule differs from the average in its
//! own way, as in *swarm testing* (Groce and others, 2012): it has favourite faults, and each of a few leanings is
//! there or not. Most schedules have one to three leanings, so each three of them come together soon.

use super::*;

/// The kinds of steps in the tables of [`World::step_of_processes`] and [`World::step_of_nodes`].
const KINDS: u32 = 100;
/// Favourite faults of a schedule, beside those of its leanings.
const FAVOURITES: usize = 2;
/// So many steps beside each hundred are a favourite fault: usually, and in a schedule that is full of them.
const FAVOURED: [u32; 2] = [15, 60];
/// Of so many leanings one is there, on the mean.
const LEANING: u32 = 4;
/// Of so many events one is such that the database refuses it: usually, and with the leaning.
const POISON_OF: [u32; 2] = [12, 3];
/// Of so many faults one is a lasting one: usually, and with the leaning.
const LASTING_OF: [u32; 2] = [4, 2];
/// Streams that callers append to: usually, and with the leaning.
const STREAMS_USED: [usize; 2] = [STREAMS.len(), 2];

/// The faults of a table of steps, by their numbers there.
#[derive(Debug)]
pub(super) struct Faults {
    /// One number of each kind of fault.
    pub(super) all: &'static [u32],
    /// The number of scavenging.
    pub(super) scavenging: u32,
    /// The number of a read that fails.
    pub(super) failing_read: u32,
}

/// What a schedule has more of than others.
#[derive(Debug)]
pub(super) struct Emphasis {
    /// The faults that are frequent.
    favourites: Vec<u32>,
    /// How many steps beside each hundred are such a fault.
    favoured: u32,
    /// The process that most steps are about. What it does comes further, because others do less meanwhile.
    focus: Option<usize>,
    /// Half of the steps that would bring a new command go on with what is under way. So recoveries come to their end.
    has_few_commands: bool,
    /// One of so many appends has events that the database refuses.
    pub(super) poison_of: u32,
    /// One of so many faults is a lasting one, which refuses everything.
    pub(super) lasting_of: u32,
    /// Streams that callers append to.
    pub(super) streams: usize,
}

impl Emphasis {
    /// Draws it: which faults are frequent, and which leanings there are.
    pub(super) fn draw(choices: &mut Choices, faults: &Faults, processes: usize) -> Self {
        let favourites = (0..FAVOURITES).map(|_| faults.all[choices.index(faults.all.len())]);
        let mut favourites: Vec<u32> = favourites.collect();
        let is_full_of_faults = choices.chance(1, 2);
        let mut leans = || choices.chance(1, LEANING);
        let (is_focused, has_few_commands, has_poison) = (leans(), leans(), leans());
        let (is_narrow, scavenges, lasts) = (leans(), leans(), leans());
        favourites.extend(scavenges.then_some(faults.scavenging));
        favourites.extend(lasts.then_some(faults.failing_read));
        Self {
            favourites,
            favoured: FAVOURED[usize::from(is_full_of_faults)],
            focus: is_focused.then(|| choices.index(processes)),
            has_few_commands,
            poison_of: POISON_OF[usize::from(has_poison)],
            lasting_of: LASTING_OF[usize::from(lasts)],
            streams: STREAMS_USED[usize::from(is_narrow)],
        }
    }

    /// The number of the next step in the table.
    pub(super) fn step(&self, choices: &mut Choices) -> u32 {
        match choices.pick(KINDS + self.favoured) {
            KINDS.. => self.favourites[choices.index(self.favourites.len())],
            kind => kind,
        }
    }

    /// The process that a step is about.
    pub(super) fn process(&self, choices: &mut Choices, processes: usize) -> usize {
        match self.focus {
            Some(focus) if !choices.chance(1, 4) => focus,
            _ => choices.index(processes),
        }
    }

    /// True if a step brings no command, although it is one that usually does.
    pub(super) fn goes_on_instead(&self, choices: &mut Choices) -> bool {
        self.has_few_commands && choices.chance(1, 2)
    }
}
