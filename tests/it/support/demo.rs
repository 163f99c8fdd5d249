//! The demo's fleet: `scripts/demo` itself, left running with its page. Gone when dropped.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A demo that has come to its end, with the page still up.
pub struct Demo {
    child: Child,
    /// Kept open: the demo has more to say after its token, and would die of a closed pipe.
    _rest: BufReader<ChildStdout>,
    /// Where the page is, with a slash at its end.
    pub url: String,
    pub token: String,
    /// All that people saw.
    pub output: String,
}

impl Demo {
    /// Runs all steps with so many agents.
    pub fn run(nodes: usize) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(root.join("scripts/demo"))
            .args(["--bin", env!("CARGO_BIN_EXE_ccm"), "--nodes"])
            .arg(nodes.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut rest = BufReader::new(child.stdout.take().unwrap());
        let mut output = String::new();
        let mut next = |sign: &str| {
            for line in rest.by_ref().lines().map_while(Result::ok) {
                output.push_str(&line);
                output.push('\n');
                if let Some(rest) = line.strip_prefix(sign) {
                    return rest.split_whitespace().next().unwrap().to_owned();
                }
            }
            panic!("the demo ended before {sign:?}:\n{output}");
        };
        let (url, token) = (next("Page:"), next("Token:"));
        Self {
            child,
            _rest: rest,
            url,
            token,
            output,
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It ends what it started.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
