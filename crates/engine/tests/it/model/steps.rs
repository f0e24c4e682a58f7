//! Steps of a case. They depend only on a seed, so that the same seed does the same under any
//! settings.

/// A key of the universe, by its index.
pub(crate) type KeyNo = usize;

/// Gaps that [`Step::IngestIntoGap`] has, of three keys each.
pub(crate) const GAPS: usize = 40;

/// The first of the three keys of a gap; the later gaps lie lower, so that files of earlier ones do
/// not reach into them.
pub(crate) fn gap_key(gap: usize, universe: usize) -> KeyNo {
    universe - 3 * (gap % GAPS + 1)
}

/// All keys that cases use, ascending: some share prefixes, one is empty, one consists of bytes
/// `0xff`. After them come keys for gaps that no other step chooses.
pub(crate) fn universe() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = vec![Vec::new(), vec![0], vec![0xff, 0xff]];
    for prefix in ["a", "reef:", "reef:1:", "z"] {
        keys.extend((0..9).map(|n| format!("{prefix}{:02}", n * 3).into_bytes()));
    }
    keys.push(vec![b'm'; 300]);
    for gap in 0..GAPS as u8 {
        keys.extend(b"amz".map(|end| vec![0xff, 0xff, gap, end]));
    }
    keys.sort();
    keys
}

/// One record of a batch; `stamp` is unique and becomes its value.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Put { key: KeyNo, stamp: u64, len: usize },
    Expiring { key: KeyNo, stamp: u64, len: usize, ms_ahead: u64 },
    Delete { key: KeyNo },
    DeleteRange { start: KeyNo, end: KeyNo },
    Merge { key: KeyNo, stamp: u64 },
}

/// A move of an iterator; `after` seeks a little past the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    First,
    Last,
    Seek { key: KeyNo, after: bool },
    SeekForPrev { key: KeyNo, after: bool },
    Next,
    Prev,
}

/// Kind of an iterator.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) lower: Option<KeyNo>,
    pub(crate) upper: Option<KeyNo>,
    pub(crate) prefix: Option<&'static str>,
}

/// One file to ingest.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// By ascending key; no `Expiring`, no `DeleteRange`.
    pub(crate) points: Vec<Record>,
    pub(crate) ranges: Vec<(KeyNo, KeyNo)>,
}

/// One step. A storm is batches of so many records each, with a snapshot after each of the
/// given batches. Families, snapshots and buckets are numbers that the runner takes modulo how many
/// there are.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write {
        records: Vec<(usize, Record)>,
        wal: bool,
        sync: bool,
    },
    /// So many rows behind all others of the family for rows in time order, which expire.
    WriteOrdered {
        rows: u64,
        ms_ahead: u64,
    },
    Storm {
        cf: usize,
        records: Vec<Record>,
        batch: usize,
        snapshots: Vec<usize>,
    },
    Advance {
        ms: u64,
    },
    TakeSnapshot,
    DropSnapshot {
        snapshot: usize,
    },
    Get {
        cf: usize,
        key: KeyNo,
        snapshot: Option<usize>,
    },
    MultiGet {
        cf: usize,
        keys: Vec<KeyNo>,
        snapshot: Option<usize>,
    },
    LatestSeq {
        cf: usize,
        key: KeyNo,
    },
    Scan {
        cf: usize,
        snapshot: Option<usize>,
        bounds: Bounds,
        moves: Vec<Move>,
    },
    HoldIterator {
        cf: usize,
        snapshot: Option<usize>,
    },
    MoveHeld {
        iterator: usize,
        moves: Vec<Move>,
    },
    Flush {
        cf: usize,
    },
    Background {
        steps: usize,
    },
    CompactRange {
        cf: usize,
        start: KeyNo,
        end: KeyNo,
    },
    Split {
        cf: usize,
        bucket: usize,
        key: Option<KeyNo>,
    },
    Join {
        cf: usize,
        bucket: usize,
    },
    /// With this number of background steps on another thread during the installation.
    Ingest {
        cf: usize,
        tables: Vec<Table>,
        link: bool,
        beside: usize,
    },
    /// The outer keys of a gap, in files of their own until a compaction is due; then its middle
    /// key is ingested, with so many background steps on another thread.
    IngestIntoGap {
        cf: usize,
        gap: usize,
        stamp: u64,
        beside: usize,
    },
    /// A background step in which the `nth` call of an extension panics.
    PanicInBackground {
        nth: u64,
    },
    /// A read in which the `nth` call of the merge operator panics.
    PanicInRead {
        cf: usize,
        key: KeyNo,
        nth: u64,
    },
    /// The listener panics at the `nth` event from now on.
    PanicInListener {
        nth: u64,
    },
    Checkpoint,
    CreateFamily,
    DropFamily {
        cf: usize,
    },
    Reopen,
    Kill,
    CheckAll,
}

