//! `scripts/demo` on a terminal: it waits for Enter after each step, and does not with `--fast`.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::nats::tool;

const PROMPT: &str = "(Enter for the next step)";

/// A demo on a terminal of its own. Ends when dropped.
struct Terminal {
    child: Child,
    output: String,
}

impl Terminal {
    fn start(flags: &str) -> Self {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/demo");
        let server = tool("nats-server");
        let tools = server.parent().unwrap().to_str().unwrap();
        let path = std::env::var("PATH").unwrap();
        let call = format!(
            "{} --once --nodes 6 --bin {} {flags}",
            demo.display(),
            env!("CARGO_BIN_EXE_ccm")
        );
        // script(1) runs a command on a new terminal. Tests in the background ignore the interrupt, which the
        // demo must not inherit.
        let child = Command::new("env")
            .args(["--default-signal", "script"])
            .args(["--quiet", "--return", "--command", &call, "/dev/null"])
            .env("PATH", format!("{tools}:{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            output: String::new(),
        }
    }

    /// Reads until the output ends with a text.
    fn read_until(&mut self, text: &str) {
        let mut byte = [0];
        let mut bytes = Vec::new();
        while !bytes.ends_with(text.as_bytes()) {
            let count = self.child.stdout.as_mut().unwrap().read(&mut byte).unwrap();
            let seen = String::from_utf8_lossy(&bytes);
            assert_eq!(count, 1, "ended before {text:?}: {seen}");
            bytes.push(byte[0]);
        }
        self.output.push_str(&String::from_utf8_lossy(&bytes));
    }

    fn type_text(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
    }

    /// Interrupts the demo, and returns all that it has printed.
    fn interrupt(mut self) -> String {
        self.type_text("\u{3}");
        let mut rest = Vec::new();
        let stdout = self.child.stdout.as_mut().unwrap();
        stdout.read_to_end(&mut rest).unwrap();
        std::mem::take(&mut self.output) + &String::from_utf8_lossy(&rest)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A closed terminal ends the demo, which ends what it started.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_demo_waits_for_enter_after_each_step() {
    let mut terminal = Terminal::start("");
    terminal.read_until(PROMPT);
    terminal.type_text("\n");
    terminal.read_until(PROMPT);
    let output = terminal.interrupt();
    assert!(output.contains("2. A fleet uses NATS."), "{output}");
    assert!(!output.contains("3. "), "{output}");
    assert_eq!(output.matches(PROMPT).count(), 2, "{output}");
}

#[test]
fn the_fast_demo_does_not_wait() {
    let mut terminal = Terminal::start("--fast");
    terminal.read_until("3. Requests are signed.");
    let output = terminal.interrupt();
    assert!(!output.contains(PROMPT), "{output}");
}
