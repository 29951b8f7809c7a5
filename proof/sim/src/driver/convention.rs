//! The convention of pure cores, for those that keep it whole (decision 0028).
//!
//! The product has it as a matter of names. Here it is a trait, so that what each core owes is checked in one place.

use gesta_core::{Moment, Now};

/// A pure core that runs in a world.
pub trait Core {
    /// The time of an input.
    type Now: Copy;
    /// What is to be done outside.
    type Output;

    /// Does everything that can be done now.
    fn work(&mut self, now: Self::Now);
    /// Takes what is to be done outside, in order.
    fn take_outputs(&mut self) -> Vec<Self::Output>;
    /// Returns when `work` must be called again if nothing happens before.
    fn wake_at(&self) -> Option<Moment>;
    /// Returns the moment of an input.
    fn moment(now: Self::Now) -> Moment;
}

/// Makes a core of a type that keeps the convention.
macro_rules! keeps_convention {
    ([$($of:ident),*], $core:ty, $output:ty, $time:ty, $moment:expr) => {
        impl<$($of),*> Core for $core {
            type Now = $time;
            type Output = $output;

            fn work(&mut self, now: $time) {
                self.work(now);
            }

            fn take_outputs(&mut self) -> Vec<$output> {
                self.take_outputs()
            }

            fn wake_at(&self) -> Option<Moment> {
                self.wake_at()
            }

            fn moment(now: $time) -> Moment {
                $moment(now)
            }
        }
    };
}

keeps_convention!(
    [T],
    gesta_append::core::Sequencer<T>,
    gesta_append::core::Output<T>,
    Now,
    |now: Now| now.moment
);
keeps_convention!(
    [T, R],
    gesta_link::core::Sender<T, R>,
    gesta_link::core::Output<T, R>,
    Moment,
    std::convert::identity
);
keeps_convention!(
    [],
    gesta_cluster::core::Core,
    gesta_cluster::core::Output,
    Moment,
    std::convert::identity
);

/// Lets a core work. Returns what is to be done outside.
///
/// # Panics
/// If the core wants to be woken at a time that has passed: its shell would not come to rest.
pub fn step<C: Core>(core: &mut C, now: C::Now) -> Vec<C::Output> {
    core.work(now);
    let (now, wakes) = (C::moment(now), core.wake_at());
    assert!(
        wakes.is_none_or(|at| at > now),
        "a core wants to be woken at a time that has passed: {wakes:?}, now {now:?}"
    );
    core.take_outputs()
}
