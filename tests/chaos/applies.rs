//! `ccm apply`, killed or terminated at any moment: files are old or new, and refreshes are made by a
//! later run.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::random::Random;
use crate::support::{TestEnv, manifest};
use crate::tally::Tally;

const KILLS: usize = 20;
const FILES: usize = 12;

pub(crate) fn round(random: &mut Random) -> Tally {
    let env = TestEnv::new();
    let contents = ["a", "b"].map(|letter| letter.repeat(32 * 1024));
    let mut tally = Tally::default();
    for number in 0..KILLS {
        write_manifest(&env, &contents[number % 2], number);
        let signal = [Signal::KILL, Signal::TERM][random.pick(2)];
        interrupt(&env, random, signal);
        tally.faults += 1;
        for file in 0..FILES {
            let found = std::fs::read_to_string(env.path(&format!("f{file}")));
            tally.checks += 1;
            tally.partial += u64::from(found.is_ok_and(|found| !contents.contains(&found)));
        }
        // Several interrupted runs may follow each other.
        if random.below(3) == 0 || number + 1 == KILLS {
            check_refresh(&env, &mut tally);
        }
    }
    tally
}

/// Writes a manifest of large files, a small one, and a command that the small one refreshes.
fn write_manifest(env: &TestEnv, content: &str, number: usize) {
    let attributes = "ensure: present, owner: root, group: root, mode: '0644'";
    let mut resources = String::new();
    let conf = env.at("conf");
    resources.push_str(&format!(
        "- file: {{name: {conf}, {attributes}, content: 'v{number}'}}\n"
    ));
    for file in 0..FILES {
        let path = env.at(&format!("f{file}"));
        resources.push_str(&format!(
            "- file: {{name: {path}, {attributes}, content: {content}}}\n"
        ));
    }
    let directory = env.at("");
    resources.push_str(&format!(
        "- exec: {{name: refresh, provider: shell, cwd: {directory}, refreshonly: true, \
         subscribe: ['file#{conf}'], command: 'cp conf seen'}}\n"
    ));
    env.write("m.yaml", manifest(&resources));
}

/// Starts a run and ends it at a random moment.
fn interrupt(env: &TestEnv, random: &mut Random, signal: Signal) {
    let mut child = env
        .command(&["apply", "m.yaml"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(random.millis(1, 250));
    // It may have ended by itself.
    let _ = kill_process(Pid::from_child(&child), signal);
    child.wait().unwrap();
}

/// Completes the last run: the command must have seen the last content.
fn check_refresh(env: &TestEnv, tally: &mut Tally) {
    let _output = env.ccm(&["apply", "m.yaml"]).ok();
    let seen = std::fs::read(env.path("seen")).unwrap_or_default();
    tally.checks += 1;
    tally.missed += u64::from(seen != std::fs::read(env.path("conf")).unwrap());
}
