//! What makes a process one node of several: the calls that it forwards, the calls that it takes, and what it believes
//! about the owner of the log.
//!
//! The cores are those of the product: both ends of a lane (`gesta_link::core`), and what an edge makes of an answer,
//! a route or a hint of a placement (`gesta_node::core`). The network between them is simulated here: it delivers the
//! frames of a lane in their order, late, or only the first ones, in each direction independently.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use gesta_cluster::{LogPlace, Owner, Placement};
use gesta_core::registry::{LeaseEpoch, NodeId};
use gesta_core::{After, Appended, Incarnation, KnownEnd, LogId, Moment, Result, StreamId};
use gesta_link::core::{Credit, LinkState, Newest, Receiver, Sender};
use gesta_link::{Address, Hint, Route};
use gesta_node::core::{Change, Here, route};

/// Number of nodes of a cluster.
pub const NODES: usize = 3;
/// Credit that an owner gives on a lane. It is small, so that calls often wait.
pub const CREDIT: Credit = Credit {
    calls: 3,
    bytes: 400,
};
/// The log, which is the only one.
pub const LOG: LogId = LogId(0);
/// Time without an owner after which calls come back.
const RETURN_AFTER: Duration = Duration::from_secs(1);

/// The origin of a command on which a sequencer works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ticket {
    /// The command is of a caller of this process. The number is its ticket in the model.
    Own(usize),
    /// The command is of a caller of this process. It had been forwarded with this end of the log, and has come back.
    Returned(usize, Here, KnownEnd),
    /// The command is a call of another node.
    Taken(Taken),
}

/// A call of another node that was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Index of its lane among all lanes.
    pub lane: usize,
    /// Number of the call on the lane.
    pub seq: u64,
    /// Size of the call, in bytes.
    pub bytes: usize,
    /// Kind of the call.
    pub what: What,
}

/// The kind of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The call is an append.
    Append,
    /// The call is a delete, or a change of metadata.
    Lifecycle,
    /// The call asks whether the state in the owner's memory is up to date, as an entity asks before it answers.
    Question(After),
}

/// What a node forwards.
#[derive(Debug, Clone)]
pub enum Payload {
    /// A change.
    Change(SentChange),
    /// A confirmed read of the state of this stream.
    Question(StreamId),
}

/// A change that a node forwards.
#[derive(Debug, Clone)]
pub struct SentChange {
    /// The change.
    pub change: Change,
    /// Its form on the wire, which is encoded once.
    pub body: Bytes,
    /// End of the log that the node knew before it sent the change first.
    pub known: KnownEnd,
    /// Time at which the node gives up.
    pub deadline: Moment,
    /// True if the change was sent afresh, after others.
    pub is_afresh: bool,
}

impl SentChange {
    /// Encodes a change.
    #[must_use]
    pub fn new(change: Change, known: KnownEnd, deadline: Moment) -> Self {
        Self {
            body: change.encode(known),
            change,
            known,
            deadline,
            is_afresh: false,
        }
    }
}

impl Payload {
    /// Returns the size of the call, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Change(sent) => sent.body.len(),
            Self::Question(stream) => stream.as_str().len(),
        }
    }
}

/// A call on its way to the owner.
#[derive(Debug)]
pub struct Forth {
    /// Number of the call on the lane.
    pub seq: u64,
    /// What the call asks for.
    pub payload: Payload,
    /// Ticket of the call in the model.
    pub record: usize,
    /// True if the call was written before, so that an earlier attempt may have been done.
    pub is_in_doubt: bool,
    /// Time that was left for the call when it was written.
    pub remaining: Duration,
    /// Time at which the call was written, since the start of the schedule.
    pub written_at: Duration,
}

/// An answer of an owner.
#[derive(Debug)]
pub enum Reply {
    /// The answer to a change, encoded.
    Changed(Bytes),
    /// The answer to a question: the state in the owner's memory, and whether it was confirmed.
    Answered(After, Result<Appended>),
}

/// A frame on its way back to the forwarder.
#[derive(Debug)]
pub enum Back {
    /// The call with this number was done, or refused for good.
    Reply(u64, Reply),
    /// The deadline of the call with this number was over.
    DeadlineOver(u64),
    /// No call from `from` on is served; those from `untaken` on were not handed over.
    NotHere {
        /// Number of the first call that is refused.
        from: u64,
        /// Number of the first call that was not handed over.
        untaken: u64,
        /// What the node tells about the owner of the log.
        hint: Hint,
    },
}

/// A node in one of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Living {
    /// Number of the node.
    pub node: usize,
    /// Number of the life: how many processes this node has been before.
    pub life: u32,
}

