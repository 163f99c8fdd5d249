//! The NATS layer with real servers:
//! - `contexts`: every way to log in, on a server that requires it
//! - `messages`: requests, many answers, publishing into streams, lost and regained connections
//! - `stores`: buckets and objects, and watching them through a restarted server
//! - `feed`: stored events, read and followed through a restarted server
//! - `services`: discovery as other tools see it
//! - `login_flags`: the flags with which commands log in
//! - `commands`: what the command line does with all that

mod commands;
mod contexts;
mod feed;
mod login_flags;
mod messages;
mod services;
mod stores;
