//! Faults made for real: kill -9, full and read-only disks, power cuts, broken connections, wrong
//! clocks.

mod archive;
mod bundle;
mod clock;
mod files;
mod refresh;
mod state_dir;
