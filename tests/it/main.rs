//! Everything that needs the whole program. One binary, one module per concern:
//! - `agent`: an agent on a real bus, asked, alone, killed
//! - `api`: requests piped in, responses field by field
//! - `apply`: manifests from file to summary, and what is wrong with bad ones
//! - `browser`: the fleet's page in a real Chromium
//! - `bundle`: what the controller packs, as a node takes it
//! - `cancel`: runs that are stopped, after their resource or at once
//! - `cfengine`: the package module by itself, and driven by the real agent
//! - `cloudevents`: what Choria's tools hear of an agent, kind by kind
//! - `choria`: the external agent, started as Choria's server starts it
//! - `compatibility`: the page of differences from upstream, and differences that no other module shows
//! - `command_output`: what commands print, in failures, events and replies
//! - `crash`: kill -9 in the middle, processes left behind
//! - `data`: facts, hierarchies, variables
//! - `details`: what `--info` and `--debug` show of a run
//! - `docs`: examples in the documents, typed into a shell
//! - `drift`: nodes that differ from their assignment, and what shows it
//! - `enroll`: nodes that become members of a fleet with JWTs, and those that may not
//! - `archive`, `exec`, `file`, `scaffold`: every row of the types' tables, on the real machine
//! - `faults`: kill -9, full and read-only disks, power cuts, wrong clocks
//! - `feed`: events for a collector that is killed, stopped, blocked or late
//! - `fleet`: many nodes asked at once, from the command line
//! - `fleet_view`: queries, runs, status and tables, from the fleet's stores alone
//! - `gather`: thousands of nodes that answer, stay silent or were not expected
//! - `governor`: so many runs at once and no more, whoever dies meanwhile
//! - `health`: goss rules of every type and matcher, and checks from manifest to event
//! - `hostile`: another user who swaps links in while files are managed
//! - `http`: the client against servers that behave, misbehave and lie
//! - `monitoring`: documents, dashboard and alerts know the metrics that there are
//! - `nats`: the bus against real servers, and beside another client
//! - `nested`: manifests that apply manifests
//! - `package`: packages on any machine; `package_apt`, `package_dnf`, `package_cfengine`: with the
//!   real package managers, in a system of their own
//! - `plugins`: commands that people add, called like our own
//! - `publisher`: events into a real stream, whoever is killed meanwhile
//! - `registration`: services that register, are found, expire, and balancers that follow them
//! - `regression`: each upstream defect that we fixed, by its number in the compatibility notes
//! - `resource_types`: lists of types that the compiler can't check
//! - `rollback`: rollouts that go back, and wait until their nodes did; states at the end of a rollout
//! - `rollout`: bundles, rollouts that halt, resume and go back, controllers that die, drift
//! - `sandbox`: the unit that we ship, on a real systemd
//! - `schema`: schemas, types and real documents agree
//! - `service`: every row of its tables, on a real systemd in a container
//! - `session`: several calls kept together
//! - `shell`: argument files, completion in bash, zsh and fish, manual pages
//! - `sources`: manifests from directories, bundles and servers
//! - `spool`: events on a disk that is full
//! - `tidy`: rules about the source itself
//! - `trust`: forged requests, policies, floods, secrets, and the permissions that we ship
//! - `vectors`: recorded cases, shared with other implementations
//! - `versions`: our order of versions beside dpkg's and rpm's own
//! - `web`: the fleet's page and API over HTTP, without a browser

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests arrange the world by hand and stop at the first surprise"
)]

mod agent;
mod api;
mod apply;
mod archive;
mod browser;
mod bundle;
mod cancel;
mod cfengine;
mod choria;
mod cloudevents;
mod command_output;
mod compatibility;
mod crash;
mod data;
mod details;
mod docs;
mod drift;
mod enroll;
mod entry_points;
mod errors;
mod exec;
mod faults;
mod feed;
mod file;
mod fleet;
mod fleet_view;
mod governor;
mod health;
mod hostile;
mod http;
mod install;
mod monitoring;
mod nats;
mod nested;
mod package;
mod package_apt;
mod package_cfengine;
mod package_dnf;
mod plugins;
mod publisher;
mod registration;
mod regression;
mod resource_types;
mod rollback;
mod rollout;
mod sandbox;
mod scaffold;
mod scatter;
mod schema;
mod service;
mod session;
mod shell;
mod sources;
mod spool;
mod support;
mod tidy;
mod trust;
mod vectors;
mod versions;
mod web;
