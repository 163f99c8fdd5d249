//! Appends, acknowledgements, kills, power cuts and damage in any order, compared with a model.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

/// One step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Append {
        class: Class,
        size: usize,
    },
    /// Acknowledges the pending record at this position.
    Ack(usize),
    Sync,
    /// The process is killed; the kernel keeps all writes.
    Kill,
    /// Power cut: unsynced parts of files are truncated or corrupted, and the journal may be the
    /// last synced one.
    PowerCut {
        keep: u8,
        flip: Option<u16>,
        old_journal: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let class = prop_oneof![Just(Class::Stable), Just(Class::Important)];
    let append = (class, 0..400usize).prop_map(|(class, size)| Step::Append { class, size });
    let cut =
        (any::<u8>(), any::<Option<u16>>(), any::<bool>()).prop_map(|(keep, flip, old_journal)| {
            Step::PowerCut {
                keep,
                flip,
                old_journal,
            }
        });
    let step = prop_oneof![
        8 => append,
        4 => (0..8usize).prop_map(Step::Ack),
        2 => Just(Step::Sync),
        1 => Just(Step::Kill),
        2 => cut,
    ];
    prop::collection::vec(step, 1..60)
}

/// Expected content of a spool.
#[derive(Default)]
struct Model {
    /// All records that may be returned, by id, with whether they must be.
    waiting: HashMap<String, (Record, bool)>,
    /// Acknowledged since the last sync: may be returned again after a power cut.
    forgettable: HashMap<String, Record>,
    /// Length of each file at the last sync, and the journal.
    synced: BTreeMap<PathBuf, u64>,
    journal: Option<Vec<u8>>,
}

impl Model {
    fn sync(&mut self, directory: &TempDir) {
        for (_, must) in self.waiting.values_mut() {
            *must = true;
        }
        self.forgettable.clear();
        let size = |path: PathBuf| (path.clone(), path.metadata().unwrap().len());
        self.synced = segments(directory).into_iter().map(size).collect();
        self.journal = fs::read(directory.path().join("spool/journal")).ok();
    }

    fn cut(&mut self, directory: &TempDir, keep: u8, flip: Option<u16>, old_journal: bool) {
        for path in segments(directory) {
            let mut content = fs::read(&path).unwrap();
            let safe = self.synced.get(&path).map_or(0, |length| *length as usize);
            let loose = content.len().saturating_sub(safe);
            content.truncate(safe + loose * usize::from(keep) / 255);
            if let Some(flip) = flip
                && content.len() > safe
            {
                let at = safe + usize::from(flip) % (content.len() - safe);
                content[at] ^= 0x55;
            }
            fs::write(&path, content).unwrap();
        }
        if old_journal && let Some(journal) = &self.journal {
            fs::write(directory.path().join("spool/journal"), journal).unwrap();
            for (id, record) in self.forgettable.drain() {
                self.waiting.insert(id, (record, false));
            }
        }
    }

    /// Compares the records found with the model, then adopts them.
    fn check(&mut self, found: &[(u64, Record)], must_all: bool) {
        assert!(found.is_sorted_by(|a, b| a.0 < b.0), "out of order");
        let number = |record: &Record| record.id[3..].parse::<u64>().unwrap();
        let in_order = found.is_sorted_by(|a, b| number(&a.1) < number(&b.1));
        assert!(in_order, "not in the order they came");
        for (_, record) in found {
            let known = self.waiting.get(&record.id);
            assert_eq!(known.map(|known| &known.0), Some(record), "invented");
        }
        let ids: Vec<&str> = found.iter().map(|(_, record)| &*record.id).collect();
        for (id, (_, must)) in &self.waiting {
            let may_be_lost = !must && !must_all;
            assert!(may_be_lost || ids.contains(&&**id), "{id} is lost");
        }
        self.waiting.retain(|id, _| ids.contains(&&**id));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_synced_record_is_lost_none_invented_and_order_is_kept(steps in steps()) {
        let directory = test_dir();
        let mut model = Model::default();
        let mut spool = open(&directory, LARGE).0;
        let mut number = 0;
        for step in steps {
            match step {
                Step::Append { class, size } => {
                    number += 1;
                    let mut record = record(number, class);
                    record.body = vec![b'0' + (number % 10) as u8; size];
                    spool.append(&record).unwrap();
                    model.waiting.insert(record.id.clone(), (record, false));
                }
                Step::Ack(index) => {
                    if let Some((seq, record)) = spool.next(0, index + 1).unwrap().pop() {
                        spool.ack(&[seq]).unwrap();
                        model.waiting.remove(&record.id);
                        model.forgettable.insert(record.id.clone(), record);
                    }
                }
                Step::Sync => {
                    spool.sync().unwrap();
                    model.sync(&directory);
                }
                Step::Kill | Step::PowerCut { .. } => {
                    drop(spool);
                    let is_kill = matches!(step, Step::Kill);
                    if let Step::PowerCut { keep, flip, old_journal } = step {
                        model.cut(&directory, keep, flip, old_journal);
                    }
                    spool = open(&directory, LARGE).0;
                    model.check(&spool.next(0, usize::MAX).unwrap(), is_kill);
                }
            }
        }
        model.check(&spool.next(0, usize::MAX).unwrap(), true);
        prop_assert_eq!(spool.status().pending, model.waiting.len() as u64);
    }

    #[test]
    fn one_flipped_byte_costs_at_most_one_record(
        sizes in prop::collection::vec(0..200usize, 1..20),
        file in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let directory = test_dir();
        let (spool, _) = open(&directory, LARGE);
        let mut model = Model::default();
        for (number, size) in (1..).zip(sizes) {
            let mut record = record(number, Class::Important);
            record.body = vec![b'x'; size];
            spool.append(&record).unwrap();
            model.waiting.insert(record.id.clone(), (record, false));
        }
        drop(spool);
        let before = model.waiting.len();
        let paths = segments(&directory);
        let path = file.get(&paths);
        let mut content = fs::read(path).unwrap();
        let at = at.index(content.len());
        content[at] ^= 1 << bit;
        fs::write(path, content).unwrap();
        let (spool, _) = open(&directory, LARGE);
        model.check(&spool.next(0, usize::MAX).unwrap(), false);
        prop_assert!(model.waiting.len() + 1 >= before);
    }

    #[test]
    fn any_bytes_can_be_opened_as_a_segment(content in prop::collection::vec(any::<u8>(), 0..2000)) {
        let directory = test_dir();
        drop(open(&directory, LARGE));
        let name = "spool/00000000000000000001-stable-00000000.seg";
        fs::write(directory.path().join(name), content).unwrap();
        let (spool, recovered) = open(&directory, LARGE);
        prop_assert_eq!(recovered.records, 0);
        append(&spool, 1, Class::Stable);
        prop_assert_eq!(ids(&spool), ["id-1"]);
    }
}
