//! Faults made for real: kill -9, full and read-only disks, power cuts, broken connections, wrong
//! clocks.

mod archive;
mod bundle;
mod clock;
mod files;
mod outage;
mod overload;
mod processes;
mod refresh;
mod replay;
mod rollout;
mod stale_reads;
mod state_dir;
mod storage;