/// Makes the steps of a case.
pub(crate) struct Generator {
    rng: fastrand::Rng,
    keys: usize,
    gaps: usize,
    next_stamp: u64,
    /// Whether some writes bypass the log.
    unlogged: bool,
    /// Whether most writes are range deletes.
    ranges: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, unlogged: bool) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let keys = universe().len() - 3 * GAPS;
        Self { rng, keys, gaps: 0, next_stamp: 1, unlogged, ranges: false }
    }

    /// Steps most of whose writes are range deletes.
    pub(crate) fn of_ranges(seed: u64) -> Self {
        Self { ranges: true, ..Self::new(seed, false) }
    }

    fn key(&mut self) -> KeyNo {
        self.rng.usize(..self.keys)
    }

    fn stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    fn some_snapshot(&mut self) -> Option<usize> {
        self.one_in(3).then(|| self.rng.usize(..8))
    }

    fn span(&mut self) -> (KeyNo, KeyNo) {
        let (a, b) = (self.key(), self.key());
        // Short ranges more often, so that not all keys are deleted all the time.
        if self.one_in(3) { (a.min(b), a.max(b)) } else { (a, (a + b % 5).min(self.keys - 1)) }
    }

    fn len(&mut self) -> usize {
        match self.rng.u32(..20) {
            0 => 3000,
            1..=4 => self.rng.usize(..600),
            _ => self.rng.usize(..60),
        }
    }

    fn record(&mut self) -> Record {
        let (key, stamp) = (self.key(), self.stamp());
        if self.ranges && self.one_in(2) {
            let (start, end) = self.span();
            return Record::DeleteRange { start, end };
        }
        match self.rng.u32(..20) {
            0..=8 => Record::Put { key, stamp, len: self.len() },
            9..=11 => {
                let ms_ahead = self.rng.u64(..4000);
                Record::Expiring { key, stamp, len: self.len(), ms_ahead }
            }
            12..=13 => Record::Delete { key },
            14 => {
                let (start, end) = self.span();
                Record::DeleteRange { start, end }
            }
            _ => Record::Merge { key, stamp },
        }
    }

    fn write(&mut self) -> Step {
        let count = if self.one_in(3) { self.rng.usize(1..12) } else { 1 };
        let cf = self.rng.usize(..8);
        let many = self.one_in(2);
        let records = (0..count)
            .map(|_| (if many { self.rng.usize(..8) } else { cf }, self.record()))
            .collect();
        let wal = !(self.unlogged && self.one_in(6));
        Step::Write { records, wal, sync: wal && self.one_in(8) }
    }

    /// Many range deletes that overlap: from the left, from the right, as stairs, the same one, or
    /// at random; with a put or a merge after some.
    fn storm(&mut self) -> Step {
        let (shape, count) = (self.rng.u32(..5), self.rng.usize(20..160));
        let width = self.rng.usize(1..self.keys / 2);
        let mut records = Vec::new();
        for at in 0..count {
            let place = at * (self.keys - 1) / count;
            let (start, end) = match shape {
                0 => (0, place + 1),
                1 => (place, self.keys - 1),
                2 => (place, (place + width).min(self.keys - 1)),
                3 => (width, self.keys - 1),
                _ => self.span(),
            };
            records.push(Record::DeleteRange { start, end });
            if self.one_in(3) {
                let (key, stamp) = (self.key(), self.stamp());
                records.push(match self.one_in(4) {
                    true => Record::Merge { key, stamp },
                    false => Record::Put { key, stamp, len: 10 },
                });
            }
        }
        let batch = if self.rng.bool() { 1 } else { self.rng.usize(2..40) };
        let batches = count.div_ceil(batch);
        let snapshots = (0..self.rng.usize(..4)).map(|_| self.rng.usize(..batches)).collect();
        Step::Storm { cf: self.rng.usize(..8), records, batch, snapshots }
    }

    fn moves(&mut self) -> Vec<Move> {
        let count = self.rng.usize(1..14);
        let mut moves: Vec<Move> = (0..count)
            .map(|_| {
                let (key, after) = (self.key(), self.one_in(3));
                match self.rng.u32(..10) {
                    0 => Move::First,
                    1 => Move::Last,
                    2 => Move::Seek { key, after },
                    3 => Move::SeekForPrev { key, after },
                    4..=6 => Move::Prev,
                    _ => Move::Next,
                }
            })
            .collect();
        if matches!(moves[0], Move::Next | Move::Prev) {
            moves[0] = if self.rng.bool() { Move::First } else { Move::Last };
        }
        moves
    }

    fn scan(&mut self) -> Step {
        let bound = |own: &mut Self| own.one_in(3).then(|| own.key());
        let (lower, upper) = (bound(self), bound(self));
        let prefix = match self.rng.u32(..6) {
            0 => Some("reef:"),
            1 => Some("reef:1:0"),
            2 => Some("nothing"),
            _ => None,
        };
        Step::Scan {
            cf: self.rng.usize(..8),
            snapshot: self.some_snapshot(),
            bounds: Bounds { lower, upper, prefix },
            moves: self.moves(),
        }
    }

    fn table(&mut self, keys: std::ops::Range<KeyNo>) -> Table {
        let mut chosen: Vec<KeyNo> = keys.clone().filter(|_| self.rng.u32(..3) == 0).collect();
        if self.one_in(6) {
            chosen.clear();
        }
        let points: Vec<Record> = chosen
            .into_iter()
            .map(|key| match self.rng.u32(..6) {
                0 => Record::Delete { key },
                1 => Record::Merge { key, stamp: self.stamp() },
                _ => Record::Put { key, stamp: self.stamp(), len: self.len() },
            })
            .collect();
        let mut ranges = Vec::new();
        while keys.len() > 1 && (self.one_in(3) || (points.is_empty() && ranges.is_empty())) {
            let start = self.rng.usize(keys.start..keys.end - 1);
            ranges.push((start, self.rng.usize(start + 1..keys.end)));
        }
        Table { points, ranges }
    }

    fn ingest(&mut self) -> Step {
        let (a, b) = (self.key(), self.key());
        let (start, end) = (a.min(b), (a.max(b) + 2).min(self.keys));
        let start = start.min(end - 2);
        // Small files find gaps below L0.
        let end = if self.rng.bool() { start + 2 } else { end };
        let mut tables = Vec::new();
        let middle = (start + end) / 2;
        if self.one_in(3) && middle - start > 1 && end - middle > 1 {
            tables.push(self.table(middle..end));
            tables.push(self.table(start..middle));
        } else {
            tables.push(self.table(start..end));
        }
        let beside = self.rng.usize(..4);
        Step::Ingest { cf: self.rng.usize(..8), tables, link: self.rng.bool(), beside }
    }

    fn read(&mut self) -> Step {
        let (cf, key, snapshot) = (self.rng.usize(..8), self.key(), self.some_snapshot());
        match self.rng.u32(..10) {
            0..=2 => Step::Get { cf, key, snapshot },
            3..=4 => {
                let count = self.rng.usize(..30);
                Step::MultiGet { cf, keys: (0..count).map(|_| self.key()).collect(), snapshot }
            }
            5 => Step::LatestSeq { cf, key },
            6 => Step::HoldIterator { cf, snapshot },
            7 => Step::MoveHeld { iterator: key, moves: self.moves() },
            _ => self.scan(),
        }
    }

    fn upkeep(&mut self) -> Step {
        let cf = self.rng.usize(..8);
        match self.rng.u32(..50) {
            0..=6 => Step::Flush { cf },
            7..=16 => Step::Background { steps: self.rng.usize(1..6) },
            17..=20 => {
                let (start, end) = self.span();
                Step::CompactRange { cf, start, end: end + 1 }
            }
            21..=24 => {
                let key = (!self.one_in(3)).then(|| self.key());
                Step::Split { cf, bucket: self.rng.usize(..8), key }
            }
            25..=26 => Step::Join { cf, bucket: self.rng.usize(..8) },
            27..=31 => self.ingest(),
            32 => Step::Checkpoint,
            33 => Step::CreateFamily,
            34 => Step::DropFamily { cf },
            35..=36 => Step::Reopen,
            37..=38 => Step::Kill,
            39..=42 => Step::PanicInBackground { nth: self.rng.u64(1..4) },
            43 => Step::PanicInRead { cf, key: self.key(), nth: self.rng.u64(1..3) },
            44..=47 => {
                self.gaps += 1;
                let stamp = self.stamp();
                let beside = self.rng.usize(1..4);
                Step::IngestIntoGap { cf, gap: self.gaps, stamp, beside }
            }
            48 => Step::PanicInListener { nth: self.rng.u64(1..8) },
            _ => Step::CheckAll,
        }
    }

    pub(crate) fn step(&mut self) -> Step {
        match self.rng.u32(..100) {
            0..=2 => {
                let (rows, ms_ahead) = (self.rng.u64(1..40), self.rng.u64(..4000));
                Step::WriteOrdered { rows, ms_ahead }
            }
            3 => self.storm(),
            4 if self.ranges => self.storm(),
            4..=49 => self.write(),
            50..=74 => self.read(),
            75..=78 => Step::TakeSnapshot,
            79..=81 => Step::DropSnapshot { snapshot: self.rng.usize(..8) },
            82..=84 => Step::Advance { ms: self.rng.u64(..2500) },
            _ => self.upkeep(),
        }
    }
}
