//! Help: examples and exit codes of every command, topics, and generated pages.
//!
//! - `examples`: what `--help` adds after the flags; the texts are in `examples.txt`
//! - `topics`: `ccm help TOPIC`; the texts are in `topics/`
//! - `pages`: the long help and the manual pages
//! - `reference`: the command reference of the book

mod examples;
mod pages;
mod reference;
mod topics;

pub(super) use self::examples::with_examples;
pub(super) use self::pages::{long_help, man_pages, man_text};
pub(super) use self::reference::command_pages;
pub(super) use self::topics::topic;
