//! Parses, dispatches and turns the result into an exit code.

fn main() {}
