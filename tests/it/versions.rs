//! The order of versions: generated pairs that dpkg and rpm themselves judge.

use std::cmp::Ordering;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ccm_core::resource::package::versions::{debian, rpm};

/// Returns an order as the tools print it.
pub(crate) fn number(order: Ordering) -> i32 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

/// How many pairs the real tools judge.
const PAIRS: usize = 10_000;

/// A generator that gives the same versions on every machine (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % limit as u64) as usize
    }

    fn of(&mut self, words: &[&'static str]) -> &'static str {
        words.get(self.below(words.len())).copied().unwrap_or("0")
    }

    /// Glues up to six words together, starting with one of `first`.
    fn glue(&mut self, first: &[&'static str], words: &[&'static str]) -> String {
        let mut text = self.of(first).to_owned();
        for _ in 0..self.below(6) {
            text.push_str(self.of(words));
        }
        text
    }

    /// Makes a version and one that differs little from it, so that ties and near misses occur.
    fn pair(&mut self, make: impl Fn(&mut Self) -> String, words: &[&'static str]) -> [String; 2] {
        let a = make(self);
        let b = match self.below(3) {
            0 => make(self),
            1 => format!("{a}{}", self.of(words)),
            _ => {
                let at = self.below(a.len().max(1));
                let kept: String = a.chars().take(at).collect();
                let rest: String = a.chars().skip(at + 1).collect();
                format!("{kept}{}{rest}", self.of(words))
            }
        };
        match self.below(2) {
            0 => [a, b],
            _ => [b, a],
        }
    }
}

/// Runs a program with this input and returns the numbers it prints, one for each line.
fn judge(program: &mut Command, input: &str) -> Vec<i32> {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|err| panic!("{program:?} (scripts/test installs it): {err}"));
    let mut stdin = child.stdin.take().unwrap();
    let text = input.to_owned();
    let feeder = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

fn assert_agrees(pairs: &[[String; 2]], judged: &[i32], compare: impl Fn(&str, &str) -> i32) {
    assert_eq!(pairs.len(), judged.len(), "every pair was judged");
    let mut ties = 0;
    for ([a, b], judged) in pairs.iter().zip(judged) {
        assert_eq!(compare(a, b), *judged, "{a} {b}");
        ties += usize::from(*judged == 0);
    }
    let known = PAIRS / 100..PAIRS;
    assert!(known.contains(&ties), "{ties} ties say little about order");
}

/// dpkg takes one pair per process, so the shell's own loop starts them and nothing else. Each line
/// holds our answer; what comes back is that answer, or 9 when dpkg does not agree.
const DPKG: &str = "while read -r a op b answer; do
    if dpkg --compare-versions \"$a\" \"$op\" \"$b\"; then echo \"$answer\"; else echo 9; fi
done";

#[test]
fn dpkg_itself_agrees_on_generated_pairs() {
    let words = [
        "0",
        "00",
        "1",
        "01",
        "9",
        "10",
        "123456789012345678901",
        "a",
        "b",
        "rc",
        "Z",
        "~",
        "~~",
        "+",
        ".",
        "-",
        "dfsg",
        ".0",
        "-0",
        "~1",
        "+b1",
    ];
    let make = |chance: &mut Chance| {
        let epoch = chance.of(&["", "", "", "0:", "1:", "2:", "10:"]);
        let mut version = format!("{epoch}{}", chance.glue(&["0", "1", "2", "10"], &words));
        if chance.below(2) == 0 {
            version.push_str(&format!(
                "-{}",
                chance.glue(&["0", "1", "a"], &["1", "~", "+b", ".2"])
            ));
        }
        version
    };
    let mut chance = Chance(4);
    let mut pairs = Vec::with_capacity(PAIRS);
    while pairs.len() < PAIRS {
        let pair = chance.pair(make, &words);
        // dpkg refuses an empty revision and reads a first hyphen as an option; what we make of
        // them is pinned elsewhere.
        let is_debian = |version: &String| {
            !version.starts_with('-')
                && !version.ends_with('-')
                && debian::compare(version, version).is_ok()
        };
        if pair.iter().all(is_debian) {
            pairs.push(pair);
        }
    }
    let question = |[a, b]: &[String; 2]| {
        let order = debian::compare(a, b).unwrap();
        let operator = match order {
            Ordering::Less => "lt",
            Ordering::Equal => "eq",
            Ordering::Greater => "gt",
        };
        format!("{a} {operator} {b} {}\n", number(order))
    };
    let halves: Vec<&[[String; 2]]> = pairs.chunks(PAIRS / 2).collect();
    let judged: Vec<i32> = std::thread::scope(|threads| {
        let judges: Vec<_> = halves
            .iter()
            .map(|half| {
                let input: String = half.iter().map(question).collect();
                threads.spawn(move || judge(Command::new("sh").args(["-c", DPKG]), &input))
            })
            .collect();
        judges
            .into_iter()
            .flat_map(|judge| judge.join().unwrap())
            .collect()
    });
    assert_agrees(&pairs, &judged, |a, b| {
        number(debian::compare(a, b).unwrap())
    });
}

#[test]
fn the_rpm_library_itself_agrees_on_generated_pairs() {
    let words = [
        "0",
        "00",
        "1",
        "01",
        "9",
        "10",
        "123456789012345678901",
        "a",
        "b",
        "rc",
        "Z",
        "~",
        "^",
        "+",
        ".",
        "_",
        "..",
        "git",
        ".0",
        "~1",
        "^2",
        ".el9",
        "%",
    ];
    let make = |chance: &mut Chance| {
        let epoch = chance.of(&["", "", "", "0:", "1:", "02:", "10:"]);
        let mut version = format!(
            "{epoch}{}",
            chance.glue(&["0", "1", "2", "a", "10"], &words)
        );
        if chance.below(2) == 0 {
            version.push_str(&format!(
                "-{}",
                chance.glue(&["0", "1", "9"], &[".el9", ".fc40", "~", "^", "1"])
            ));
        }
        version
    };
    let mut chance = Chance(4);
    let pairs: Vec<[String; 2]> = (0..PAIRS).map(|_| chance.pair(make, &words)).collect();
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("pairs");
    let text: String = pairs.iter().map(|[a, b]| format!("{a} {b}\n")).collect();
    std::fs::write(&list, text).unwrap();
    let script = format!(
        "%{{lua: for line in io.lines('{}') do \
         local a, b = string.match(line, '(%S+) (%S+)') print(rpm.vercmp(a, b) .. ' ') end}}",
        list.display()
    );
    let judged = judge(Command::new("rpm").args(["--eval", &script]), "");
    assert_agrees(&pairs, &judged, |a, b| number(rpm::compare(a, b)));
}
