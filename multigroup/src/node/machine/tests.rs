use raft_host::id::Term;
use tempfile::TempDir;

use super::*;
use crate::command::{Body, Entry, Op, Outcome};
use crate::keyspace::KeySpace;
use crate::session::UnixMillis;
use crate::store::StoreOptions;

const GROUPS: u32 = 4;
const GROUP: GroupId = GroupId::new(2);

struct World {
    folder: TempDir,
    machines: Machines,
    checkpointer: Checkpointer,
}

impl World {
    fn new() -> Self {
        Self::on(TempDir::new().unwrap())
    }

    fn on(folder: TempDir) -> Self {
        let space = KeySpace::new(GROUPS).unwrap();
        let store = Store::open(StoreOptions::new(folder.path().to_owned(), space)).unwrap();
        let (machines, checkpointer) = Machines::start(Arc::new(store), GROUPS, None).unwrap();
        Self {
            folder,
            machines,
            checkpointer,
        }
    }

    fn machine(&self) -> GroupMachine {
        Machines::open(&self.machines, GROUP).unwrap()
    }

    fn has_file(&self) -> bool {
        self.folder.path().join(format!("{GROUP}.db")).exists()
    }

    fn restart(self) -> Self {
        self.machines.stop();
        self.checkpointer.join();
        drop(self.machines);
        Self::on(self.folder)
    }
}

fn bare(index: u64) -> Committed {
    Committed {
        index: Index::new(index),
        term: Term::new(1),
        command: Bytes::new(),
        request_id: Bytes::new(),
        time: UnixMillis::new(1),
    }
}

fn incr(index: u64) -> Committed {
    let key = Bytes::from_static(b"k");
    let entry = Entry {
        identity: None,
        body: Body::Single(Op::IncrBy { key, delta: 1 }),
    };
    Committed {
        command: entry.encode().unwrap(),
        ..bare(index)
    }
}

fn integers(replies: Vec<Bytes>) -> Vec<Option<i64>> {
    let read = |reply: Bytes| match Outcome::decode(reply) {
        Ok(Outcome::Integer(number)) => Some(number),
        _ => None,
    };
    replies.into_iter().map(read).collect()
}

#[test]
fn entries_without_a_command_make_no_file_and_count_as_applied() {
    let world = World::new();
    let mut machine = world.machine();
    assert_eq!(
        machine.apply(&[bare(1), bare(2)]).unwrap(),
        [Bytes::new(), Bytes::new()]
    );
    assert_eq!(machine.applied().index, Index::new(2));
    let (applied, digest) = world.machines.digest(GROUP).unwrap();
    assert_eq!((applied, digest.rows), (Index::new(2), 0));
    assert!(!world.has_file());
    assert_eq!(
        machine.flush().unwrap(),
        Index::new(0),
        "the log must keep them"
    );
    drop(machine);
    let world = world.restart();
    assert_eq!(world.machine().applied(), Applied::default());
}

#[test]
fn a_command_takes_the_entries_held_before_it_into_the_file() {
    let world = World::new();
    let mut machine = world.machine();
    machine.apply(&[bare(1)]).unwrap();
    let replies = machine.apply(&[incr(2), bare(3), incr(4)]).unwrap();
    assert_eq!(integers(replies), [Some(1), None, Some(2)]);
    machine.apply(&[bare(5)]).unwrap();
    let (applied, digest) = world.machines.digest(GROUP).unwrap();
    assert_eq!((applied, digest.rows), (Index::new(5), 1));
    assert_eq!(digest.applied.index, Index::new(4));
    drop(machine);
    let world = world.restart();
    let mut machine = world.machine();
    assert_eq!(
        machine.applied().index,
        Index::new(4),
        "5 comes again from the log"
    );
    assert_eq!(
        integers(machine.apply(&[bare(5), incr(6)]).unwrap()),
        [None, Some(3)]
    );
}

#[test]
fn as_many_elections_as_may_be_held_are_written_down_then() {
    let world = World::new();
    let mut machine = world.machine();
    let most = EMPTY_ENTRIES_HELD_MAX as u64;
    for index in 1..=most {
        machine.apply(&[bare(index)]).unwrap();
    }
    assert!(!world.has_file());
    machine.apply(&[bare(most + 1)]).unwrap();
    assert!(world.has_file());
    let (applied, digest) = world.machines.digest(GROUP).unwrap();
    assert_eq!(applied, Index::new(most + 1));
    assert_eq!(digest.applied.index, applied);
}

#[test]
fn a_flush_tells_what_the_last_whole_checkpoint_made_durable() {
    let world = World::new();
    let mut machine = world.machine();
    machine.apply(&[incr(1), incr(2)]).unwrap();
    assert_eq!(machine.flush().unwrap(), Index::new(0), "none was made yet");
    // The thread ends only after it has done what it was asked before.
    let World {
        machines,
        checkpointer,
        ..
    } = &world;
    while machines.shared.groups[2].floor.load(Ordering::Acquire) == 0 {
        assert!(!checkpointer.0.is_finished());
        std::thread::yield_now();
    }
    machine.apply(&[incr(3)]).unwrap();
    assert_eq!(machine.flush().unwrap(), Index::new(2));
}

#[test]
fn a_gap_in_the_log_is_a_failure_and_not_an_answer() {
    let world = World::new();
    let mut machine = world.machine();
    machine.apply(&[incr(1)]).unwrap();
    assert!(machine.apply(&[incr(3)]).is_err());
}
