//! The one way to wait for something: look until it holds, or fail with what was seen last.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. A busy machine is slow; a test that passes
/// never waits this long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What one look returns: what was waited for, or what was there instead.
pub trait Look {
    type Found;

    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".to_owned())
    }
}

impl<T, S: Debug> Look for Result<T, S> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        // Logs are seen as texts, and are read line by line.
        self.map_err(|seen| format!("{seen:?}").replace("\\n", "\n"))
    }
}

/// Returns a value as found if the condition holds, else as seen instead.
pub fn when<T>(holds: bool, value: T) -> Result<T, T> {
    if holds { Ok(value) } else { Err(value) }
}

/// Waits until a look finds something, and returns that.
pub async fn eventually<L: Look>(what: &str, mut look: impl AsyncFnMut() -> L) -> L::Found {
    let since = Instant::now();
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(seen) => check_time(since, what, &seen),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits as [`eventually`] does, and blocks the thread.
pub fn wait_for<L: Look>(what: &str, mut look: impl FnMut() -> L) -> L::Found {
    let since = Instant::now();
    loop {
        match look().found() {
            Ok(found) => return found,
            Err(seen) => check_time(since, what, &seen),
        }
        std::thread::sleep(PAUSE);
    }
}

fn check_time(since: Instant, what: &str, seen: &str) {
    assert!(since.elapsed() < LIMIT, "never: {what}; last seen: {seen}");
}
