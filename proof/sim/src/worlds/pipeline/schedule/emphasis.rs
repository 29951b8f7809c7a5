//! What a schedule has more of than others.
//!
//! Why: a broken promise often needs the same few things in one order, and nothing else between them. That is rare
//! while everything is equally likely in every schedule. So each schedule differs from the average in its own way, as
//! in *swarm testing* (Groce and others, 2012): it has favourite faults, and each of a few leanings is present or not.
//! Most schedules have one to three leanings, so any three of them come together soon.

use super::*;

/// Number of kinds of steps in the tables of [`World::step_of_processes`] and [`World::step_of_nodes`], with those of
/// [`World::step`].
const KINDS: u32 = 108;
/// Number of favourite faults of a schedule, beside those of its leanings.
const FAVOURITES: usize = 2;
/// Number of steps beside each hundred that are a favourite fault: usually, and in a schedule that is full of faults.
const FAVOURED: [u32; 2] = [15, 60];
/// A leaning is present in one of this number of schedules.
const LEANING: u32 = 4;
/// One of this number of events is such that the database refuses it: usually, and with the leaning.
const POISON_OF: [u32; 2] = [12, 3];
/// One of this number of faults is a lasting one: usually, and with the leaning.
const LASTING_OF: [u32; 2] = [4, 2];
/// Number of streams to which callers append: usually, and with the leaning.
const STREAMS_USED: [usize; 2] = [STREAMS.len(), 2];

/// The faults of a table of steps, by their numbers in the table.
#[derive(Debug)]
pub(super) struct Faults {
    /// One number of each kind of fault.
    pub(super) all: &'static [u32],
    /// Number of scavenging.
    pub(super) scavenging: u32,
    /// Number of a read that fails.
    pub(super) failing_read: u32,
    /// Number of a long wait.
    pub(super) long_wait: u32,
    /// Number of a restart.
    pub(super) restart: u32,
    /// Number of a fail-over that loses commits.
    pub(super) loss: u32,
}

/// What a schedule has more of than others.
#[derive(Debug)]
pub(super) struct Emphasis {
    /// Numbers of the faults that are frequent.
    favourites: Vec<u32>,
    /// Number of steps beside each hundred that are such a fault.
    favoured: u32,
    /// Number of the process that most steps are about. It gets further than others, because they do less meanwhile.
    focus: Option<usize>,
    /// True if half of the steps that would bring a new command let something under way go on. So recoveries come to
    /// their end.
    has_few_commands: bool,
    /// One of this number of appends has events that the database refuses.
    pub(super) poison_of: u32,
    /// One of this number of faults is a lasting one, which refuses everything.
    pub(super) lasting_of: u32,
    /// Number of streams to which callers append.
    pub(super) streams: usize,
    /// True if events leave the deduplication window.
    pub(super) is_window_narrow: bool,
    /// True if many appends have conditions.
    pub(super) has_conditions: bool,
    /// True if commits are lost often.
    pub(super) loses: bool,
}

impl Emphasis {
    /// Draws which faults are frequent, and which leanings are present.
    pub(super) fn draw(choices: &mut Choices, faults: &Faults, processes: usize) -> Self {
        let favourites = (0..FAVOURITES).map(|_| faults.all[choices.index(faults.all.len())]);
        let mut favourites: Vec<u32> = favourites.collect();
        let is_full_of_faults = choices.chance(1, 2);
        let mut leans = || choices.chance(1, LEANING);
        let (is_focused, has_few_commands, has_poison) = (leans(), leans(), leans());
        let (is_narrow, scavenges, lasts) = (leans(), leans(), leans());
        let (is_window_narrow, has_conditions) = (leans(), leans());
        // What a condition rests on is lost.
        let loses = has_conditions && leans();
        favourites.extend(scavenges.then_some(faults.scavenging));
        favourites.extend(lasts.then_some(faults.failing_read));
        favourites.extend(loses.then_some(faults.loss));
        if is_window_narrow {
            // Whoever has seen an event remembers it for longer than the window.
            favourites.extend([faults.long_wait, faults.restart]);
        }
        Self {
            favourites,
            favoured: FAVOURED[usize::from(is_full_of_faults)],
            focus: is_focused.then(|| choices.index(processes)),
            has_few_commands,
            poison_of: POISON_OF[usize::from(has_poison)],
            lasting_of: LASTING_OF[usize::from(lasts)],
            streams: STREAMS_USED[usize::from(is_narrow)],
            is_window_narrow,
            has_conditions,
            loses,
        }
    }

    /// Returns the number of the next step in the table.
    pub(super) fn step(&self, choices: &mut Choices) -> u32 {
        match choices.pick(KINDS + self.favoured) {
            KINDS.. => self.favourites[choices.index(self.favourites.len())],
            kind => kind,
        }
    }

    /// Returns the process that a step is about.
    pub(super) fn process(&self, choices: &mut Choices, processes: usize) -> usize {
        match self.focus {
            Some(focus) if !choices.chance(1, 4) => focus,
            _ => choices.index(processes),
        }
    }

    /// Returns true if a step brings no command, although it is one that usually does.
    pub(super) fn goes_on_instead(&self, choices: &mut Choices) -> bool {
        self.has_few_commands && choices.chance(1, 2)
    }
}
