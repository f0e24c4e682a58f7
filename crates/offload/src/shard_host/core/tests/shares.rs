//! Shares of several databases at one host.

use super::*;
use crate::wire::shard::DatabaseAccount;

const BUSY: u8 = 1;
const QUIET: u8 = 2;
const IMAGE: u64 = 4 << 10;

fn of(db: u8) -> OwnerStamp {
    OwnerStamp { db: OffloadDb([db; 16]), ..owner(1) }
}

impl Host {
    fn begin_with(&mut self, db: u8, guaranteed_bytes: u64) -> NodeShare {
        let begin = ShardMessage::Begin { owner: of(db), landing_bytes: LANDING, guaranteed_bytes };
        match self.tell(&begin) {
            ShardMessage::Begun { share, .. } => share,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a shard of a database. Returns whether the host took it.
    fn send(&mut self, db: u8, memtable: u64) -> bool {
        let (owner, shard) = (of(db), name(memtable));
        let grant = match self.tell(&ShardMessage::Land { owner, shard, bytes: IMAGE }) {
            ShardMessage::Landing { grant, .. } => grant,
            other => {
                assert_eq!(why(&other), Some(ShardWhy::Full), "{other:?}");
                return false;
            }
        };
        let pieces = vec![Piece { at: 0, len: IMAGE, sum: 0 }];
        let info = ShardInfo::default();
        let register = ShardMessage::Register { owner, shard, grant, info, pieces };
        let CopyOrder { db, shard, grant, info, landing, place, .. } = self.order(&register);
        let (region, at) = (place.region(), place.at());
        let image = SealedImage::open_owner(Arc::new(OwnedBytes(image_bytes(), place)));
        let image = image.expect("an image");
        let result = Ok(CopiedImage { image, region, at, bytes: IMAGE });
        let end = CopyEnd { db, shard, grant, info, landing, result };
        let answer = self.core.on_copied(&mut self.memory, end);
        assert!(matches!(answer, ShardMessage::Registered { .. }), "{answer:?}");
        self.check();
        true
    }

    /// Sends shards from `memtable` until the host takes no more. Returns the next memtable.
    fn fill(&mut self, db: u8, mut memtable: u64) -> u64 {
        while self.send(db, memtable) {
            memtable += 1;
        }
        memtable
    }

    /// Releases a shard of a database. Returns the host's figures of the database's memory.
    fn drop_shard(&mut self, db: u8, memtable: u64) -> NodeShare {
        let release =
            ShardMessage::Release { owner: of(db), shards: vec![name(memtable)], oldest: 0 };
        match self.core.on_message(&mut self.memory, &release) {
            NextStep::Answer(ShardMessage::Done { shards: 1, share }) => share,
            _ => panic!("not released"),
        }
    }

    fn account(&self, db: u8) -> DatabaseAccount {
        let accounts = self.core.figures(&self.memory).accounts;
        let found = accounts.iter().find(|account| account.db == of(db).db);
        *found.expect("an account")
    }
}

#[test]
fn database_alone_uses_the_whole_node() {
    let mut host = Host::new();
    let share = host.begin_with(BUSY, 0);
    assert_eq!((share.guaranteed_bytes, share.limit_bytes), (LIMIT, LIMIT - LANDING));
    assert_eq!(host.fill(BUSY, 1) - 1, (LIMIT - LANDING) / IMAGE);
    let account = host.account(BUSY);
    assert_eq!((account.used_bytes, account.borrowed_bytes), (LIMIT, 0));
    assert_eq!(account.image_bytes, LIMIT - LANDING);
}

#[test]
fn lender_gets_its_guarantee_back_when_the_borrower_has_flushed() {
    let mut host = Host::new();
    host.begin_with(BUSY, 0);
    host.begin_with(QUIET, 0);
    let next = host.fill(BUSY, 1);
    let account = host.account(BUSY);
    assert_eq!(account.guaranteed_bytes, LIMIT / 2);
    assert_eq!(account.borrowed_bytes, account.used_bytes - LIMIT / 2);
    // The lender has not sent a shard yet, and the answer contains its guarantee.
    assert!(host.begin_with(QUIET, 0).limit_bytes >= LIMIT / 2 - LANDING);
    assert!(!host.send(QUIET, 1), "the borrower has the memory");
    assert_eq!(host.core.figures(&host.memory).counters.claims, 2, "one claim of each database");
    let share = host.begin_with(BUSY, 0);
    let held = host.account(BUSY).image_bytes;
    assert!(share.limit_bytes < held, "{share:?} is below {held}");
    assert!(!host.send(BUSY, next), "a borrower above its share gets nothing");
    // The borrower releases its oldest shards until the host says that it is within its share.
    let mut oldest = 1;
    while host.drop_shard(BUSY, oldest).limit_bytes < host.account(BUSY).image_bytes {
        oldest += 1;
    }
    assert!(oldest < next - 1, "some shards stay");
    assert!(host.send(QUIET, 1));
    let next = host.fill(QUIET, 2);
    assert!(next > (LIMIT / 2 - LANDING) / IMAGE, "it gets its guarantee");
    assert!(host.account(QUIET).used_bytes <= LIMIT / 2);
}

#[test]
fn grant_that_a_borrower_gives_back_frees_its_arena() {
    let mut host = Host::new();
    host.begin_with(BUSY, 0);
    host.begin_with(QUIET, 0);
    let (owner, shard) = (of(BUSY), name(100));
    let grant = match host.tell(&ShardMessage::Land { owner, shard, bytes: IMAGE }) {
        ShardMessage::Landing { grant, .. } => grant,
        other => panic!("{other:?}"),
    };
    host.fill(BUSY, 1);
    assert!(!host.send(QUIET, 1), "the borrower has the memory");
    // Only the grant is left in its arena, which has room for four images.
    for memtable in 1..=3 {
        host.drop_shard(BUSY, memtable);
    }
    let before = host.core.figures(&host.memory).region_bytes;
    let give_back = ShardMessage::GiveBack { owner, shard, grant };
    assert_eq!(host.tell(&give_back), done(1));
    assert_eq!(before - host.core.figures(&host.memory).region_bytes, 16 << 10);
    host.check();
}

#[test]
fn what_comes_free_is_kept_for_a_guarantee() {
    let mut host = Host::new();
    let other = 3;
    // The guarantees of two databases are their landing zones, and a part of the node is lent.
    for (db, guaranteed_bytes) in [(BUSY, LANDING), (QUIET, 3 * LANDING), (other, LANDING)] {
        assert_eq!(host.begin_with(db, guaranteed_bytes).guaranteed_bytes, guaranteed_bytes);
    }
    host.fill(BUSY, 1);
    assert!(!host.send(QUIET, 1));
    // An arena becomes free, and the first request comes from a database that may borrow.
    for memtable in 1..=4 {
        host.drop_shard(BUSY, memtable);
    }
    assert_eq!(LIMIT - host.core.figures(&host.memory).region_bytes, 16 << 10);
    let borrower = host.account(other);
    assert!(borrower.used_bytes >= borrower.guaranteed_bytes, "{borrower:?}");
    assert!(borrower.used_bytes + IMAGE <= borrower.share_bytes, "{borrower:?}");
    assert!(!host.send(other, 1), "the memory is for the guarantee of another database");
    assert!(!host.send(BUSY, 100), "it is above its share");
    assert!(host.send(QUIET, 1));
    let quiet = host.account(QUIET);
    assert_eq!((quiet.used_bytes, quiet.borrowed_bytes), (3 * LANDING, 0));
}

#[test]
fn claim_ends_with_its_time() {
    let mut host = Host::new();
    host.begin_with(BUSY, 0);
    host.begin_with(QUIET, 0);
    host.fill(BUSY, 1);
    assert!(!host.send(QUIET, 1));
    assert!(host.account(QUIET).claimed_bytes > 0);
    let held = host.account(BUSY).image_bytes;
    assert!(host.begin_with(BUSY, 0).limit_bytes < held);
    host.core.on_time(6 * SECOND_NS);
    assert_eq!(host.account(QUIET).claimed_bytes, 0);
    assert!(host.begin_with(BUSY, 0).limit_bytes >= held, "it may borrow again");
}

#[test]
fn stated_guarantees_are_admitted_within_the_node() {
    let mut host = Host::new();
    assert_eq!(host.begin_with(BUSY, LIMIT / 4 * 3).guaranteed_bytes, LIMIT / 4 * 3);
    let quiet = host.begin_with(QUIET, LIMIT / 2);
    assert_eq!(quiet.guaranteed_bytes, LIMIT / 4, "others were promised the rest");
    assert_eq!(host.account(BUSY).guaranteed_bytes, LIMIT / 4 * 3, "a promise stays");
    // A database without a stated guarantee has an equal part of the remaining memory. Here that is
    // only its landing zone, for which the promises shrink.
    assert_eq!(host.begin_with(3, 0).guaranteed_bytes, LANDING);
    assert!(host.account(BUSY).guaranteed_bytes < LIMIT / 4 * 3);
    assert_eq!(host.begin_with(BUSY, LIMIT / 4).guaranteed_bytes, LIMIT / 4);
    assert_eq!(host.begin_with(QUIET, LIMIT / 2).guaranteed_bytes, LIMIT / 2, "with the next beat");
    assert_eq!(host.begin_with(3, 0).guaranteed_bytes, LIMIT / 4);
    // Blocks of the pool take half of the memory: all promises shrink.
    host.memory.others = 2 * LIMIT - LIMIT / 2;
    let all = [BUSY, QUIET].map(|db| host.account(db).guaranteed_bytes);
    assert_eq!(all, [LANDING + (2 << 10), LANDING + (6 << 10)]);
    // After a while, an owner that has closed has no guarantee any more.
    host.memory.others = 0;
    host.core.on_time(20 * SECOND_NS);
    assert_eq!(host.begin_with(QUIET, LIMIT).guaranteed_bytes, LIMIT);
}

#[test]
fn operator_sees_the_accounts() {
    let mut host = Host::new();
    host.begin_with(QUIET, LIMIT / 4);
    host.begin_with(BUSY, 0);
    host.send(BUSY, 1);
    let ShardMessage::Accounted { limit_bytes, databases, .. } =
        host.tell(&ShardMessage::Accounts {})
    else {
        panic!("accounts")
    };
    assert_eq!(limit_bytes, LIMIT);
    assert_eq!(databases, host.core.figures(&host.memory).accounts);
    let used: u64 = databases.iter().map(|account| account.used_bytes).sum();
    assert_eq!(used, host.core.figures(&host.memory).region_bytes);
    let shown: Vec<_> =
        databases.iter().map(|account| (account.db.0[0], account.guaranteed_bytes)).collect();
    assert_eq!(shown, [(BUSY, LIMIT / 4 * 3), (QUIET, LIMIT / 4)]);
}

/// Drains the host, or ends that. Returns the bytes of images that it has or gets.
fn drain(host: &mut Host, wanted: bool) -> u64 {
    match host.tell(&ShardMessage::Drain { is_draining: wanted }) {
        ShardMessage::Accounted { is_draining, image_bytes, .. } => {
            assert_eq!(is_draining, wanted);
            image_bytes
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn drained_node_gives_no_room_until_that_ends() {
    let mut host = Host::new();
    host.begin_with(BUSY, LIMIT / 4);
    for memtable in 1..=3 {
        assert!(host.send(BUSY, memtable));
    }
    assert_eq!(drain(&mut host, true), 3 * IMAGE);
    // No database gets room, and the answer makes the owner of the shards flush all of them.
    assert!(!host.send(BUSY, 4));
    assert_eq!(host.begin_with(BUSY, LIMIT / 4).limit_bytes, 0);
    // Another database is known, so that it can take its earlier shards over, and gets no room.
    assert_eq!(host.begin_with(QUIET, 0).limit_bytes, 0);
    assert!(!host.send(QUIET, 1));
    for memtable in 1..=3 {
        assert_eq!(host.drop_shard(BUSY, memtable).limit_bytes, 0);
    }
    assert_eq!(drain(&mut host, true), 0);
    assert_eq!(drain(&mut host, false), 0);
    assert!(host.send(BUSY, 5));
}

#[test]
fn image_that_is_arriving_counts_for_a_drain() {
    let mut host = Host::new();
    host.begin_with(BUSY, 0);
    let (owner, shard) = (of(BUSY), name(1));
    let land = ShardMessage::Land { owner, shard, bytes: IMAGE };
    assert!(matches!(host.tell(&land), ShardMessage::Landing { .. }));
    assert_eq!(drain(&mut host, true), IMAGE);
    // A release ends the grant. It counts no shard, since none was registered.
    let release = ShardMessage::Release { owner, shards: vec![shard], oldest: 0 };
    assert!(matches!(host.tell(&release), ShardMessage::Done { shards: 0, .. }));
    assert_eq!(drain(&mut host, true), 0);
}

#[test]
fn claim_ends_as_soon_as_the_guarantee_is_used() {
    let mut host = Host::new();
    host.begin_with(BUSY, 0);
    host.begin_with(QUIET, LANDING + 2 * IMAGE);
    let next = host.fill(BUSY, 1);
    assert!(!host.send(QUIET, 1));
    assert!(host.account(QUIET).claimed_bytes > 0);
    for memtable in 1..next {
        host.drop_shard(BUSY, memtable);
    }
    assert!(host.send(QUIET, 2));
    let quiet = host.account(QUIET);
    assert!(quiet.used_bytes >= quiet.guaranteed_bytes, "an arena is larger: {quiet:?}");
    assert_eq!(quiet.claimed_bytes, 0, "the borrower need not make room for more");
}

#[test]
fn answers_count_the_databases_that_join_and_close() {
    let mut host = Host::new();
    assert_eq!(host.begin_with(BUSY, 0).databases, 1);
    assert_eq!(host.begin_with(QUIET, 0).databases, 2);
    assert!(host.send(BUSY, 1) && host.send(BUSY, 2));
    assert_eq!(host.drop_shard(BUSY, 1).databases, 2, "the answer to a release counts as well");
    // The owner of shards counts although it is silent.
    host.core.on_time(20 * SECOND_NS);
    assert_eq!(host.begin_with(QUIET, 0).databases, 2);
    // The other owner has closed: it is silent and has no shards.
    host.core.on_time(40 * SECOND_NS);
    assert_eq!(host.begin_with(BUSY, 0).databases, 1);
    assert_eq!(host.drop_shard(BUSY, 2).databases, 1);
    assert_eq!(host.begin_with(QUIET, 0).databases, 2, "it returns");
}
