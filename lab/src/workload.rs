//! What several measurements share: other systems' journals, readers, the ladder, and what is watched meanwhile.

pub(crate) mod journals;
pub(crate) mod ladder;
pub(crate) mod read;
pub(crate) mod watch;
