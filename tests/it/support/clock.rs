//! Clocks that jump, made with libfaketime. The monotonic clock is real.

use super::TestEnv;

/// Gives every later program of this environment a wall clock that [`jump`] changes.
pub fn fake(env: &mut TestEnv) {
    let clock = env.write("clock", "+0d\n");
    for (name, value) in [
        ("LD_PRELOAD", library().as_str()),
        ("FAKETIME_TIMESTAMP_FILE", &clock),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ] {
        env.set(name, value);
    }
}

/// Sets the clock of an environment to an offset such as `+1d`.
pub fn jump(env: &TestEnv, offset: &str) {
    // Renamed into place: a program must not read half of it.
    let new = env.write("clock.new", format!("{offset}\n"));
    std::fs::rename(new, env.path("clock")).unwrap();
}

/// Returns the variables that give a program another time, such as `+5m`.
pub fn variables(offset: &str) -> [(&'static str, String); 3] {
    [
        ("LD_PRELOAD", library()),
        ("FAKETIME", offset.into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ]
}

/// Returns the library that fakes the time.
fn library() -> String {
    let directories = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths = directories.map(|it| it.unwrap().path().join("faketime/libfaketime.so.1"));
    let found = paths.find(|path| path.exists());
    let found = found.expect("faketime (scripts/test installs it)");
    found.to_str().unwrap().to_owned()
}