/// A lane, and the network under it.
#[derive(Debug)]
pub struct Lane {
    /// Number that the forwarder has given the lane.
    pub number: u64,
    /// Node that forwards calls on the lane.
    pub edge: Living,
    /// Node that takes the calls of the lane.
    pub owner: Living,
    /// Core of the owner's end of the lane.
    pub receiver: Receiver,
    /// Frames on their way to the owner.
    pub forth: VecDeque<Forth>,
    /// Frames on their way back.
    pub back: VecDeque<Back>,
    /// True if bytes to the owner get lost: nothing arrives until the link breaks.
    pub is_mute_forth: bool,
    /// True if bytes from the owner get lost.
    pub is_mute_back: bool,
    /// True once the first frame has arrived.
    pub is_open: bool,
    /// True if the forwarder has given the lane up. Frames may be under way for a while.
    pub is_ended: bool,
    /// True if the owner has given the lane up.
    pub is_reset: bool,
    /// Calls that the owner has not answered.
    pub taken: Vec<Taken>,
}

impl Lane {
    /// Makes a lane on which nothing was written.
    #[must_use]
    pub fn new(number: u64, edge: Living, owner: Living) -> Self {
        Self {
            number,
            edge,
            owner,
            receiver: Receiver::new(CREDIT),
            forth: VecDeque::new(),
            back: VecDeque::new(),
            is_mute_forth: false,
            is_mute_back: false,
            is_open: false,
            is_ended: false,
            is_reset: false,
            taken: Vec::new(),
        }
    }
}

/// What a node has beside its sequencer.
#[derive(Debug)]
pub struct Node {
    /// Number and life of the node.
    pub own: Living,
    /// Core of the forwarder. A ticket is the number of a call in the model.
    pub sender: Sender<usize, Reply>,
    /// Index of the open lane among all lanes, if there is one.
    pub lane: Option<usize>,
    /// Calls that the forwarder has.
    pub calls: HashMap<usize, Payload>,
    /// Calls that have come back and are to be done here, in any order.
    pub returned: Vec<(usize, Payload, Here)>,
    /// What this node believes about the owner of the log.
    pub placement: Placement,
    /// State of the links to the other nodes.
    pub links: [LinkState; NODES],
    /// Newest lane of each forwarder.
    pub newest: HashMap<Living, Newest>,
    /// True once the node has given its logs away. Then it takes no more calls, and ends when it has answered those
    /// that it has.
    pub is_leaving: bool,
}

impl Node {
    /// Makes a node that has just started.
    #[must_use]
    pub fn start(own: Living, now: Moment) -> Self {
        let placement = placement(own.node, Believed::default());
        let route = route(&placement, LOG, &address(own.node));
        Self {
            own,
            sender: Sender::new(address(own.node), RETURN_AFTER, route, now),
            lane: None,
            calls: HashMap::new(),
            returned: Vec::new(),
            placement,
            links: [LinkState::Up(CREDIT); NODES],
            newest: HashMap::new(),
            is_leaving: false,
        }
    }

    /// Returns true if the node believes that it owns the log.
    #[must_use]
    pub fn is_mine(&self) -> bool {
        self.placement.is_mine(LOG)
    }

    /// Returns the route that follows from what the node believes.
    #[must_use]
    pub fn route(&self) -> Route {
        route(&self.placement, LOG, &address(self.own.node))
    }
}

/// What a node may be told about the owner of the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Believed {
    /// Number of the owner; `None` if the log has no owner.
    pub owner: Option<usize>,
    /// True if the owner is giving the log away.
    pub is_leaving: bool,
    /// Lease epoch of the ownership.
    pub epoch: u64,
}

/// Returns the placement that a node sees that believes this.
#[must_use]
pub fn placement(me: usize, believed: Believed) -> Placement {
    let id = |node: usize| NodeId(u32::try_from(node).unwrap_or(u32::MAX));
    let owner = believed.owner.map(|node| Owner {
        node: id(node),
        address: NAMES[node].into(),
    });
    Placement {
        version: 1,
        incarnation: Some(Incarnation(uuid::Uuid::nil())),
        cluster: None,
        me: Some(id(me)),
        logs: vec![LogPlace {
            owner,
            next_owner: None,
            epoch: LeaseEpoch(believed.epoch),
            is_mine: believed.owner == Some(me) && !believed.is_leaving,
        }],
        nodes: Vec::new(),
    }
}

/// Addresses of the nodes.
const NAMES: [&str; NODES] = ["a:1", "b:1", "c:1"];

/// Returns the address of a node.
#[must_use]
pub fn address(node: usize) -> Address {
    Address::new(NAMES[node])
}

/// Returns the number of the node that has this address.
#[must_use]
pub fn node_at(address: &Address) -> usize {
    let place = NAMES.iter().position(|name| *name == address.as_str());
    place.unwrap_or_default()
}
