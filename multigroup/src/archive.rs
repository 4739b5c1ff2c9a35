//! The archive: what was committed, in an object store, so that a cluster can be lost and come
//! back. The leader of each group publishes; a node gathers the groups that it leads into one
//! object an interval, so that there are few of them, each with segments of many groups.
//!
//! - A1: objects are never changed and never overwritten: each is created under a name of its own,
//!   or not at all.
//! - A2: how far a group is archived is a function of the set of objects alone: the end of the
//!   entries that lie without a gap from the first one on. Nothing stores it as the truth.
//! - A3: two objects that hold the same entry hold the same bytes of it. Where they don't, that is
//!   named and no more is published for the group.
//! - A4: no group's log forgets what isn't archived yet, and none of it is ever left out: a store
//!   that is down delays the writes.
//!
//! ```text
//! archive.json                       whose archive it is
//! segments/NODE/BLOCK/SEQUENCE       a node's objects: 1, 2, 3, … without a gap
//! manifests/NODE/SEQUENCE            where all groups stood: only saves reading older objects
//! ```
//!
//! `claim` makes sure whose it is; `object`, `entry`, `manifest` are the bytes; `catalog` the positions; `place` the store and the
//! names in it; `reader` follows what nodes publish; `ledger` counts what isn't archived, and
//! `gate` holds writes back by it; `publisher` publishes; `check` reads everything and judges.

mod catalog;
mod check;
mod claim;
mod entry;
mod error;
mod gate;
mod ledger;
mod manifest;
mod object;
mod place;
mod publisher;
mod reader;

pub use self::catalog::{Added, Catalog, Position, Span};
pub use self::check::{Checked, check};
pub use self::claim::Whose;
pub use self::error::{ArchiveError, Fork, ObjectFault, ObjectName};
pub use self::object::{Header, SegmentRef};
pub use self::place::{ArchiveUrl, Identity, Place};
pub use self::reader::{Listed, list, positions};

pub(crate) use self::claim::Claim;
pub(crate) use self::gate::Gate;
pub(crate) use self::publisher::{Publisher, PublisherSetup, Shared};
