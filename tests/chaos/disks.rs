//! A full disk, and one with room again: nothing is partial, no refresh is missed and no event lost.

use std::io::Write as _;
use std::path::Path;

use ccm_nats::Verb;

use crate::archives::Archive;
use crate::events::{self, block_on};
use crate::random::Random;
use crate::support::agent::{self, AgentProcess, request_json};
use crate::support::disk::Disk;
use crate::support::nats::NatsServer;
use crate::support::{TestEnv, manifest};
use crate::tally::Tally;

const REQUESTS: usize = 15;

pub(crate) fn round(random: &mut Random) -> Tally {
    let mut env = TestEnv::new();
    let _disk = Disk::mount(&env.path("image"), &env.path("disk"));
    env.set("CCM_STATE_DIR", &env.at("disk/state"));
    let mut tally = Tally::default();
    archive_and_refresh(&env, random, &mut tally);
    block_on(events_of_agent(&env, random, &mut tally));
    tally
}

/// Runs on the full disk, and again when there is room.
fn archive_and_refresh(env: &TestEnv, random: &mut Random, tally: &mut Tally) {
    std::fs::create_dir_all(env.path("disk/out")).unwrap();
    let _archive = Archive::new(env, "disk/out");
    write_refresh(env, "1");
    let _output = env.ccm(&["apply", "refresh.yaml"]).ok();
    fill(&env.path("disk"), random);
    write_refresh(env, "2");
    for manifest in ["archive.yaml", "refresh.yaml"] {
        // May fail: the disk is full.
        let _outcome = env.ccm(&["apply", manifest]);
    }
    make_room(&env.path("disk"));
    for manifest in ["archive.yaml", "refresh.yaml"] {
        let _output = env.ccm(&["apply", manifest]).ok();
    }
    tally.faults += 1;
    tally.checks += 2;
    tally.partial += u64::from(!Archive::is_complete(&env.path("disk/out")));
    tally.missed += u64::from(env.read("seen") != env.read("conf"));
}

/// Writes a file beside the disk, and a command that it refreshes; what is pending is on the disk.
fn write_refresh(env: &TestEnv, content: &str) {
    let (conf, directory) = (env.at("conf"), env.at(""));
    let resources = format!(
        "- file: {{name: {conf}, ensure: present, owner: root, group: root, mode: '0644', \
         content: 'v{content}'}}\n\
         - exec: {{name: refresh, provider: shell, cwd: {directory}, refreshonly: true, \
         subscribe: ['file#{conf}'], command: 'cp conf seen'}}\n"
    );
    env.write("refresh.yaml", manifest(&resources));
}

/// Sends requests to an agent whose disk is full; what it replied must be stored in the end.
async fn events_of_agent(env: &TestEnv, random: &mut Random, tally: &mut Tally) {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    let _agent = AgentProcess::start(env, "disk", &server.url(), "");
    request_json(&client, "disk", Verb::Ping, "").await;
    let (mut replied, actions) = (Vec::new(), env.path("actions"));
    events::send(&client, "disk", &actions, REQUESTS, &mut replied).await;
    fill(&env.path("disk"), random);
    tally.faults += 1;
    events::send(&client, "disk", &actions, REQUESTS, &mut replied).await;
    make_room(&env.path("disk"));
    events::send(&client, "disk", &actions, REQUESTS, &mut replied).await;
    events::check(&server, &[replied], tally).await;
}

/// Fills a disk but for a random rest.
fn fill(disk: &Path, random: &mut Random) {
    let mut file = std::fs::File::create(disk.join("filler")).unwrap();
    let block = vec![0; 64 * 1024];
    let mut size = 0;
    while file.write_all(&block).is_ok() {
        size += 64 * 1024;
    }
    file.set_len(size - random.below(1 << 20)).unwrap();
    // Delayed writes also need their place.
    let _full = file.sync_all();
}

fn make_room(disk: &Path) {
    std::fs::remove_file(disk.join("filler")).unwrap();
}
