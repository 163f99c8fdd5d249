//! Everything that needs the whole program. One binary, one module per concern:
//! - `agent`: an agent with a real NATS server: requests, scheduled runs, kills
//! - `api`: requests piped in, responses field by field
//! - `apply`: manifests from file to summary, and the errors of invalid ones
//! - `backup`: backups of a fleet, restored after everything was lost
//! - `browser`: the fleet's page in a real Chromium
//! - `bundle`: bundles as the controller packs and a node unpacks them
//! - `cancel`: runs that are stopped, after their resource or at once
//! - `cfengine`: the package module by itself, and driven by the real agent
//! - `cloudevents`: the events that an agent publishes for Choria's tools, by type
//! - `choria`: the external agent, started as Choria's server starts it
//! - `choria_server`: the agent as a server of Choria's network, and requests that it must refuse
//! - `compatibility`: the page of differences from upstream, and differences that no other module shows
//! - `command_output`: what commands print, in failures, events and replies
//! - `crash`: kill -9 in the middle, processes left behind
//! - `data`: facts, hierarchies, variables
//! - `doctor`: everything that can be wrong with a node or a fleet, broken and named
//! - `docs`: examples in the documents, run in a shell, and links
//! - `drift`: nodes that differ from their assignment, and what shows it
//! - `enroll`: nodes that become members of a fleet with JWTs, and those that may not
//! - `entry_points`: the same cases through every entry point
//! - `errors`: every broken document with its message
//! - `examples`: every type, property, data source and template language
//! - `archive`, `exec`, `file`, `scaffold`: every row of the types' tables, on the real machine
//! - `faults`: kill -9, full and read-only disks, power cuts, wrong clocks
//! - `feed`: events for a collector that is killed, stopped, blocked or late
//! - `fleet`: requests to many nodes, from the command line
//! - `fleet_view`: queries, runs, status and tables, from the fleet's stores alone
//! - `forget`: nodes that are retired, and labels of unknown nodes
//! - `governor`: limits of concurrent runs, also when agents or servers are killed
//! - `health`: goss rules of every type and matcher, and checks from manifest to event
//! - `http`: the client against servers that behave well and badly
//! - `install`: installation of the packages that we ship
//! - `interop`: recorded exchanges of the real choria and nats commands, sent again
//! - `large_rollout`: rollouts in chunks, on simulated nodes that share connections
//! - `log_levels`: the log lines that `--info` and `--debug` add
//! - `monitoring`: documents, dashboard and alerts name existing metrics
//! - `nats`: the NATS layer with real servers, and together with another client
//! - `nested`: manifests that apply manifests
//! - `package`: packages on any machine; `package_apt`, `package_dnf`, `package_cfengine`: with the
//!   real package managers, in a system of their own
//! - `plugins`: commands that users add
//! - `publisher`: events into a real stream, also when agent or server are killed
//! - `registration`: services that register, are found, expire, and balancers that follow them
//! - `reference`: reference pages of the book, compared with the program and the schemas
//! - `regression`: each upstream defect that we fixed, by its number in the compatibility notes
//! - `resource_types`: lists of types that the compiler can't check
//! - `rollback`: rollbacks, and the states in which rollouts end
//! - `rollout`: bundles, rollouts that halt, resume and roll back, controllers that are killed, drift
//! - `rollout_storage`: rollouts that are stored while NATS does not reply
//! - `sandbox`: the unit that we ship, on a real systemd
//! - `scatter`: requests to thousands of nodes, some without a reply, some unexpected
//! - `schema`: schemas, types and real documents agree
//! - `scripts`: what scripts of developers print
//! - `service`: every row of its tables, on a real systemd in a container
//! - `session`: several `ccm ensure` calls in one session
//! - `shell`: argument files, completion in bash, zsh and fish, manual pages
//! - `shop`: the example of a shop, on a real systemd
//! - `sources`: manifests from directories, bundles and servers
//! - `spool`: events on a disk that is full
//! - `symlink_races`: another user who replaces paths with links while files are managed
//! - `tidy`: rules about the source itself
//! - `topology`: rollouts on clusters, sites and gateways whose servers are killed
//! - `trust`: forged requests, policies, floods, secrets, and the permissions that we ship
//! - `vectors`: recorded cases, shared with other implementations
//! - `version_skew`: messages and records of the previous minor version, both ways
//! - `versions`: our order of versions beside dpkg's and rpm's own
//! - `web`: the fleet's page and API over HTTP, without a browser; `web_access`: tokens, roles and
//!   rollouts of the page; `web_history`: runs and bundles

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests prepare files and processes directly, and stop at the first failure"
)]

mod account;
mod agent;
mod api;
mod apply;
mod archive;
mod backup;
mod browser;
mod bundle;
mod cancel;
mod cfengine;
mod choria;
mod choria_server;
mod cloudevents;
mod command_output;
mod compatibility;
mod crash;
mod data;
mod docs;
mod doctor;
mod drift;
mod enroll;
mod entry_points;
mod errors;
mod examples;
mod exec;
mod faults;
mod feed;
mod file;
mod file_source;
mod fleet;
mod fleet_view;
mod forget;
mod governor;
mod health;
mod http;
mod install;
mod interop;
mod large_rollout;
mod line;
mod link;
mod log_levels;
mod monitoring;
mod nats;
mod nested;
mod package;
mod package_apt;
mod package_cfengine;
mod package_dnf;
mod plugins;
mod publisher;
mod reference;
mod registration;
mod regression;
mod resource_types;
mod rollback;
mod rollout;
mod rollout_storage;
mod sandbox;
mod scaffold;
mod scatter;
mod schema;
mod scripts;
mod secrets;
mod service;
mod session;
mod shell;
mod shop;
mod sources;
mod spool;
mod support;
mod symlink_races;
mod tidy;
mod topology;
mod trust;
mod vectors;
mod version_skew;
mod versions;
mod web;
mod web_access;
mod web_history;
